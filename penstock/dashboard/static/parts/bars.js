// Live bars for a ranked view. A bar keeps its element while its label stays in the ranking and glides to its new rank:
// only transforms change, so the browser does not have to redo the layout.

import { html } from "../html.js";
import { newestWindow, sorted } from "../model/columns.js";
import * as format from "../model/format.js";

const BARS_MAX = 50;
const LABEL_MAX = 120;

/** Bars {id, label, value, rank, share}, in rank order; `share` is the length relative to the longest. */
export function ranking(entries, columns, view) {
  const { entries: newest, window } = newestWindow(entries, columns);
  const names = columns.filter((each) => each.key && each.kind !== "window");
  const best = sorted(newest, columns, { column: view.by, down: true }).slice(0, Math.min(view.top, BARS_MAX));
  const longest = Math.max(...best.map(({ row }) => Math.abs(Number(row[view.by]) || 0)), 1e-300);
  const bars = best.map(({ row }, rank) => {
    const label = names.map((column) => format.cell(row[column.name], column).text).join(" · ");
    const value = Number(row[view.by]) || 0;
    const id = JSON.stringify(names.map(({ name }) => row[name]));
    return { id, label: label || "all", value: row[view.by], rank, share: Math.abs(value) / longest, below: value < 0 };
  });
  return { bars, window };
}

/**
 * In the document the bars are ordered by identity, so that a change of rank moves no element; `posinset` has the rank.
 */
export function Bars({ entries, columns, view }) {
  const { bars, window } = ranking(entries, columns, view);
  const digits = columns.find((each) => each.name === view.by)?.digits ?? 0;
  const still = [...bars].sort((a, b) => (a.id < b.id ? -1 : 1));
  return html`<figure class="bars">
    <ol style=${{ "--count": String(bars.length) }} aria-label="Top ${view.top} of ${view.name} by ${view.by}">
      ${still.map((bar) => html`<${Bar} key=${bar.id} ...${{ bar, digits, by: view.by, count: bars.length }} />`)}
    </ol>
    <figcaption>
      <span>by ${view.by}</span>
      ${window ? html`<time title="${window.start} to ${window.end}">${format.range(window)}</time>` : null}
    </figcaption>
  </figure>`;
}

function Bar({ bar, count, by, digits }) {
  const value = format.cell(bar.value, { kind: "number", digits });
  const style = { "--rank": String(bar.rank), "--share": bar.share.toFixed(4) };
  return html`<li class="bar ${bar.below ? "below" : ""}" style=${style}
    aria-posinset=${bar.rank + 1} aria-setsize=${count}
    aria-label="${bar.rank + 1}. ${format.clip(bar.label, LABEL_MAX)}: ${by} ${value.text}">
    <span class="bar-fill" aria-hidden="true"></span>
    <span class="bar-rank" aria-hidden="true">${bar.rank + 1}</span>
    <bdi class="bar-label" title=${format.clip(bar.label, LABEL_MAX)} aria-hidden="true">${bar.label}</bdi>
    <span class="bar-value" title=${value.title} aria-hidden="true">${value.text}</span>
  </li>`;
}
