// A small line of recent rates. It repeats the figure beside it, so it is hidden from screen readers.

import { html } from "../html.js";
import { SAMPLES } from "../model/figures.js";

const WIDTH = 120;
const HEIGHT = 24;
const STEP = WIDTH / (SAMPLES - 1);

/** The newest sample is at the right edge; the scale goes from zero to the highest sample shown. */
export function Sparkline({ rates }) {
  const top = Math.max(...rates, 1e-9);
  const first = WIDTH - (rates.length - 1) * STEP;
  const height = (rate) => HEIGHT - 2 - (rate / top) * (HEIGHT - 4);
  const line = rates.map((rate, i) => `${(first + i * STEP).toFixed(1)},${height(rate).toFixed(1)}`).join(" ");
  return html`<svg class="sparkline" viewBox="0 0 ${WIDTH} ${HEIGHT}" preserveAspectRatio="none" aria-hidden="true">
    <polygon points="${first.toFixed(1)},${HEIGHT} ${line} ${WIDTH},${HEIGHT}" />
    <polyline points=${line} />
  </svg>`;
}
