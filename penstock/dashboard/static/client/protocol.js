// The protocol of docs/protocol.md as plain functions and values, tested with its vectors.

/** @typedef {Record<string, any>} Row */
/** @typedef {{event: string, cursor: string, data: any}} Message */
/** A target to follow; the `name` of a query is its text.
 * @typedef {{kind: "views" | "streams" | "queries", name: string, where?: string, select?: string}} Target */

export const BACKOFF = { base_ms: 250, cap_ms: 30_000 };
/** The kinds of messages, with a check of their data. @type {Map<string, (data: any) => boolean>} */
const MESSAGES = new Map([
  ["snapshot", (data) => hasLists(data, "rows")],
  ["change", (data) => hasLists(data, "events") || hasLists(data, "upserts", "deletes")],
  ["progress", isObject],
  ["stall", (data) => isObject(data) && typeof data.behind === "number"],
  ["reset", isObject],
]);
const CONTENTS = ["events", "rows", "changes"]; // of a page
const RETRY = new Set([408, 425, 429, 500, 502, 503, 504, 507]);
const NO_USE = new Set(["damaged", "newer_format", "ledger_mismatch", "no_reply_yet"]);
const WAIT_S = 30; // how long a poll waits on the server
const RETRY_AFTER_MS_MAX = 3_600_000; // a browser's timer fires at once if it is set for weeks
const EVENT_CHARS_MAX = 2 ** 28; // maximum length of a server-sent event: about the limit of a string in a browser

/** The server refused a request: `status`, `code` and the whole `problem`. `retry` is true if retrying can help. */
export class Refused extends Error {
  /** @param {any} problem @param {number} [retryAfter_s] */
  constructor(problem, retryAfter_s = 0) {
    super(String(problem?.detail ?? problem?.title ?? "the server refused the request"));
    this.name = "Refused";
    this.problem = problem;
    this.status = Number(problem?.status ?? 0);
    /** @type {string | null} */
    this.code = problem?.code ?? null;
    const told_s = problem?.retry_after_s;
    this.retryAfter_s = retryAfter_s || (typeof told_s === "number" ? told_s : 0);
    this.retry = retriable(this.status, this.code);
  }
}

/** Returns the error for an `error` message. Without a status, it is a server error. @param {any} problem */
export function refusedBy(problem) {
  return new Refused({ status: 500, ...problem });
}

/** A connection ended or could not be made. `counted` is true if the back-off has already begun, or none is needed. */
export class Broken extends Error {
  /** @param {string} message @param {boolean} [counted] */
  constructor(message, counted = false) {
    super(message);
    this.name = "Broken";
    this.counted = counted;
  }
}

/** Whether to retry after an error. @param {number} status @param {string | null} code */
export function retriable(status, code) {
  return RETRY.has(status) && !NO_USE.has(code ?? "");
}

/** Returns the wait after this number of consecutive failures, partly random so that clients do not retry together.
 * @param {number} failures @param {number} random */
export function backoff_ms(failures, random, { base_ms, cap_ms } = BACKOFF, retryAfter_ms = 0) {
  const bound = Math.min(cap_ms, base_ms * 2 ** failures);
  return Math.max(bound * (0.5 + 0.5 * random), Math.min(retryAfter_ms, RETRY_AFTER_MS_MAX) * (1 + 0.5 * random));
}

const LONG_NUMBER = /\d{16}/;
const STRING_OR_NUMBER = /"[^"\\]*(?:\\.[^"\\]*)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;

/**
 * JSON.parse that keeps all digits of integers: an integer beyond 2^53 becomes a string, so that two keys that differ
 * in the last digit stay different. The slower method is used only if there is a long run of digits.
 * @param {string} text
 */
export function parse(text) {
  if (!LONG_NUMBER.test(text)) return JSON.parse(text);
  return JSON.parse(text.replace(STRING_OR_NUMBER, (found) => {
    const whole = /^-?\d+$/.test(found);
    return whole && !Number.isSafeInteger(Number(found)) ? `"${found}"` : found;
  }));
}

/** Parses a message from its text, or from the data of an event; throws `Broken` if it is invalid. @param {string} text
 * @param {{event: string, id: string}} [of] @returns {{id?: string, event: string, cursor?: string, data?: any}} */
export function messageOf(text, of) {
  let message;
  try {
    message = of ? { event: of.event, cursor: of.id, data: parse(text) } : parse(text);
  } catch {
    throw new Broken("the message is not JSON");
  }
  const { event, cursor, data } = message ?? {};
  const whole = isText(event) && (!MESSAGES.has(event) || (isText(cursor) && MESSAGES.get(event)?.(data)));
  if (!whole) throw new Broken("the message is not valid");
  return message;
}

/** Whether a value is a string that is not empty. @param {any} value */
export function isText(value) {
  return typeof value === "string" && value !== "";
}

/** @param {any} value */
function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** Whether `data` is an object with a list under each of these names. @param {any} data @param {string[]} names */
function hasLists(data, ...names) {
  return isObject(data) && names.every((name) => Array.isArray(data[name]));
}

/** A parser for server-sent events that follows the HTML standard and accepts text in pieces of any size. */
export class EventStream {
  /** The last `retry` field. @type {number | null} */
  retry_ms = null;
  /** The id of the last complete event. */
  lastId = "";
  #id = "";
  #type = "";
  /** @type {string[]} */
  #data = [];
  /** @type {string[]} */
  #line = [];
  #afterReturn = false;
  #size = 0;

  /** Returns the server-sent events that this piece of text completes.
   * @param {string} text @returns {{event: string, data: string, id: string}[]} */
  push(text) {
    if (text === "") return [];
    const rest = this.#afterReturn && text.startsWith("\n") ? text.slice(1) : text;
    this.#afterReturn = text.endsWith("\r");
    this.#size += text.length;
    if (this.#size > EVENT_CHARS_MAX) throw new Broken("an event is larger than a page can hold");
    /** @type {{event: string, data: string, id: string}[]} */
    const found = [];
    const [first, ...others] = rest.split(/\r\n|\r|\n/);
    this.#line.push(first);
    for (const next of others) {
      this.#take(this.#line.join(""), found);
      this.#line = [next];
    }
    return found;
  }

  /** @param {string} line @param {{event: string, data: string, id: string}[]} found */
  #take(line, found) {
    if (line === "") return this.#dispatch(found);
    const colon = line.indexOf(":");
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + (line[colon + 1] === " " ? 2 : 1));
    if (field === "event") this.#type = value;
    else if (field === "data") this.#data.push(value);
    else if (field === "id" && !value.includes("\0")) this.#id = value;
    else if (field === "retry" && /^[0-9]+$/.test(value)) this.retry_ms = Number(value);
  }

  /** @param {{event: string, data: string, id: string}[]} found */
  #dispatch(found) {
    this.lastId = this.#id;
    if (this.#data.length) found.push({ event: this.#type || "message", data: this.#data.join("\n"), id: this.#id });
    this.#type = "";
    this.#data = [];
    this.#size = 0;
  }
}

/** Returns the path and parameters of a target. @param {Target} target @param {string | null} [since] */
export function requestOf({ kind, name, where, select }, since) {
  if (kind === "queries") return { path: "v1/query", query: given({ sql: name, since }) };
  return { path: `v1/${kind}/${encodeURIComponent(name)}`, query: given({ since, where, select }) };
}

/** Returns the path and parameters for polling, which waits for news after a cursor.
 * @param {Target} target @param {string | null} since */
export function pollOf(target, since) {
  const words = ["earliest", "latest", null];
  const rows = target.kind === "views" && (since === null || since === "earliest");
  const { path, query } = requestOf(target, rows ? null : (since ?? "latest"));
  const limit = target.kind === "views" ? "all" : null; // all rows are requested, also after a reset
  const more = given({ limit, wait: words.includes(since) ? null : WAIT_S });
  return { path, query: { ...query, ...more } };
}

/** Returns the message that subscribes to a target on a WebSocket, without id and window. @param {Target} target
 * @param {string | null} [since] */
export function subscriptionOf({ kind, name, where, select }, since) {
  const noun = { views: "view", streams: "stream", queries: "query" }[kind];
  return { op: "subscribe", [noun]: name, ...given({ since, where, select }) };
}

/** Returns the entries that have a value. @param {Record<string, any>} values @returns {Record<string, any>} */
export function given(values) {
  return Object.fromEntries(Object.entries(values).filter(([, value]) => value !== undefined && value !== null));
}

/** Returns the page if it is valid, or throws `Broken`.
 * @param {any} page @param {string[]} [contents] one of which it has */
export function pageOf(page, contents = CONTENTS) {
  const content = contents.find((name) => hasLists(page, name));
  const isChange = (/** @type {any} */ each) => hasLists(each, "upserts", "deletes");
  const whole = content && isText(page.cursor) && (content !== "changes" || page.changes.every(isChange));
  if (!whole) throw new Broken("the response is not a page");
  return page;
}

/** Returns the messages in the response to a GET with `since` set to `asked`.
 * @param {any} page @param {string | null} [asked] @returns {Message[]} */
export function messagesOf(page, asked) {
  const { cursor } = pageOf(page);
  if (page.truncated) {
    throw new Refused({ status: 400, code: "truncated", detail: "the response does not contain all rows of the view" });
  }
  const messages = page.reset ? [{ event: "reset", cursor: "earliest", data: { reason: "" } }] : [];
  if (hasLists(page, "rows")) return [...messages, { event: "snapshot", cursor, data: { rows: page.rows } }];
  const data = hasLists(page, "events") ? page.events.length && { events: page.events } : merged(page.changes);
  if (data) return [...messages, { event: "change", cursor, data }];
  return cursor === asked && !page.reset ? [] : [...messages, { event: "progress", cursor, data: {} }];
}

/** Merges changes into one with the same effect; null if empty. @param {{upserts: Row[], deletes: Row[]}[]} changes */
function merged(changes) {
  if (changes.length < 2) return changes[0] ?? null;
  const gone = changes.find(({ deletes }) => deletes.length)?.deletes[0];
  if (!gone) return { upserts: changes.flatMap(({ upserts }) => upserts), deletes: [] };
  const key = Object.keys(gone);
  const last = new Map();
  for (const { upserts, deletes } of changes) {
    for (const row of upserts) last.set(identity(row, key), { row, left: false });
    for (const row of deletes) last.set(identity(row, key), { row, left: true });
  }
  const said = [...last.values()];
  return {
    upserts: said.filter(({ left }) => !left).map(({ row }) => row),
    deletes: said.filter(({ left }) => left).map(({ row }) => row),
  };
}

/** Returns a row's key as a string: equal keys have equal strings. @param {Row} row @param {string[]} key */
export function identity(row, key) {
  return JSON.stringify(key.map((column) => settled(row[column] ?? null)));
}

/** Returns a value with sorted names in its objects; their order means nothing. @param {any} value @returns {any} */
function settled(value) {
  if (value === null || typeof value !== "object") return value;
  if (Array.isArray(value)) return value.map(settled);
  return Object.fromEntries(Object.keys(value).sort().map((name) => [name, settled(value[name])]));
}
