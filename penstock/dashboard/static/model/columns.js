// The columns of a table: what kind of values they hold, in which order they stand, and how rows compare.

const NUMBER = /^(u?int|bigint|smallint|tinyint|long|double|float|decimal|halffloat)/i;
const DIGITS_MAX = 4;
const SAMPLE_ROWS = 50;
const STAMP = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)$/;
const TIME = /^(timestamp|datetime|epoch)/i;

/** A time window as Spark gives it: a struct of a start and an end. */
export function isWindow(value) {
  return typeof value?.start === "string" && typeof value?.end === "string";
}

function kindOf({ type }, sample) {
  if (NUMBER.test(type) || typeof sample === "number") return "number";
  if (TIME.test(type) || (typeof sample === "string" && STAMP.test(sample))) return "time";
  if (isWindow(sample) || /^struct<\s*start\b.*\bend\b/i.test(type)) return "window";
  return "text";
}

/** How many decimals the numbers of a column need, so that all its rows show the same and the points stand in line. */
function digitsOf(name, entries) {
  const lengths = entries.slice(0, SAMPLE_ROWS).map(({ row }) => {
    const value = row[name];
    const whole = typeof value !== "number" || Number.isInteger(value);
    return whole ? 0 : (String(value).split(".")[1]?.length ?? DIGITS_MAX);
  });
  return Math.min(DIGITS_MAX, Math.max(0, ...lengths));
}

/**
 * Columns {name, kind, key, digits} of a table: key columns first, in the key's order, the rest as declared. `declared`
 * may be empty while the engine starts; the first row then tells.
 */
export function columnsOf(declared, key, entries) {
  const sample = entries[0]?.row;
  const known = declared?.length ? declared : Object.keys(sample ?? {}).map((name) => ({ name, type: "" }));
  const all = known.map((each) => ({
    name: each.name,
    kind: kindOf(each, sample?.[each.name]),
    key: key.includes(each.name),
    digits: digitsOf(each.name, entries),
  }));
  const keyed = key.map((name) => all.find((each) => each.name === name)).filter(Boolean);
  return [...keyed, ...all.filter((each) => !each.key)];
}

function rank(value, kind) {
  if (value === null || value === undefined) return null;
  if (kind === "number") return Number(value);
  if (kind === "window") return value.start;
  return typeof value === "object" ? JSON.stringify(value) : value;
}

/** Compare two values of a column; what is missing comes last whichever way the order goes. */
export function compare(a, b, kind, down) {
  const [left, right] = [rank(a, kind), rank(b, kind)];
  if (left === null || right === null) return (left === null) - (right === null);
  const order = left < right ? -1 : left > right ? 1 : 0;
  return down ? -order : order;
}

/** The order that a view's reader most likely wants: by rank, else the newest window or time first, else by key. */
export function defaultSort(view, columns) {
  if (view.by) return { column: view.by, down: true };
  const timely = ({ key, kind }) => key && (kind === "window" || kind === "time");
  const first = columns.find(timely) ?? columns[0];
  return first ? { column: first.name, down: timely(first) } : null;
}

/** Entries in order of a column; equal ones in order of their identity, so that they do not dance. */
export function sorted(entries, columns, sort) {
  const column = columns.find((each) => each.name === sort?.column);
  if (!column) return [...entries];
  return [...entries].sort(
    (a, b) => compare(a.row[column.name], b.row[column.name], column.kind, sort.down) || compare(a.id, b.id, "text"),
  );
}

/** The rows of the newest window, if the key has one: what a ranked view shows. */
export function newestWindow(entries, columns) {
  const column = columns.find((each) => each.key && each.kind === "window");
  if (!column) return { entries, window: null };
  let window = null;
  for (const { row } of entries) {
    if (isWindow(row[column.name]) && (!window || row[column.name].start > window.start)) window = row[column.name];
  }
  return { entries: entries.filter(({ row }) => row[column.name]?.start === window?.start), window };
}
