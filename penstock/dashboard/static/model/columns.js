// The columns of a table: the kinds of their values, their order, and the comparison of rows.

const NUMBER = /^(u?int|bigint|smallint|tinyint|long|double|float|decimal|halffloat)/i;
const DIGITS_MAX = 4;
const SAMPLE_ROWS = 50;
const STAMP = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)$/;
const TIME = /^(timestamp|datetime|epoch)/i;

/** Whether a value is a time window in Spark's form: a struct with a start and an end. */
export function isWindow(value) {
  return typeof value?.start === "string" && typeof value?.end === "string";
}

function kindOf({ type }, sample) {
  if (NUMBER.test(type) || typeof sample === "number") return "number";
  if (TIME.test(type) || (typeof sample === "string" && STAMP.test(sample))) return "time";
  if (isWindow(sample) || /^struct<\s*start\b.*\bend\b/i.test(type)) return "window";
  return "text";
}

/** Returns how many decimals to show in a number column: the same for all rows, so that the decimal points line up. */
function digitsOf(name, entries) {
  const lengths = entries.slice(0, SAMPLE_ROWS).map(({ row }) => {
    const value = row[name];
    const whole = typeof value !== "number" || Number.isInteger(value);
    return whole ? 0 : (String(value).split(".")[1]?.length ?? DIGITS_MAX);
  });
  return Math.min(DIGITS_MAX, Math.max(0, ...lengths));
}

/**
 * Returns the columns {name, kind, key, digits} of a table: key columns first, in the key's order, the rest as
 * declared.
 * While the engine starts, `declared` may be empty; then the first row is used.
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

/** Compares two values of a column; missing values come last in either direction. */
export function compare(a, b, kind, down) {
  const [left, right] = [rank(a, kind), rank(b, kind)];
  if (left === null || right === null) return (left === null) - (right === null);
  const order = left < right ? -1 : left > right ? 1 : 0;
  return down ? -order : order;
}

/** Returns the default order of a view: by rank; otherwise the newest window or time first; otherwise by key. */
export function defaultSort(view, columns) {
  if (view.by) return { column: view.by, down: true };
  const timely = ({ key, kind }) => key && (kind === "window" || kind === "time");
  const first = columns.find(timely) ?? columns[0];
  return first ? { column: first.name, down: timely(first) } : null;
}

/** Sorts entries by a column; entries with equal values are sorted by identity, so that they do not swap places. */
export function sorted(entries, columns, sort) {
  const column = columns.find((each) => each.name === sort?.column);
  if (!column) return [...entries];
  return [...entries].sort(
    (a, b) => compare(a.row[column.name], b.row[column.name], column.kind, sort.down) || compare(a.id, b.id, "text"),
  );
}

/** Returns the rows of the newest window, if the key contains a window: the rows that a ranked view shows. */
export function newestWindow(entries, columns) {
  const column = columns.find((each) => each.key && each.kind === "window");
  if (!column) return { entries, window: null };
  let window = null;
  for (const { row } of entries) {
    if (isWindow(row[column.name]) && (!window || row[column.name].start > window.start)) window = row[column.name];
  }
  return { entries: entries.filter(({ row }) => row[column.name]?.start === window?.start), window };
}
