// The latest events of one stream, newest first.

import { Signal, paced } from "./signal.js";
import { get } from "./wire.js";

const HELD_MAX = 200;
const DRAW_MS = 300;
const PAGE_EVENTS = 2_500;
const PAGES_MAX = 4; // a stream that keeps more is followed from now on: its past cannot be read backwards
const TIMEOUT_MS = 10_000;

export class Tail {
  drawn = new Signal(0);
  error = null;
  /** True when older events are kept than this tail has read. */
  partial = false;
  loading = true;
  #entries = [];
  #count = 0;
  #subscription = null;
  #closed = false;
  #draw = paced(() => (this.drawn.value += 1), DRAW_MS);

  constructor(live, name) {
    this.live = live;
    this.name = name;
  }

  /** Entries {id, row, changes}, newest first; `id` counts up and is never given twice. */
  get entries() {
    return this.#entries;
  }

  /** Read what is kept, if `kept` says it is little, then follow. Call once; end it with `close`. */
  async open(kept) {
    const since = kept > PAGES_MAX * PAGE_EVENTS ? "latest" : await this.#past();
    if (this.#closed) return;
    this.partial = since === "latest";
    this.loading = false;
    this.#subscription = this.live.subscribe({ stream: this.name }, since, (message) => this.#take(message));
    this.#draw();
  }

  close() {
    this.#closed = true;
    this.#subscription?.close();
  }

  /** Take the events kept now; returns the cursor after them, or "latest" if there are too many or none can be had. */
  async #past() {
    let since = "earliest";
    for (let page = 0; page < PAGES_MAX && !this.#closed; page++) {
      const answer = await this.#page(since);
      if (!answer) return "latest";
      this.#add(answer.events, 0);
      if (answer.events.length < PAGE_EVENTS) return answer.cursor;
      since = answer.cursor;
    }
    this.#entries = [];
    return "latest";
  }

  async #page(since) {
    const path = `v1/streams/${encodeURIComponent(this.name)}`;
    try {
      return await get(`${path}?since=${encodeURIComponent(since)}&limit=${PAGE_EVENTS}`, TIMEOUT_MS);
    } catch {
      return null; // the subscription that follows says what is wrong, and is asked again
    }
  }

  #take({ event, data }) {
    if (event === "change") this.#add(data.events, 1);
    if (event === "reset") this.partial = true;
    this.error = event === "error" ? (data?.detail ?? "the server refused this stream") : null;
    this.#draw();
  }

  #add(events, changes) {
    const fresh = events.slice(-HELD_MAX).map((row) => ({ id: ++this.#count, row, changes }));
    this.#entries = [...fresh.reverse(), ...this.#entries].slice(0, HELD_MAX);
  }
}
