// Rows with a position: which views have them, their colours, and the map frame around them.

import { columnsOf } from "./columns.js";

export const STATES_MAX = 6;
const STATE_NAMES = /^(state|status|standing|kind|type|class|category|level|severity|mode|phase)$/i;
const SAMPLE_ROWS = 2_000;
const COSINE_MIN = 0.2; // near the poles, a map would be much wider than it is high
const PIXELS_PER_DEGREE_MAX = 55_000; // two metres per pixel: limits how much a single point is magnified
const MARGIN = 44; // pixels that a new frame leaves around the points
const EDGE = 10; // if a point is nearer to the edge than this, a new frame is needed
const ROOMY = 1.6; // a new frame is also needed if the old one could be magnified by this factor

/** Whether a table has a numeric `lat` and a numeric `lon`. */
export function hasPlaces(columns) {
  return ["lat", "lon"].every((name) => columns.some((each) => each.name === name && each.kind === "number"));
}

/** Returns the companion views, which have positions and also the key columns of this view. */
export function companionsOf(view, app) {
  return app.views.filter((other) => {
    const columns = columnsOf(other.columns, other.key, []);
    const names = columns.map(({ name }) => name);
    return other.name !== view.name && hasPlaces(columns) && view.key.every((name) => names.includes(name));
  });
}

/** Whether a view is drawn on the map of another one, as its companion. */
export function isCompanion(view, app) {
  const bases = app.views.filter((base) => hasPlaces(columnsOf(base.columns, base.key, [])));
  return bases.some((base) => companionsOf(base, app).some(({ name }) => name === view.name));
}

/** Returns the entries with a valid position. */
export function placed(entries) {
  const within = (value, limit) => value !== null && Math.abs(value) <= limit;
  return entries.filter(({ row }) => within(row.lat, 90) && within(row.lon, 180));
}

/**
 * Returns the column that contains the rows' states: a string column with few distinct values, preferably with a name
 * that suggests a state. Null if there is none.
 */
export function stateColumn(columns, entries) {
  const sample = entries.slice(0, SAMPLE_ROWS);
  const counts = columns
    .filter(({ kind, key }) => kind === "text" && !key)
    .map((column) => ({ column, values: new Set(sample.map(({ row }) => stateOf(row, column))).size }))
    .filter(({ values }) => values > 0 && values <= STATES_MAX);
  const named = counts.find(({ column }) => STATE_NAMES.test(column.name));
  return (named ?? counts.find(({ values }) => values > 1))?.column ?? null;
}

export function stateOf(row, column) {
  const value = row[column.name];
  return value === null || value === undefined ? "–" : String(value);
}

function wrapped(degrees) {
  return ((degrees + 540) % 360) - 180;
}

/** Returns the centre and width of the shortest arc that contains all longitudes, even if it crosses the 180th
 * meridian. */
function arc(longitudes) {
  const sorted = Float64Array.from(longitudes).sort();
  let [gap, start] = [sorted[0] + 360 - sorted.at(-1), sorted[0]];
  for (let i = 1; i < sorted.length; i++) {
    if (sorted[i] - sorted[i - 1] > gap) [gap, start] = [sorted[i] - sorted[i - 1], sorted[i]];
  }
  const width = 360 - gap;
  return { middle: wrapped(start + width / 2), width };
}

/** Returns a frame {lat, lon, scale} around the entries: its centre, and pixels per degree of latitude. */
export function fit(entries, { width, height }) {
  let [south, north] = [90, -90];
  for (const { row } of entries) [south, north] = [Math.min(south, row.lat), Math.max(north, row.lat)];
  const { middle, width: span } = arc(entries.map(({ row }) => row.lon));
  const lat = (south + north) / 2;
  const across = (width - 2 * MARGIN) / Math.max(span * cosine(lat), 1e-9);
  const down = (height - 2 * MARGIN) / Math.max(north - south, 1e-9);
  return { lat, lon: middle, scale: Math.min(across, down, PIXELS_PER_DEGREE_MAX) };
}

/**
 * Whether the entries have left a frame, or have shrunk to a small part of it. Otherwise the frame is kept, so that the
 * map does not move too often.
 */
export function outgrown(frame, entries, size) {
  const outside = entries.some(({ row }) => {
    const { x, y } = project(frame, size, row);
    return x < EDGE || y < EDGE || x > size.width - EDGE || y > size.height - EDGE;
  });
  return outside || fit(entries, size).scale > ROOMY * frame.scale;
}

/** Returns the length of a degree of longitude relative to one of latitude. */
export function cosine(lat) {
  return Math.max(COSINE_MIN, Math.cos((lat * Math.PI) / 180));
}

/** Returns the pixel position of a place in a frame, from the upper left. */
export function project(frame, { width, height }, { lat, lon }) {
  const x = width / 2 + wrapped(lon - frame.lon) * cosine(frame.lat) * frame.scale;
  return { x, y: height / 2 - (lat - frame.lat) * frame.scale };
}

/** Interpolates between two frames; `part` goes from 0 to 1. */
export function between(from, to, part) {
  return {
    lat: from.lat + (to.lat - from.lat) * part,
    lon: wrapped(from.lon + wrapped(to.lon - from.lon) * part),
    scale: from.scale * (to.scale / from.scale) ** part,
  };
}
