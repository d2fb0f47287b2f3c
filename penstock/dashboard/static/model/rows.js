// The rows of one view, kept up to date from its snapshot and changes.

import { Following } from "./following.js";
import { Signal, paced } from "./signal.js";

const HELD_MAX = 20_000; // rows in memory; for a larger view, the first rows are held, and the page says how many
const DRAW_MS = 200;

export class Rows {
  /** Notifies at most five times a second, no matter how fast the view changes. */
  drawn = new Signal(0);
  /** False until the first snapshot. */
  known = false;
  error = null;
  behind = 0;
  #key;
  #entries = new Map();
  #following;
  #readers = 0;
  #outdated = false;
  #draw = paced(() => (this.drawn.value += 1), DRAW_MS);

  constructor(penstock, name, key) {
    this.#key = key;
    this.#following = new Following(penstock, "views", name, {}, {
      snapshot: ({ rows }) => this.#took(() => this.#replace(rows)),
      change: (change) => this.#took(() => this.#apply(change)),
      progress: () => this.#took(),
      stall: ({ behind }) => this.#took(() => (this.behind = behind)),
      reset: () => this.#took(() => (this.#outdated = true)),
      error: ({ message }) => this.#took(() => (this.error = message)),
    });
  }

  /** Entries {id, row, changes}: a new object for each change of a row, so that drawing can compare identity. */
  get entries() {
    return this.#entries;
  }

  /** Add a reader. The first one subscribes, from the last cursor. */
  attach() {
    if (this.#readers++ === 0) this.#following.open();
  }

  detach() {
    if (--this.#readers === 0) this.#following.close();
  }

  #took(step = () => {}) {
    this.error = null;
    this.behind = 0;
    step();
    this.#draw();
  }

  #identity(row) {
    return JSON.stringify(this.#key.map((column) => row[column] ?? null));
  }

  #replace(rows) {
    const fresh = rows.slice(0, HELD_MAX).map((row) => ({ id: this.#identity(row), row, changes: 0 }));
    this.#entries = new Map(fresh.map((entry) => [entry.id, entry]));
    this.#outdated = false;
    this.known = true;
  }

  /** After a reset, the rows stay on the page until a snapshot arrives or, if the view is empty, the next change. */
  #apply({ upserts = [], deletes = [] }) {
    if (this.#outdated) this.#replace([]);
    for (const row of upserts) {
      const id = this.#identity(row);
      const before = this.#entries.get(id);
      const same = before && JSON.stringify(before.row) === JSON.stringify(row);
      if (!same && (before || this.#entries.size < HELD_MAX)) {
        this.#entries.set(id, { id, row, changes: (before?.changes ?? 0) + 1 });
      }
    }
    for (const key of deletes) this.#entries.delete(this.#identity(key));
  }
}
