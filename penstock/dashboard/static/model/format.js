// Values as text for people. Numbers are in English notation; times are in the reader's own time zone, with the exact
// UTC time as the tooltip.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const minute = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });
const day = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", year: "numeric" });
const fixed = [];
const CELL_MAX = 400; // characters shown of one value; the API has the rest

/** A number with `digits` decimals. If the number is too small for that, it has three significant digits instead. */
export function number(value, digits = 0) {
  if (typeof value !== "number") return String(value);
  if (value !== 0 && Math.abs(value) < 0.5 * 10 ** -digits) return value.toPrecision(3);
  return decimals(digits).format(value);
}

/** A cached formatter for this number of decimals, because creating a formatter costs a hundred times as much as using
 * one. */
function decimals(digits) {
  const options = { minimumFractionDigits: digits, maximumFractionDigits: digits };
  return (fixed[digits] ??= new Intl.NumberFormat("en", options));
}

/** A count in at most five characters: 12.3K, 4M. */
export function compact(value) {
  return Math.abs(value) < 10_000 ? whole.format(value) : short.format(value);
}

export function rate(value) {
  return value > 0 && value < 10 ? value.toFixed(1) : compact(value ?? 0);
}

export function bytes(value) {
  const units = ["B", "KB", "MB", "GB", "TB"];
  const step = Math.min(units.length - 1, Math.floor(Math.log10(Math.max(1, value)) / 3));
  return `${short.format(value / 1000 ** step)} ${units[step]}`;
}

export function plural(count, noun) {
  return `${compact(count)} ${noun}${count === 1 ? "" : "s"}`;
}

function dated(date) {
  return date.toDateString() === new Date().toDateString() ? "" : `${day.format(date)} `;
}

export function time(text) {
  const date = new Date(text);
  return Number.isNaN(date.valueOf()) ? String(text) : dated(date) + clock.format(date);
}

/** A window as a range of times, with seconds only if they are not zero. */
export function range({ start, end }) {
  const [from, to] = [new Date(start), new Date(end)];
  if (Number.isNaN(from - to)) return `${start} – ${end}`;
  const shown = from.getSeconds() || to.getSeconds() ? clock : minute;
  const last = to.toDateString() === from.toDateString() ? "" : dated(to);
  return `${dated(from)}${shown.format(from)} – ${last}${shown.format(to)}`;
}

export function duration(from, now = Date.now()) {
  const seconds = Math.max(0, Math.floor((now - new Date(from)) / 1000));
  const [days, hours, minutes] = [seconds / 86_400, (seconds / 3600) % 24, (seconds / 60) % 60].map(Math.floor);
  if (days) return `${days} d ${hours} h`;
  if (hours) return `${hours} h ${minutes} min`;
  return minutes ? `${minutes} min` : `${seconds} s`;
}

/** A table cell: {text, title}. The title is the exact value. A number in a key is a name and stays unformatted. */
export function cell(value, { kind, digits, key }) {
  if (value === null || value === undefined) return { text: "–", title: "no value" };
  if (kind === "window" && value.start) return { text: range(value), title: `${value.start} to ${value.end}` };
  if (kind === "time") return { text: time(value), title: String(value) };
  if (kind === "number" && key) return { text: String(value), title: String(value) };
  if (kind === "number") return { text: number(value, digits), title: String(value) };
  const text = typeof value === "object" ? JSON.stringify(value) : String(value);
  return { text: clip(text, CELL_MAX), title: clip(text, CELL_MAX) };
}

export function clip(text, length) {
  return text.length > length ? `${text.slice(0, length)}…` : text;
}

/** Decodes base64, as text if the bytes are text. */
export function decoded(base64) {
  try {
    return new TextDecoder().decode(Uint8Array.from(atob(base64), (each) => each.charCodeAt(0)));
  } catch {
    return String(base64);
  }
}
