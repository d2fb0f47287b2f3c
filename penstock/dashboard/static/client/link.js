// The way to one gateway: the transport that works, and one back-off for all who lose it.

import { Http, Unstreamed } from "./http.js";
import { BACKOFF, Broken, Refused, backoff_ms, given } from "./protocol.js";
import { Socket, WINDOW } from "./socket.js";

/** @typedef {import("./protocol.js").Message} Message */
/** @typedef {import("./protocol.js").Target} Target */
/** @typedef {"idle" | "connecting" | "live" | "waiting" | "paused" | "ended"} Phase */
/** @typedef {"websocket" | "sse" | "poll"} Transport */
/** @typedef {{phase: Phase, transport: Transport | null, retryAt_ms: number | null, error: Error | null}} State */

const STREAMS_MAX = 4; // a browser has six connections to a host that speaks HTTP/1.1: two are left for requests
const LESSER_MS = 60_000; // on a lesser transport, until a WebSocket is tried again; doubles, up to 16 minutes
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
  #lesser = 0; // how often in a row a lesser transport was taken
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

  /** Returns when it is time to try: at once, or after the back-off or a pause. @param {AbortSignal} signal */
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

  /** Returns after so long, or when all are to try now. The others go on. @param {number} delay_ms
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

  /** How long to wait after so many failures in a row, and this one. @param {number} failures @param {Error} error */
  delay_ms(failures, error) {
    const after_ms = error instanceof Refused ? error.retryAfter_s * 1_000 : 0;
    return backoff_ms(failures, Math.random(), this.#backoff, after_ms);
  }

  /** The connection failed: all wait. @param {Error} error */
  failed(error) {
    if (this.#paused || this.#timer) return;
    const delay_ms = this.delay_ms(this.#failures++, error);
    this.#lesser = 0;
    this.#timer = setTimeout(() => this.#proceed(), delay_ms);
    this.#enter("waiting", null, { retryAt_ms: Date.now() + delay_ms, error });
  }

  /** A message came: what failed is over. */
  heard() {
    this.#failures = 0;
  }

  /** Try now, instead of after the back-off. */
  retry() {
    for (const go of [...this.#resting]) go();
    this.#proceed();
  }

  /** The back-off is over. */
  #proceed() {
    if (this.#timer) clearTimeout(this.#timer);
    else if (this.#waiting.size === 0) return;
    this.#timer = null;
    if (this.#paused) return;
    this.#enter("connecting");
    for (const go of [...this.#waiting]) go();
  }

  /** Let go of all connections until `resume`. */
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
    this.#session.abort(new Broken("the connection was let go", true));
    this.#session = new AbortController();
  }

  /** @param {Phase} phase @param {Transport | null} [transport] @param {Partial<State>} [more] */
  #enter(phase, transport = null, more = {}) {
    if (phase === "live" && this.state.phase === phase && this.state.transport === transport) return;
    this.state = { phase, transport, retryAt_ms: null, error: null, ...more };
    this.#watcher(this.state);
  }

  /** The messages of a target, until something breaks. `heard` is called when an answer came without any, as it should.
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

  /** The socket that all share. If none can be had though the gateway answers, something between does not let it
   * through, or it was refused, which a browser does not tell: a lesser transport goes through, or tells. */
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

  /** Whether the gateway itself answers, well or not. Where it is away, something before it may answer in its place. */
  async #answers() {
    const signal = AbortSignal.timeout(PROBE_MS);
    try {
      const answer = await fetch(new URL("v1/health", this.#address), { signal, cache: "no-store" });
      return typeof (await answer.json()).ready === "boolean";
    } catch {
      return false;
    }
  }

  /** Go on without a WebSocket, and try one again after a while, beside what goes on. */
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
