// The latest events of one stream, newest first.

import { Following } from "./following.js";
import { Signal, paced } from "./signal.js";

const HELD_MAX = 200;
const DRAW_MS = 300;

export class Tail {
  drawn = new Signal(0);
  error = null;
  /** True if the stream still has older events than this tail. */
  partial = false;
  loading = true;
  #entries = [];
  #count = 0;
  #following;
  #draw = paced(() => (this.drawn.value += 1), DRAW_MS);

  constructor(penstock, name) {
    this.#following = new Following(penstock, "streams", name, { last: HELD_MAX }, {
      snapshot: ({ events }) => this.#took(() => this.#begin(events)),
      change: ({ events }) => this.#took(() => this.#add(events, 1)),
      progress: () => this.#took(),
      reset: () => this.#took(() => (this.partial = true)),
      error: ({ message }) => this.#took(() => (this.error = message)),
    });
  }

  /** Entries {id, row, changes}, newest first; `id` increases and is never reused. */
  get entries() {
    return this.#entries;
  }

  open() {
    this.#following.open();
  }

  close() {
    this.#following.close();
  }

  #took(step = () => {}) {
    this.error = null;
    step();
    this.loading = false;
    this.#draw();
  }

  #begin(events) {
    this.#entries = [];
    this.#add(events, 0);
    this.partial = events.length >= HELD_MAX;
  }

  #add(events, changes) {
    const fresh = events.slice(-HELD_MAX).map((row) => ({ id: ++this.#count, row, changes }));
    this.partial ||= this.#entries.length + fresh.length > HELD_MAX;
    this.#entries = [...fresh.reverse(), ...this.#entries].slice(0, HELD_MAX);
  }
}
