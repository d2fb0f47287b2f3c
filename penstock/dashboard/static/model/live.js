// The live connection: one WebSocket, many subscriptions, each with its place.
//
// A subscription keeps the cursor of the last message that its reader has taken. After any break the socket is opened
// again (back-off with jitter) and each subscription asks for what comes after its cursor: nothing is missed, nothing
// comes twice. Readers keep their data meanwhile.

import { protocols } from "./key.js";
import { Signal } from "./signal.js";
import { parse, socketAddress } from "./wire.js";

const BACKOFF_MS = 400;
const BACKOFF_MAX_MS = 15_000;
const PING_MS = 20_000; // a peer silent for two pings is gone: at most 40 s until that is seen
const HEALTHY_MS = 5_000; // a connection that lived so long starts the back-off anew
const REFUSED_RETRY_MS = 5_000;

/** How long to wait before attempt `attempt` (0, 1, ...): doubles up to a bound, half of it random. */
export function backoff_ms(attempt, random = Math.random) {
  const full = Math.min(BACKOFF_MAX_MS, BACKOFF_MS * 2 ** attempt);
  return full / 2 + (full / 2) * random();
}

/** A view that was reset has no place until its new snapshot: a break in between must not skip the snapshot. */
function placeAfter({ event, cursor }, subscription) {
  if (event === "reset" && subscription.target.view) return null;
  return event !== "subscribed" && cursor ? cursor : subscription.cursor;
}

export class Live {
  /** {phase: "connecting" | "live" | "waiting" | "paused", retryAt_ms}. */
  state = new Signal({ phase: "paused", retryAt_ms: null });
  #socket = null;
  #subscriptions = new Map();
  #attempt = 0;
  #openedAt = 0;
  #timer = null;
  #pinger = null;
  #heard = true;
  #lastId = 0;

  /** Connect, or connect now instead of at the end of the back-off. */
  open() {
    clearTimeout(this.#timer);
    if (this.#socket) return;
    this.#enter("connecting");
    const socket = new WebSocket(socketAddress("v1/live"), protocols());
    this.#socket = socket;
    socket.onopen = () => this.#opened();
    socket.onmessage = ({ data }) => this.#took(data);
    socket.onclose = () => socket === this.#socket && this.#closed();
  }

  /** Let go of the socket and keep every subscription's place, until `open`. */
  pause() {
    clearTimeout(this.#timer);
    this.#drop();
    this.#enter("paused");
  }

  /**
   * Follow `target`, {view: NAME} or {stream: NAME}, from `since` (a cursor, "latest", or null for a snapshot).
   * `reader` is called with each message, in order. Returns the subscription: `cursor` and `close()`.
   */
  subscribe(target, since, reader) {
    const id = String(++this.#lastId);
    const subscription = { id, target, cursor: since, reader, close: () => this.#unsubscribe(id) };
    this.#subscriptions.set(id, subscription);
    this.#ask(subscription);
    return subscription;
  }

  #enter(phase, retryAt_ms = null) {
    this.state.value = { phase, retryAt_ms };
  }

  #opened() {
    this.#openedAt = performance.now();
    this.#heard = true;
    this.#pinger = setInterval(() => this.#ping(), PING_MS);
    this.#enter("live");
    for (const subscription of this.#subscriptions.values()) this.#ask(subscription);
  }

  #closed() {
    this.#drop();
    if (this.#openedAt && performance.now() - this.#openedAt > HEALTHY_MS) this.#attempt = 0;
    this.#openedAt = 0;
    const delay = backoff_ms(this.#attempt++);
    this.#timer = setTimeout(() => this.open(), delay);
    this.#enter("waiting", Date.now() + delay);
  }

  #drop() {
    clearInterval(this.#pinger);
    const socket = this.#socket;
    this.#socket = null;
    socket?.close();
  }

  #ping() {
    if (!this.#heard) return this.#closed();
    this.#heard = false;
    this.#send({ op: "ping" });
  }

  #send(message) {
    if (this.#socket?.readyState === WebSocket.OPEN) this.#socket.send(JSON.stringify(message));
  }

  #ask({ id, target, cursor }) {
    this.#send({ op: "subscribe", id, ...target, ...(cursor ? { since: cursor } : {}) });
  }

  #unsubscribe(id) {
    if (this.#subscriptions.delete(id)) this.#send({ op: "unsubscribe", id });
  }

  #took(text) {
    this.#heard = true;
    const message = parse(text);
    const subscription = this.#subscriptions.get(message.id);
    if (!subscription) return; // a pong, or the last message of one that was closed
    if (message.event === "error") this.#refused(subscription, message);
    subscription.reader(message);
    subscription.cursor = placeAfter(message, subscription);
  }

  /** A cursor that the server does not know is given up at once; any other refusal is asked again after a while. */
  #refused(subscription, { data }) {
    const stale = data?.code === "bad_cursor" && subscription.cursor !== null;
    if (stale) subscription.cursor = null;
    setTimeout(() => this.#subscriptions.has(subscription.id) && this.#ask(subscription), stale ? 0 : REFUSED_RETRY_MS);
  }
}
