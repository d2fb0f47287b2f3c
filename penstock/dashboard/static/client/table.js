// A view as a live table: its rows by key, and in order.

import { identity } from "./protocol.js";

/** @typedef {import("./copy.js").Copy} Copy */
/** @typedef {import("./protocol.js").Row} Row */
/** @typedef {import("./subscription.js").Subscription} Subscription */
/** @typedef {string | string[] | ((a: Row, b: Row) => number)} Order */

export class Table {
  /** False until the first rows have come, from the server or from what was kept. */
  known = false;
  /** Why it has ended; null while it goes on. @type {Error | null} */
  error = null;
  /** How many changes the page is behind, while it is. */
  behind = 0;
  /** What follows the view: its `cursor` and `state`, `pause`, `resume`, `filter`. @type {Subscription} */
  subscription;
  #key;
  #copy;
  #compare;
  /** @type {Row[] | null} */
  #ordered = null;
  /** @type {Set<() => void>} */
  #watchers = new Set();

  /** @param {string[]} key @param {Copy} copy @param {Order} order
   * @param {(handlers: import("./subscription.js").Handlers, after: () => void) => Subscription} follow */
  constructor(key, copy, order, follow) {
    this.#key = key;
    this.#copy = copy;
    this.#compare = typeof order === "function" ? order : comparing(order);
    this.subscription = follow(this.#handlers(), () => this.#tell());
  }

  /** The rows in order. The same array until something changes. */
  get rows() {
    this.#ordered ??= [...this.#copy.rows.values()].sort(this.#compare);
    return this.#ordered;
  }

  get size() {
    return this.#copy.rows.size;
  }

  /** Whether the view has more rows than are held. */
  get full() {
    return this.#copy.full;
  }

  /** The row with these values of the key columns. @param {any[]} values @returns {Row | undefined} */
  get(...values) {
    const key = Object.fromEntries(this.#key.map((column, place) => [column, values[place]]));
    return this.#copy.rows.get(identity(key, this.#key));
  }

  /** Call `watcher` after each change. Returns the function that ends this. @param {() => void} watcher */
  watch(watcher) {
    this.#watchers.add(watcher);
    return () => this.#watchers.delete(watcher);
  }

  close() {
    return this.subscription.close();
  }

  /** @returns {import("./subscription.js").Handlers} */
  #handlers() {
    return {
      snapshot: () => (this.known = true),
      change: () => ((this.known = true), (this.behind = 0)),
      progress: () => (this.behind = 0),
      stall: ({ behind }) => (this.behind = behind),
      state: ({ phase }) => {
        if (phase !== "ended") this.error = null;
      },
      error: (error) => {
        this.error = error;
        this.#tell();
      },
    };
  }

  #tell() {
    this.#ordered = null;
    for (const watcher of [...this.#watchers]) watcher();
  }
}

/** By columns, in a list or in one text with commas, as the API takes it. One with a minus before it, or DESC behind it,
 * is from large to small. What is missing comes last. @param {string | string[]} columns */
function comparing(columns) {
  const terms = (typeof columns === "string" ? columns.split(",") : columns).map((column) => {
    const [, minus, , name = column, way] = column.match(/^\s*(-?)\s*("?)(.*?)\2(?:\s+(asc|desc))?\s*$/i) ?? [];
    return { name, sign: minus || way?.toLowerCase() === "desc" ? -1 : 1 };
  });
  return (/** @type {Row} */ a, /** @type {Row} */ b) => {
    for (const { name, sign } of terms) {
      const [noneA, noneB] = [a, b].map((row) => row[name] === null || row[name] === undefined);
      const order = noneA || noneB ? Number(noneA) - Number(noneB) : sign * compared(a[name], b[name]);
      if (order) return order;
    }
    return 0;
  };
}

/** Numbers by size, also those that are held as text since they are long; else by text. @param {any} a @param {any} b */
function compared(a, b) {
  if (a === b) return 0;
  if (typeof a === "number" || typeof b === "number") {
    const apart = Number(a) - Number(b);
    if (!Number.isNaN(apart)) return apart;
  }
  const [left, right] = [a, b].map((value) => (typeof value === "object" ? JSON.stringify(value) : String(value)));
  return left < right ? -1 : left > right ? 1 : 0;
}
