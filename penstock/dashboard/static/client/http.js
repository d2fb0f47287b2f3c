// Requests, and the two transports that need nothing else: server-sent events and long polling.

import { Broken, EventStream, Refused, messageOf, messagesOf, refusedBy } from "./protocol.js";
import { given, parse, pollOf, requestOf } from "./protocol.js";

/** @typedef {import("./protocol.js").Message} Message */
/** @typedef {import("./protocol.js").Target} Target */

const ANSWER_MS = 60_000;
const FIRST_MS = 10_000; // an event stream begins at once; if it does not, an intermediary is buffering it
const SILENCE_MS = 45_000; // three heartbeats of the server
const POLL_MS = 2_000; // between polls that do not wait on the server
const AT_ONCE_MS = 1_000; // if an empty response to a long poll arrives sooner than this, the server did not wait
const STATUS_MIN = 100; // the lowest HTTP status

/** An event stream is blocked, although other responses arrive. */
export class Unstreamed extends Broken {}

/** A long poll returned nothing, without waiting. The state of the connection stays the same. */
export class Unwaited extends Broken {}

/** Requests to one gateway, with the caller's key. */
export class Http {
  #address;
  #key;

  /** @param {URL} address ends with a slash @param {() => Promise<string | null>} key */
  constructor(address, key) {
    this.#address = address;
    this.#key = key;
  }

  /**
   * Requests a path and returns the response, if it is successful.
   * @param {string} path @param {Record<string, any>} [query] @param {RequestInit} [init] @returns {Promise<Response>}
   */
  async request(path, query = {}, init = {}) {
    const address = new URL(path, this.#address);
    for (const [name, value] of Object.entries(given(query))) address.searchParams.set(name, String(value));
    const key = await this.#key();
    const headers = { ...init.headers, ...(key ? { Authorization: `Bearer ${key}` } : {}) };
    const asking = fetch(address, { cache: "no-store", redirect: "manual", ...init, headers });
    const answer = await unbroken(asking, init.signal);
    if (!answer.ok) throw await refusal(answer);
    return answer;
  }

  /**
   * Returns the JSON response to a GET, or to the request in `options`.
   * @param {string} path @param {Record<string, any>} [query] @param {RequestInit & {timeout_ms?: number}} [options]
   * @returns {Promise<any>}
   */
  async json(path, query = {}, { timeout_ms = ANSWER_MS, signal, ...init } = {}) {
    const watchdog = new Watchdog(signal);
    const asking = this.request(path, query, { ...init, signal: watchdog.signal });
    return parsed(await watchdog.over(asking.then((answer) => unbroken(answer.text(), watchdog.signal)), timeout_ms));
  }

  /** Returns a page. A long page can take any time to arrive, as long as data keeps arriving.
   * @param {string} path @param {Record<string, any>} query @param {AbortSignal} signal @returns {Promise<any>} */
  async #page(path, query, signal) {
    const watchdog = new Watchdog(signal);
    const answer = await watchdog.over(this.request(path, query, { signal: watchdog.signal }), ANSWER_MS);
    const pieces = [];
    for await (const piece of texts(answer, watchdog, () => SILENCE_MS)) pieces.push(piece);
    return parsed(pieces.join(""));
  }

  /**
   * Follows a target by server-sent events.
   * @param {Target} target @param {string | null} since @param {AbortSignal} signal
   * @param {(retry_ms: number) => void} retry @returns {AsyncGenerator<Message>}
   */
  async *events(target, since, signal, retry) {
    const { path, query } = requestOf(target, since);
    const watchdog = new Watchdog(signal, Unstreamed);
    const headers = { Accept: "text/event-stream" };
    const asking = this.request(`${path}/live`, query, { headers, signal: watchdog.signal });
    const answer = await watchdog.over(asking, FIRST_MS);
    if (!answer.headers.get("content-type")?.startsWith("text/event-stream")) {
      throw new Unstreamed("the response is not an event stream");
    }
    const events = new EventStream();
    let patience_ms = FIRST_MS;
    for await (const text of texts(answer, watchdog, () => patience_ms)) {
      for (const { event, data, id } of events.push(text)) {
        patience_ms = SILENCE_MS;
        watchdog.error = Broken;
        const message = /** @type {Message} */ (messageOf(data, { event, id }));
        if (event === "error") throw refusedBy(message.data);
        if (message.cursor) yield message;
      }
      if (events.retry_ms !== null) retry(events.retry_ms);
    }
    throw new Broken("the event stream ended");
  }

  /**
   * Follows a target by GETs. With `wait`, each GET waits on the server for news; `waited` is called after a wait
   * without news.
   * @param {Target} target @param {string | null} since @param {AbortSignal} signal @param {boolean} wait
   * @param {() => void} waited @returns {AsyncGenerator<Message>}
   */
  async *pages(target, since, signal, wait, waited) {
    if (target.kind === "queries") {
      throw new Refused({ code: "no_transport", detail: "queries need a WebSocket or server-sent events" });
    }
    for (let asked = since; ; ) {
      const { path, query } = pollOf(target, asked);
      const began_ms = Date.now();
      const page = await this.#page(path, wait ? query : { ...query, wait: null }, signal);
      const messages = messagesOf(page, asked);
      yield* messages;
      asked = page.cursor;
      if (messages.length) continue;
      if (!wait) await sleep(POLL_MS, signal);
      else if (Date.now() - began_ms < AT_ONCE_MS) throw new Unwaited("the server answered a long poll without waiting");
      else waited();
    }
  }
}

/** Aborts a request if no bytes arrive for too long. */
class Watchdog {
  #controller = new AbortController();

  /** @param {AbortSignal | null} [signal] @param {typeof Broken} [error] */
  constructor(signal, error = Broken) {
    this.signal = signal ? AbortSignal.any([signal, this.#controller.signal]) : this.#controller.signal;
    this.error = error;
  }

  /** @template T @param {Promise<T>} waiting @param {number} patience_ms @returns {Promise<T>} */
  async over(waiting, patience_ms) {
    const timer = setTimeout(() => this.#controller.abort(new this.error("the server was silent for too long")), patience_ms);
    try {
      return await waiting;
    } finally {
      clearTimeout(timer);
    }
  }
}

/** Parses a complete text as JSON. @param {string} text @returns {any} */
function parsed(text) {
  try {
    return parse(text);
  } catch {
    throw new Broken("the response is not JSON");
  }
}

/** Yields the text of a response as it arrives. @param {Response} answer @param {Watchdog} watchdog
 * @param {() => number} patience_ms @returns {AsyncGenerator<string>} */
async function* texts(answer, watchdog, patience_ms) {
  if (!answer.body) return;
  const reader = answer.body.getReader();
  const decoder = new TextDecoder();
  try {
    for (;;) {
      const { value, done } = await watchdog.over(unbroken(reader.read(), watchdog.signal), patience_ms());
      if (done) return;
      yield decoder.decode(value, { stream: true });
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** Waits for the network; failures become `Broken`, unless the wait was aborted on purpose. @template T
 * @param {Promise<T>} waiting @param {AbortSignal | null} [signal] @returns {Promise<T>} */
async function unbroken(waiting, signal) {
  try {
    return await waiting;
  } catch (error) {
    signal?.throwIfAborted();
    throw new Broken(`no response: ${/** @type {Error} */ (error).message}`);
  }
}

/** Returns the error of an unsuccessful response. A response that was cut off within its status line has an invalid
 * status.
 * @param {Response} answer */
async function refusal(answer) {
  if (answer.type === "opaqueredirect") {
    return new Refused({ status: 0, code: "redirected", detail: "redirects are not followed, because of the key" });
  }
  if (answer.status < STATUS_MIN) return new Broken(`the response was cut off: its status is ${answer.status}`);
  const text = await answer.text().catch(() => "");
  const after_s = Number(answer.headers.get("retry-after")) || 0;
  try {
    return new Refused({ ...JSON.parse(text), status: answer.status }, after_s);
  } catch {
    return new Refused({ status: answer.status, detail: `${answer.status} ${text.slice(0, 200)}` }, after_s);
  }
}

/** @param {number} delay_ms @param {AbortSignal | null} [signal] @returns {Promise<void>} */
export function sleep(delay_ms, signal) {
  return new Promise((resolve, reject) => {
    const stop = () => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", stop);
      resolve();
    }, delay_ms);
    signal?.addEventListener("abort", stop, { once: true });
    if (signal?.aborted) stop();
  });
}
