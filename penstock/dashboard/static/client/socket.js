// One WebSocket with many subscriptions.

import { Broken, isText, messageOf, refusedBy, subscriptionOf } from "./protocol.js";

/** @typedef {import("./protocol.js").Message} Message */
/** @typedef {import("./protocol.js").Target} Target */

const OPEN_MS = 10_000;
const PING_MS = 15_000;
const UNANSWERED_MAX = 3; // a server that has ignored this many pings is considered gone
export const WINDOW = 16; // maximum number of a subscription's messages in flight or waiting to be processed
// messages kept from a server that ignores the window; once they are processed, the page resubscribes from its position
const INBOX_MAX = 1_000;

const DATA = new Set(["snapshot", "change"]);

/** Messages that have arrived and wait to be processed. */
class Inbox {
  /** Whether the server has sent anything under the subscription's id. */
  heard = false;
  /** @type {Message[]} */
  #items = [];
  /** @type {Error | null} */
  #error = null;
  #wake = () => {};

  /** @param {Message} item */
  push(item) {
    if (this.#items.length >= INBOX_MAX) this.end(new Broken("more messages arrived than the page can hold", true));
    else if (!this.#error) this.#items.push(item);
    this.#wake();
  }

  /** End the subscription; queued messages are processed first. @param {Error} error */
  end(error) {
    this.#error ??= error;
    this.#wake();
  }

  /** Drop queued messages. @param {Error} error */
  drop(error) {
    this.#items = [];
    this.end(error);
  }

  async *[Symbol.asyncIterator]() {
    for (;;) {
      const item = this.#items.shift();
      if (item) yield item;
      else if (this.#error) throw this.#error;
      else await new Promise((resolve) => (this.#wake = () => resolve(null)));
    }
  }
}

export class Socket {
  /** @type {Map<string, Inbox>} */
  #inboxes = new Map();
  #lastId = 0;
  #unanswered = 0;
  #pinger;
  #ended;

  /** @param {WebSocket} socket an open one @param {number} window
   * @param {() => void} ended called once, if the WebSocket ends without `close` */
  constructor(socket, window, ended) {
    this.socket = socket;
    this.window = window;
    this.#ended = ended;
    this.#pinger = setInterval(() => this.#ping(), PING_MS);
    socket.onmessage = ({ data }) => this.#hear(data);
    socket.onclose = () => this.#over();
  }

  /** @param {string} address @param {string[]} protocols @returns {Promise<WebSocket>} */
  static open(address, protocols) {
    return new Promise((resolve, reject) => {
      const socket = new WebSocket(address, protocols);
      const timer = setTimeout(() => socket.close(), OPEN_MS);
      socket.onopen = () => {
        clearTimeout(timer);
        resolve(socket);
      };
      socket.onclose = () => {
        clearTimeout(timer);
        reject(new Broken("the WebSocket could not be opened"));
      };
    });
  }

  /**
   * Yields the messages of one subscription. Requesting the next message marks the previous message as processed.
   * @param {Target} target @param {string | null} since @param {AbortSignal} signal @returns {AsyncGenerator<Message>}
   */
  async *follow(target, since, signal) {
    signal.throwIfAborted(); // aborted while the connection was being made: the signal does not fire again
    const id = String(++this.#lastId);
    const inbox = new Inbox();
    const leave = () => inbox.drop(signal.reason);
    let done = 0;
    let unsaid = ""; // the cursor of a snapshot or change to acknowledge; progress marks are not acknowledged
    this.#inboxes.set(id, inbox);
    signal.addEventListener("abort", leave);
    this.#say({ ...subscriptionOf(target, since), id, window: this.window });
    try {
      for await (const message of inbox) {
        if (message.event === "error") throw refusedBy(message.data);
        yield message;
        if (DATA.has(message.event)) unsaid = message.cursor;
        if (++done < Math.ceil(this.window / 2)) continue;
        if (unsaid) this.#say({ op: "ack", id, cursor: unsaid });
        done = 0;
        unsaid = "";
      }
    } finally {
      signal.removeEventListener("abort", leave);
      if (this.#inboxes.delete(id)) this.#say({ op: "unsubscribe", id });
    }
  }

  /** Close the WebSocket permanently, without calling `ended`. */
  close() {
    this.#ended = () => {};
    this.#over();
  }

  /** @param {object} message */
  #say(message) {
    if (this.socket.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify(message));
  }

  #ping() {
    if (++this.#unanswered > UNANSWERED_MAX) return this.#over();
    this.#say({ op: "ping" });
  }

  /** @param {string} text */
  #hear(text) {
    this.#unanswered = 0;
    try {
      const message = messageOf(text);
      if (message.event === "error") return this.#refused(message);
      const inbox = this.#inboxes.get(message.id ?? "");
      if (!inbox) return;
      inbox.heard = true;
      if (isText(message.cursor)) inbox.push(/** @type {Message} */ (message));
    } catch {
      this.#over();
    }
  }

  /** Handle an error message. It ends its subscription, unless it concerns another command. An error without an id
   * concerns a message that the server could not read, so it ends all subscriptions that the server has not responded
   * to yet.
   * @param {{id?: string | null, data?: any}} message */
  #refused({ id, data }) {
    if ((data?.op ?? "subscribe") !== "subscribe") return;
    const unheard = () => [...this.#inboxes.keys()].filter((each) => !this.#inboxes.get(each)?.heard);
    for (const each of id ? [id] : unheard()) {
      this.#inboxes.get(each)?.push({ event: "error", cursor: "", data });
      this.#inboxes.delete(each);
    }
  }

  #over() {
    clearInterval(this.#pinger);
    this.socket.onclose = this.socket.onmessage = null;
    this.socket.close();
    for (const inbox of this.#inboxes.values()) inbox.end(new Broken("the connection ended", true));
    this.#inboxes.clear();
    const ended = this.#ended;
    this.#ended = () => {};
    ended();
  }
}
