// The connection to one gateway: chooses a transport that works, and has one back-off for all subscriptions.

import { Http, Unstreamed } from "./http.js";
import { BACKOFF, Broken, Refused, backoff_ms, given } from "./protocol.js";
import { Socket, WINDOW } from "./socket.js";

/** @typedef {import("./protocol.js").Message} Message */
/** @typedef {import("./protocol.js").Target} Target */
/** @typedef {"idle" | "connecting" | "live" | "waiting" | "paused" | "ended"} Phase */
/** @typedef {"websocket" | "sse" | "poll"} Transport */
/** @typedef {{phase: Phase, transport: Transport | null, retryAt_ms: number | null, error: Error | null}} State */

const STREAMS_MAX = 4; // a browser opens six connections to a host with HTTP/1.1, so two are left for requests
const LESSER_MS = 60_000; // time on a fallback transport before a WebSocket is tried again; doubles, up to 16 minutes
const PROBE_MS = 10_000;

export class Link {
  /** @type {State} */
  state = { phase: "idle", transport: null, retryAt_ms: null, error: null };
  #address;
  #key;
  #watcher;
  #window;
  /** @type {Transport[]} */
  #transports;
  #backoff;
  #failures = 0;
  #paused = false;
  /** @type {ReturnType<typeof setTimeout> | null} */
  #timer = null;
  /** @type {Set<() => void>} */
  #waiting = new Set();
  /** @type {Set<() => void>} */
  #resting = new Set();
  /** @type {Promise<Socket> | null} */
  #socket = null;
  #session = new AbortController();
  #lesser = 0; // how many times in a row a fallback transport was chosen
  #streams = 0;
  #unstreamed = false;

  /** @param {URL} address @param {() => Promise<string | null>} key @param {Transport[]} transports
   * @param {(state: State) => void} watcher @param {{backoff?: Partial<typeof BACKOFF>, window?: number}} [more] */
  constructor(address, key, transports, watcher, { backoff = {}, window = WINDOW } = {}) {
    this.#address = address;
    this.#key = key;
    this.#transports = transports;
    this.#watcher = watcher;
    this.#backoff = { ...BACKOFF, ...given(backoff) };
    this.#window = window;
    this.http = new Http(address, key);
  }

  get address() {
    return this.#address.href;
  }

  /** Waits until the next attempt to connect: not at all, or until the end of the back-off or a pause.
   * @param {AbortSignal} signal */
  async ready(signal) {
    while (!signal.aborted && (this.#paused || this.#timer)) {
      await new Promise((resolve) => {
        const go = () => {
          this.#waiting.delete(go);
          signal.removeEventListener("abort", go);
          resolve(null);
        };
        this.#waiting.add(go);
        signal.addEventListener("abort", go);
      });
    }
    signal.throwIfAborted();
  }

  /** Waits for the delay of one subscription, or until all subscriptions must retry now. The others continue.
   * @param {number} delay_ms
   * @param {AbortSignal} signal @returns {Promise<void>} */
  rest(delay_ms, signal) {
    return new Promise((resolve) => {
      const go = () => {
        clearTimeout(timer);
        this.#resting.delete(go);
        signal.removeEventListener("abort", go);
        resolve();
      };
      const timer = setTimeout(go, delay_ms);
      this.#resting.add(go);
      signal.addEventListener("abort", go);
    });
  }

  /** Returns the wait after this number of consecutive failures, the last of which is `error`.
   * @param {number} failures @param {Error} error */
  delay_ms(failures, error) {
    const after_ms = error instanceof Refused ? error.retryAfter_s * 1_000 : 0;
    return backoff_ms(failures, Math.random(), this.#backoff, after_ms);
  }

  /** Make all subscriptions wait, because the connection failed. @param {Error} error */
  failed(error) {
    if (this.#paused || this.#timer) return;
    const delay_ms = this.delay_ms(this.#failures++, error);
    this.#lesser = 0;
    this.#timer = setTimeout(() => this.#proceed(), delay_ms);
    this.#enter("waiting", null, { retryAt_ms: Date.now() + delay_ms, error });
  }

  /** Reset the failures, because a message arrived. */
  heard() {
    this.#failures = 0;
  }

  /** Retry now instead of at the end of the back-off. */
  retry() {
    for (const go of [...this.#resting]) go();
    this.#proceed();
  }

  /** End the back-off. */
  #proceed() {
    if (this.#timer) clearTimeout(this.#timer);
    else if (this.#waiting.size === 0) return;
    this.#timer = null;
    if (this.#paused) return;
    this.#enter("connecting");
    for (const go of [...this.#waiting]) go();
  }

  /** Close all connections until `resume`. */
  pause() {
    if (this.#paused) return;
    this.#paused = true;
    this.#lesser = 0;
    this.#drop();
    this.#enter("paused");
  }

  resume() {
    this.#paused = false;
    this.retry();
  }

  #drop() {
    this.#socket?.then((socket) => socket.close(), () => {});
    this.#socket = null;
    this.#session.abort(new Broken("the connection was closed", true));
    this.#session = new AbortController();
  }

  /** @param {Phase} phase @param {Transport | null} [transport] @param {Partial<State>} [more] */
  #enter(phase, transport = null, more = {}) {
    if (phase === "live" && this.state.phase === phase && this.state.transport === transport) return;
    this.state = { phase, transport, retryAt_ms: null, error: null, ...more };
    this.#watcher(this.state);
  }

  /** Yields the messages of a target until the connection fails. `heard` is called for a valid, empty response.
   * @param {Target} target @param {string | null} since @param {AbortSignal} signal @param {() => void} heard
   * @returns {AsyncGenerator<Message>} */
  async *messages(target, since, signal, heard) {
    if (this.#transports.includes("websocket") && !this.#lesser) {
      const socket = await (this.#socket ??= this.#opened());
      yield* socket.follow(target, since, signal);
      return;
    }
    const both = AbortSignal.any([signal, this.#session.signal]);
    const room = this.#streams < STREAMS_MAX;
    const streamed = room && this.#transports.includes("sse") && !this.#unstreamed;
    const retry = (/** @type {number} */ ms) => (this.#backoff.base_ms = Math.min(ms, this.#backoff.cap_ms));
    const { http } = this;
    this.#streams += room ? 1 : 0;
    try {
      const way = streamed ? http.events(target, since, both, retry) : http.pages(target, since, both, room, heard);
      for await (const message of way) {
        this.#enter("live", streamed ? "sse" : "poll");
        yield message;
      }
    } catch (error) {
      this.#unstreamed ||= error instanceof Unstreamed && this.#transports.includes("poll");
      throw error;
    } finally {
      this.#streams -= room ? 1 : 0;
    }
  }

  /** Returns the shared socket. If opening it fails although the gateway answers, either an intermediary blocks it, or
   * it was refused. A browser does not reveal which, but a fallback transport gets through or shows the reason. */
  async #opened() {
    const { signal } = this.#session;
    this.#enter("connecting");
    try {
      const socket = await this.#open();
      if (signal.aborted) socket.close();
      signal.throwIfAborted();
      this.#enter("live", "websocket");
      return socket;
    } catch (error) {
      const answered = !signal.aborted && this.#transports.length > 1 && (await this.#answers());
      signal.throwIfAborted();
      this.#socket = null;
      if (answered) this.#takeLesser();
      else this.failed(/** @type {Error} */ (error));
      throw new Broken("the WebSocket could not be opened", true);
    }
  }

  async #open() {
    const key = await this.#key();
    const address = new URL("v1/live", this.#address).href.replace(/^http/, "ws");
    const socket = await Socket.open(address, key ? ["penstock.v1", `penstock.key.${key}`] : []);
    return new Socket(socket, this.#window, () => {
      this.#socket = null;
      this.failed(new Broken("the connection ended"));
    });
  }

  /**
   * Whether the gateway itself responds, successfully or not. While it is down, an intermediary may respond.
   */
  async #answers() {
    const signal = AbortSignal.timeout(PROBE_MS);
    try {
      const answer = await fetch(new URL("v1/health", this.#address), { signal, cache: "no-store" });
      return typeof (await answer.json()).ready === "boolean";
    } catch {
      return false;
    }
  }

  /** Continue without a WebSocket, and after a while try a WebSocket again in parallel. */
  #takeLesser() {
    const { signal } = this.#session;
    const delay_ms = LESSER_MS * 2 ** Math.min(this.#lesser++, 4);
    setTimeout(async () => {
      if (signal.aborted || !this.#lesser) return;
      const socket = await this.#open().catch(() => null);
      if (signal.aborted || !this.#lesser) socket?.close();
      else if (!socket) this.#takeLesser();
      else {
        this.#drop();
        this.#lesser = 0;
        this.#socket = Promise.resolve(socket);
        this.#enter("live", "websocket");
      }
    }, delay_ms);
  }
}
