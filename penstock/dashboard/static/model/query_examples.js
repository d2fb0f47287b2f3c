// Example queries over the app's own views and streams.

const EACH_MAX = 3; // maximum number of views, and of streams, with examples
const PLAIN = /^[a-z_][a-z0-9_]*$/;
const RESERVED = new Set(
  ("all and any as asc both case cast check collate column constraint create default desc distinct do else end " +
    "except false fetch for foreign from grant group having in initially intersect into lateral leading limit not " +
    "null offset on only or order pivot placing primary qualify references returning select show some summarize " +
    "table then to trailing true union unique unpivot using variadic when where window with").split(" "),
);

/** Returns a name quoted for a query if necessary. */
export function quoted(name) {
  return PLAIN.test(name) && !RESERVED.has(name) ? name : `"${name.replaceAll('"', '""')}"`;
}

function ofView({ name, by }) {
  const order = by ? ` ORDER BY ${quoted(by)} DESC` : "";
  return [{ title: `rows of ${name}`, sql: `SELECT * FROM ${quoted(name)}${order} LIMIT 100` }];
}

function ofStream({ name, key }) {
  const table = quoted(name);
  const latest = `SELECT * FROM ${table} ORDER BY _ingest_time DESC LIMIT 100`;
  const minutes =
    `SELECT date_trunc('minute', _ingest_time) AS minute, count(*) AS events\nFROM ${table}\n` +
    "GROUP BY ALL ORDER BY minute DESC";
  const found = [
    { title: `latest events from ${name}`, sql: latest },
    { title: `${name} per minute`, sql: minutes },
  ];
  if (!key) return found;
  const column = quoted(key);
  const keys = `SELECT ${column}, count(*) AS events\nFROM ${table}\nGROUP BY ${column} ORDER BY events DESC LIMIT 20`;
  return [...found, { title: `${name} by ${key}`, sql: keys }];
}

/** [{title, sql}], views first. */
export function examplesOf({ views, streams }) {
  const declared = streams.filter(({ name }) => !name.endsWith(".failed"));
  return [...views.slice(0, EACH_MAX).flatMap(ofView), ...declared.slice(0, EACH_MAX).flatMap(ofStream)];
}
