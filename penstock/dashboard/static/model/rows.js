// The rows of one view, kept up to date from its snapshot and changes.

import { Signal, paced } from "./signal.js";

const HELD_MAX = 20_000; // rows in memory; of a larger view the first ones are held, and the page says how many
const DRAW_MS = 200;

export class Rows {
  /** Changes at most five times a second, however fast the view changes. */
  drawn = new Signal(0);
  /** False until the first snapshot. */
  known = false;
  error = null;
  behind = 0;
  #key;
  #entries = new Map();
  #subscription = null;
  #cursor = null;
  #readers = 0;
  #draw = paced(() => (this.drawn.value += 1), DRAW_MS);

  constructor(live, name, key) {
    this.live = live;
    this.name = name;
    this.#key = key;
  }

  /** Entries {id, row, changes}: a new object for each change of a row, so that identity tells what to draw. */
  get entries() {
    return this.#entries;
  }


  /** One more reader. The first one subscribes, from where the last one left. */
  attach() {
    if (this.#readers++ > 0) return;
    this.#subscription = this.live.subscribe({ view: this.name }, this.#cursor, (message) => this.#take(message));
  }

  detach() {
    if (--this.#readers > 0) return;
    this.#cursor = this.#subscription.cursor;
    this.#subscription.close();
  }

  #take({ event, data }) {
    if (event === "snapshot") this.#replace(data.rows);
    else if (event === "change") this.#apply(data);
    this.error = event === "error" ? (data?.detail ?? "the server refused this view") : null;
    this.behind = event === "stall" ? (data?.behind ?? 0) : 0;
    this.#draw();
  }

  #identity(row) {
    return JSON.stringify(this.#key.map((column) => row[column] ?? null));
  }

  #replace(rows) {
    const fresh = rows.slice(0, HELD_MAX).map((row) => ({ id: this.#identity(row), row, changes: 0 }));
    this.#entries = new Map(fresh.map((entry) => [entry.id, entry]));
    this.known = true;
  }

  #apply({ upserts = [], deletes = [] }) {
    for (const key of deletes) this.#entries.delete(this.#identity(key));
    for (const row of upserts) {
      const id = this.#identity(row);
      const before = this.#entries.get(id);
      const same = before && JSON.stringify(before.row) === JSON.stringify(row);
      if (!same && (before || this.#entries.size < HELD_MAX)) {
        this.#entries.set(id, { id, row, changes: (before?.changes ?? 0) + 1 });
      }
    }
  }
}
