// Lines of latitude and longitude at round numbers of degrees, and a scale bar of a round length.

import { cosine } from "./places.js";

const LINE_PIXELS_MIN = 90;
const BAR_PIXELS_MAX = 120;
const METRES_PER_DEGREE = 111_195;
const STEPS = [1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 45, 90];

function stepFor(pixelsPerDegree) {
  return STEPS.find((step) => step * pixelsPerDegree >= LINE_PIXELS_MIN) ?? STEPS.at(-1);
}

function multiples(from, to, step) {
  const first = Math.ceil(from / step);
  return Array.from({ length: Math.max(0, Math.floor(to / step) - first + 1) }, (_, i) => (first + i) * step);
}

function degrees(value, step, [positive, negative]) {
  const text = Math.abs(value).toFixed(Math.max(0, -Math.floor(Math.log10(step))));
  return `${text}°${Number(text) === 0 ? "" : value > 0 ? positive : negative}`;
}

/** Returns the lines {at, text} of a frame: `across` by y, `down` by x. */
export function graticule(frame, { width, height }) {
  const east = cosine(frame.lat) * frame.scale;
  const [latStep, lonStep] = [stepFor(frame.scale), stepFor(east)];
  const [up, right] = [height / 2 / frame.scale, Math.min(180, width / 2 / east)];
  const lats = multiples(Math.max(-90, frame.lat - up), Math.min(90, frame.lat + up), latStep);
  const lons = multiples(frame.lon - right, frame.lon + right, lonStep);
  return {
    across: lats.map((lat) => {
      return { at: height / 2 - (lat - frame.lat) * frame.scale, text: degrees(lat, latStep, "NS") };
    }),
    down: lons.map((lon) => {
      const shown = lon > 180 ? lon - 360 : lon < -180 ? lon + 360 : lon;
      return { at: width / 2 + (lon - frame.lon) * east, text: degrees(shown, lonStep, "EW") };
    }),
  };
}

/** Returns a scale bar {pixels, text} of 1, 2 or 5 times a power of ten metres, exact at the centre of the map. */
export function scaleBar(frame) {
  const longest = (BAR_PIXELS_MAX / frame.scale) * METRES_PER_DEGREE;
  const power = 10 ** Math.floor(Math.log10(longest));
  const metres = [5, 2, 1].map((each) => each * power).find((each) => each <= longest);
  const text = metres >= 1000 ? `${(metres / 1000).toLocaleString("en")} km` : `${metres} m`;
  return { pixels: (metres / METRES_PER_DEGREE) * frame.scale, text };
}
