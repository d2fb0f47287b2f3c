// The subscription to one target, with automatic reconnects.

import { Unwaited } from "./http.js";
import { Broken, Refused, pageOf, requestOf } from "./protocol.js";

/** @typedef {import("./copy.js").Copy} Copy */
/** @typedef {import("./copy.js").Id} Id */
/** @typedef {import("./saver.js").Saver} Saver */
/** @typedef {import("./link.js").Link} Link */
/** @typedef {import("./link.js").State} State */
/** @typedef {import("./protocol.js").Message} Message */
/** @typedef {import("./protocol.js").Target} Target */

/**
 * @typedef {object} Handlers Each handler may return a promise, which the next message waits for. If a handler throws,
 * the subscription ends, and its position stays before the message.
 * @property {(data: any, about: {cursor: string | null, kept: boolean}) => unknown} [snapshot] `{rows}`: all rows of a
 *   view; `{events}`: the latest events of a stream, if requested with `last`; `kept` if they come from the browser's
 *   storage
 * @property {(data: any, about: {cursor: string}) => unknown} [change] `{upserts, deletes}`, or `{events}`
 * @property {(data: any, about: {cursor: string}) => unknown} [reset] the position is no longer kept: discard the data
 *   that you have
 * @property {(data: any, about: {cursor: string}) => unknown} [stall] `{behind}`: how far the page is behind
 * @property {(data: any, about: {cursor: string}) => unknown} [progress] nothing new
 * @property {(state: State) => void} [state] its new state
 * @property {(error: Error) => void} [error] the subscription has ended, and retrying cannot help
 * @property {(error: Error) => void} [unkept] writing to the browser's storage failed; everything else continues
 */

/** An error thrown by a handler of the page. */
class Failed extends Error {}

export class Subscription {
  /** The page's position: after the last message that its handlers have processed. @type {string | null} */
  cursor = null;
  /** @type {State} */
  state = { phase: "connecting", transport: null, retryAt_ms: null, error: null };
  #link;
  #target;
  #handlers;
  #since;
  #last;
  #copy;
  #saver;
  #after;
  #closed;
  #run = new AbortController();
  /** @type {Promise<void>} */
  #running;
  #kept = false;
  #over = false;
  #failures = 0; // consecutive failures of this subscription alone

  /**
   * @param {Link} link @param {Target} target @param {Handlers} handlers
   * @param {{since?: string, last?: number, copy?: Copy | null, saver?: Saver | null, after?: () => void}} more
   * @param {(closed: Subscription) => void} closed
   */
  constructor(link, target, handlers, { since, last, copy = null, saver = null, after = () => {} }, closed) {
    this.#link = link;
    this.#target = target;
    this.#handlers = handlers;
    this.#since = since ?? null;
    this.#last = target.kind === "streams" && !since ? (last ?? 0) : 0;
    this.#copy = copy;
    this.#saver = saver;
    this.#after = after;
    this.#closed = closed;
    this.#running = this.#restore().then(() => this.#loop());
  }

  /** End the subscription, and write the data to be kept to the store. */
  async close() {
    this.#over = true;
    this.#stop("ended");
    await this.#running;
    await this.#saver?.close();
    this.#closed(this);
  }

  /** Stop receiving messages until `resume` is called, and keep the position. */
  pause() {
    this.#stop("paused");
  }

  /** Continue after a pause, or after an error, from the same position. */
  resume() {
    if (this.#over || !this.#run.signal.aborted) return;
    this.#run = new AbortController();
    this.#running = this.#running.then(() => this.#loop());
  }

  /** Change the filter. A stream continues from its position; a view begins with a new snapshot.
   * @param {{where?: string, select?: string}} filter */
  filter({ where, select }) {
    this.#stop("connecting");
    this.#running = this.#running.then(() => this.#turn({ ...this.#target, where, select }));
    this.resume();
  }

  /** The rows of a view stay until new rows arrive; events are dropped, because new events may have other fields.
   * @param {Target} target */
  #turn(target) {
    this.#target = target;
    if (target.kind === "streams") this.#copy?.take("reset", {});
    else this.cursor = this.#since = null;
    this.#saver?.turn(target, this.cursor);
  }

  /** @param {import("./link.js").Phase} phase @param {Error | null} [error] */
  #stop(phase, error = null) {
    this.#run.abort(new Broken("the subscription was closed", true));
    this.#enter({ phase, transport: null, retryAt_ms: null, error });
  }

  /** @param {State} state */
  #enter(state) {
    const { phase, transport } = this.state;
    this.state = state;
    if (phase !== state.phase || transport !== state.transport) this.#handlers.state?.(state);
  }

  async #restore() {
    const cursor = (await this.#saver?.load()) ?? null;
    if (cursor === null || !this.#copy) return;
    this.#kept = true;
    this.cursor = cursor;
    try {
      if (this.#copy.holds) await this.#handlers.snapshot?.(this.#copy.data, { cursor, kept: true });
      this.#after();
    } catch (error) {
      this.#end(error);
    }
  }

  /** Run the subscription until it is stopped. */
  async #loop() {
    const { signal } = this.#run;
    while (!signal.aborted) {
      try {
        await this.#link.ready(signal);
        if (this.#last && this.cursor === null) await this.#begin(signal);
        const since = this.cursor ?? this.#since;
        const messages = this.#link.messages(this.#target, since, signal, () => this.#heard());
        for await (const message of messages) await this.#take(message);
      } catch (error) {
        if (!signal.aborted) await this.#broke(error, signal);
      }
    }
  }

  /** Load the latest events of a stream. @param {AbortSignal} signal */
  async #begin(signal) {
    const { path, query } = requestOf(this.#target);
    const page = await this.#link.http.json(path, { ...query, last: this.#last }, { signal });
    const { events, cursor } = pageOf(page, ["events"]);
    await this.#take({ event: "snapshot", cursor, data: { events } });
  }

  /** @param {Message} message */
  async #take({ event, cursor, data }) {
    this.#heard();
    this.#enter(this.#link.state);
    const handlers = /** @type {Record<string, Function | undefined>} */ (this.#handlers);
    const known = ["snapshot", "change", "reset", "stall", "progress"].includes(event);
    try {
      if (known) await handlers[event]?.(data, event === "snapshot" ? { cursor, kept: false } : { cursor });
    } catch (cause) {
      throw new Failed("a handler failed", { cause });
    }
    const changed = this.#copy?.take(event, data) ?? null;
    this.cursor = cursor;
    this.#kept = false;
    this.#saver?.note(cursor, changed);
    this.#after();
  }

  /** Reset the failures. */
  #heard() {
    this.#failures = 0;
    this.#link.heard();
  }

  /** @param {unknown} error @param {AbortSignal} signal */
  async #broke(error, signal) {
    if (error instanceof Failed) return this.#end(error.cause);
    if (error instanceof Refused && error.code === "bad_cursor" && this.#kept) return this.#startOver();
    const passes = error instanceof Broken || (error instanceof Refused && error.retry);
    if (!passes) return this.#end(error);
    if (error instanceof Broken && error.counted) return this.#enter({ ...this.#link.state, error });
    if (error instanceof Broken && !(error instanceof Unwaited)) this.#link.failed(error);
    await this.#rest(error, signal);
  }

  /** Wait after a failure of this subscription alone, longer each time, even if others get messages.
   * @param {Error} error
   * @param {AbortSignal} signal */
  async #rest(error, signal) {
    const delay_ms = this.#link.delay_ms(this.#failures++, error);
    this.#enter({ phase: "waiting", transport: null, retryAt_ms: Date.now() + delay_ms, error });
    await this.#link.rest(delay_ms, signal);
  }

  /** Start over, because the stored copy is invalid, and inform the page with a reset. */
  async #startOver() {
    this.#since = this.#target.kind === "streams" ? "earliest" : null;
    try {
      await this.#take({ event: "reset", cursor: "", data: { reason: "the server does not recognise the stored position" } });
    } catch (error) {
      this.#end(error instanceof Failed ? error.cause : error);
    }
    this.cursor = null;
  }

  /** @param {unknown} cause */
  #end(cause) {
    const error = cause instanceof Error ? cause : new Error(String(cause));
    this.#stop("ended", error);
    if (this.#handlers.error) this.#handlers.error(error);
    else console.error("Penstock:", this.#target.name, error);
  }
}
