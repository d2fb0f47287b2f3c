// Penstock in a browser: follow streams and views, hold a live copy of a view, send events. No dependencies.
//
//     import { connect } from "https://plant.example/penstock.js";
//     const sales = connect().table("sales", { key: ["product"], keep: "sales" });
//     sales.watch(() => draw(sales.rows));
//
// Each message from the server contains a cursor. After a lost connection, the client resumes after the last cursor, so
// no message is missed or repeated. Data in the browser's storage is stored together with its cursor, so this is also
// true after the page is reloaded.

import { Copy } from "./copy.js";
import { sleep } from "./http.js";
import { Link } from "./link.js";
import { Broken, Refused } from "./protocol.js";
import { Saver } from "./saver.js";
import { storeOf } from "./stores.js";
import { Subscription } from "./subscription.js";
import { Table } from "./table.js";

/** @typedef {import("./link.js").State} State */
/** @typedef {import("./link.js").Transport} Transport */
/** @typedef {import("./protocol.js").Row} Row */
/** @typedef {import("./stores.js").Store} Store */
/** @typedef {import("./subscription.js").Handlers} Handlers */

/**
 * @typedef {object} Options
 * @property {string | null | (() => string | null | Promise<string | null>)} [key] an API key or token, or a function
 *   that returns one for each request and connection; it is sent in a header, never in a URL
 * @property {string} [user] the user of the page: data stored for one user is not shown to another
 * @property {"indexeddb" | "local" | "session" | Store} [storage] the storage for kept data; IndexedDB by default
 * @property {boolean} [pauseHidden] close the connection while the page is hidden
 * @property {Transport[]} [transports] the allowed transports, best first
 * @property {{base_ms?: number, cap_ms?: number}} [backoff] the first wait after a lost connection (250) and the
 *   longest (30,000)
 * @property {(state: State) => void} [state] called when the state of the connection changes
 */
/**
 * @typedef {object} Filter
 * @property {string} [where] a condition in SQL
 * @property {string} [select] a list of columns in SQL
 */
/**
 * @typedef {object} Following
 * @property {string} [since] a cursor, `earliest` or `latest`
 * @property {number} [last] for a stream: begin with this many of its latest events
 * @property {string} [keep] the name under which the cursor and the content are stored in the browser
 * @property {string[]} [key] the key columns of a view; required with `keep`
 */
/**
 * @typedef {object} Tabling
 * @property {string[]} key the key columns of the view
 * @property {import("./table.js").Order} [order] columns, with `-` for descending order, or a function that compares
 *   two rows; by default, the key columns
 * @property {string} [keep] the name under which the rows and the cursor are stored in the browser
 * @property {number} [most] the maximum number of rows to hold, 100,000 by default
 */

const ROWS_MAX = 100_000;
const HIDDEN_MS = 10_000; // a glance at another tab does not cost a reconnect
const PUBLISHES_MAX = 1_000; // calls of `publish` that can wait for one stream; further calls are refused

/**
 * A client of the gateway at `address`, by default the gateway that served this module. It connects when it first
 * follows something.
 * @param {string | URL} [address] @param {Options} [options]
 */
export function connect(address = new URL(".", import.meta.url), options = {}) {
  return new Penstock(address, options);
}

export class Penstock {
  #link;
  #storage;
  #user;
  /** @type {Store | null} */
  #store = null;
  /** @type {Set<Subscription>} */
  #subscriptions = new Set();
  /** @type {Map<string, {waiting: number, last: Promise<any>}>} */
  #lanes = new Map();
  #closing = new AbortController();
  #wanted = true;
  #seen = true;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #leaving;

  /** @param {string | URL} address @param {Options} options */
  constructor(address, options = {}) {
    const { key = null, user = "", storage = "indexeddb", pauseHidden = false, transports, backoff, state } = options;
    const base = new URL(address, globalThis.document?.baseURI);
    if (!base.pathname.endsWith("/")) base.pathname += "/";
    this.#storage = storage;
    this.#user = user;
    const ask = async () => (typeof key === "function" ? await key() : key);
    this.#link = new Link(base, ask, transports ?? ["websocket", "sse", "poll"], state ?? (() => {}), { backoff });
    const { signal } = this.#closing;
    const retry = () => this.#link.retry();
    for (const back of ["online", "pageshow"]) globalThis.addEventListener?.(back, retry, { signal });
    if (pauseHidden) globalThis.document?.addEventListener("visibilitychange", () => this.#look(), { signal });
  }

  /** The state of the connection. */
  get state() {
    return this.#link.state;
  }

  /**
   * Follow a stream, a view or a query (whose name is its SQL). Messages arrive one after the other, each exactly once.
   * @param {"views" | "streams" | "queries"} kind @param {string} name
   * @param {Filter & Following} [options] @param {Handlers} [handlers]
   */
  follow(kind, name, { where, select, since, last = 0, keep, key } = {}, handlers = {}) {
    const view = kind !== "streams";
    if (keep && view && !key) throw new TypeError("to keep a view, pass its key columns, as in key: ['product']");
    const copy = keep ? new Copy(view ? (key ?? []) : null, view ? ROWS_MAX : last) : null;
    return this.#follow({ kind, name, where, select }, handlers, { since, last, copy, keep });
  }

  /**
   * A live copy of a view.
   * @param {string} view @param {Filter & Tabling} options
   */
  table(view, { key, order = key, where, select, keep, most = ROWS_MAX }) {
    const copy = new Copy(key, most);
    const target = { kind: /** @type {const} */ ("views"), name: view, where, select };
    return new Table(key, copy, order, (handlers, after) => this.#follow(target, handlers, { copy, keep, after }));
  }

  /** @param {import("./protocol.js").Target} target @param {Handlers} handlers
   * @param {{since?: string, last?: number, copy: Copy | null, keep?: string, after?: () => void}} more */
  #follow(target, handlers, { since, last, copy, keep, after }) {
    const unkept = handlers.unkept ?? ((error) => console.warn("Penstock cannot keep", target.name, error));
    const what = { whose: [this.#link.address, this.#user], target };
    const saver = copy && keep ? new Saver(this.#kept(), keep, what, copy, unkept) : null;
    const closed = (/** @type {Subscription} */ each) => void this.#subscriptions.delete(each);
    const subscription = new Subscription(this.#link, target, handlers, { since, last, copy, saver, after }, closed);
    this.#subscriptions.add(subscription);
    return subscription;
  }

  #kept() {
    this.#store ??= storeOf(this.#storage);
    return this.#store;
  }

  /**
   * Send an event or an array of events; resolves to the response once they are durable. Retries use the same key, so
   * each event is accepted only once; calls for one stream are sent in order. Throws `Refused` if retrying cannot help.
   * @param {string} stream @param {Row | Row[]} events
   * @param {{idempotencyKey?: string, signal?: AbortSignal}} [options] @returns {Promise<any>}
   */
  publish(stream, events, { idempotencyKey = randomKey(), signal } = {}) {
    const lane = this.#lanes.get(stream) ?? { waiting: 0, last: Promise.resolve() };
    if (lane.waiting >= PUBLISHES_MAX) return Promise.reject(new Error(`${PUBLISHES_MAX} calls are already waiting for ${stream}`));
    const [path, body] = [`v1/streams/${encodeURIComponent(stream)}`, JSON.stringify(events)];
    const until = AbortSignal.any([this.#closing.signal, ...(signal ? [signal] : [])]);
    const sent = lane.last.then(() => this.#post(path, body, idempotencyKey, until));
    lane.waiting++;
    lane.last = sent.catch(() => {}).then(() => --lane.waiting || this.#lanes.delete(stream));
    this.#lanes.set(stream, lane);
    return sent;
  }

  /** @param {string} path @param {string} body @param {string} key @param {AbortSignal} signal */
  async #post(path, body, key, signal) {
    const headers = { "Content-Type": "application/json", "Idempotency-Key": key };
    for (let failures = 0; ; failures++) {
      try {
        return await this.#link.http.json(path, {}, { method: "POST", body, headers, signal });
      } catch (error) {
        signal.throwIfAborted();
        if (!(error instanceof Broken || (error instanceof Refused && error.retry))) throw error;
        await sleep(this.#link.delay_ms(failures, error), signal);
      }
    }
  }

  /**
   * The result of a SQL query on views and recent events of streams. Throws `Refused`.
   * @param {string} sql @param {{limit?: number, signal?: AbortSignal, timeout_ms?: number}} [options]
   * @returns {Promise<any>}
   */
  query(sql, { limit, ...options } = {}) {
    return this.post("v1/query", { sql, limit }, options);
  }

  /**
   * The JSON response to a GET, such as `v1/app`. Throws `Refused`.
   * @param {string} path @param {Record<string, any>} [query]
   * @param {{signal?: AbortSignal, timeout_ms?: number}} [options] @returns {Promise<any>}
   */
  get(path, query, options) {
    return this.#link.http.json(path, query, options);
  }

  /**
   * The JSON response to a POST, such as `v1/webhooks`. The request is sent only once; if no response arrives, it may
   * still have taken effect. Throws `Refused`.
   * @param {string} path @param {any} [value] @param {{signal?: AbortSignal, timeout_ms?: number}} [options]
   * @returns {Promise<any>}
   */
  post(path, value = {}, options = {}) {
    const headers = { "Content-Type": "application/json" };
    return this.#link.http.json(path, {}, { method: "POST", body: JSON.stringify(value), headers, ...options });
  }

  /** Close the connection until `resume` is called, and keep every position. */
  pause() {
    this.#wanted = false;
    this.#link.pause();
  }

  /** Connect, or retry now instead of at the end of the back-off. */
  resume() {
    this.#wanted = true;
    if (this.#seen) this.#link.resume();
  }

  /** Delete the data stored under a name. @param {string} name */
  forget(name) {
    return this.#kept().forget(name);
  }

  /** Close the client. Data to be kept is written first; unsent events are dropped. */
  async close() {
    this.#closing.abort(new Broken("the client was closed"));
    clearTimeout(this.#leaving);
    await Promise.all([...this.#subscriptions].map((subscription) => subscription.close()));
    this.#link.pause();
  }

  #look() {
    clearTimeout(this.#leaving);
    const leave = () => {
      this.#seen = false;
      this.#link.pause();
    };
    if (document.hidden) this.#leaving = setTimeout(leave, HIDDEN_MS);
    else {
      this.#seen = true;
      if (this.#wanted) this.#link.resume();
    }
  }
}

function randomKey() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
