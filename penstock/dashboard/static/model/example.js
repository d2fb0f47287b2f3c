// An example event that can be posted unchanged, built from the fields of a stream.

const SCALARS = [
  [/^(bool)/i, () => true],
  [/^epoch/i, (now) => now.valueOf()],
  [/^(timestamp|datetime)/i, (now) => now.toISOString()],
  [/^date/i, (now) => now.toISOString().slice(0, 10)],
  [/^(u?int|bigint|long|smallint)/i, () => 1],
  [/^(float|double|halffloat)/i, () => 1.5],
  [/^decimal/i, () => "1.50"],
  [/^(binary|bytes)/i, () => "aGVsbG8="],
  [/^uuid/i, () => "123e4567-e89b-42d3-a456-426614174000"],
  [/^(list|array)/i, () => []],
  [/^(map|dict)/i, () => ({})],
];

/** Splits `a: int64, b: struct<c: string>` at the commas outside brackets. */
function parts(text) {
  let depth = 0;
  const found = [""];
  for (const letter of text) {
    depth += "<([".includes(letter) - ">)]".includes(letter);
    if (letter === "," && depth === 0) found.push("");
    else found[found.length - 1] += letter;
  }
  return found.map((part) => part.trim()).filter(Boolean);
}

function valueOf(type, name, now) {
  if (/\|\s*(None|null)$/.test(type)) return null;
  const struct = /^struct<(.*)>$/is.exec(type);
  if (struct) {
    const fields = parts(struct[1]).map((part) => /^([^:]+):\s*(.*)$/s.exec(part)).filter(Boolean);
    return Object.fromEntries(fields.map(([, field, inner]) => [field.trim(), valueOf(inner, field.trim(), now)]));
  }
  const quoted = /^(?:literal\[|enum\[)?\s*["']([^"']*)["']/i.exec(type);
  if (quoted) return quoted[1];
  const scalar = SCALARS.find(([pattern]) => pattern.test(type));
  return scalar ? scalar[1](now) : `${name}-1`;
}

export function exampleEvent(stream, now = new Date()) {
  return Object.fromEntries(stream.fields.map(({ name, type }) => [name, valueOf(type ?? "", name, now)]));
}

/**
 * Returns the command that posts the example: one line that is safe to paste into a POSIX shell, no matter what the
 * names are. If a key is required, the line uses the shell variable KEY.
 */
export function curlCommand(stream, base, needsKey = false, now = new Date()) {
  const body = JSON.stringify(exampleEvent(stream, now));
  const url = new URL(`v1/streams/${encodeURIComponent(stream.name)}`, base).href;
  return command(url, body, needsKey);
}

/** Returns the command that registers a webhook for a stream. */
export function webhookCommand(name, base, needsKey = false) {
  const body = JSON.stringify({ url: "https://you.example/hook", stream: name });
  return command(new URL("v1/webhooks", base).href, body, needsKey);
}

function command(url, body, needsKey) {
  const proof = needsKey ? ` -H "Authorization: Bearer $KEY"` : "";
  return `curl ${quote(url)}${proof} -H 'content-type: application/json' -d ${quote(body)}`;
}

function quote(text) {
  return /^[\w:/.-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`;
}
