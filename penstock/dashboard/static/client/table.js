// A live copy of a view: its rows by key, and sorted.

import { identity } from "./protocol.js";

/** @typedef {import("./copy.js").Copy} Copy */
/** @typedef {import("./protocol.js").Row} Row */
/** @typedef {import("./subscription.js").Subscription} Subscription */
/** @typedef {string | string[] | ((a: Row, b: Row) => number)} Order */

export class Table {
  /** False until the first rows have arrived, from the server or the store. */
  known = false;
  /** The error that ended the table; null while it is running. @type {Error | null} */
  error = null;
  /** The number of changes that the page is behind. */
  behind = 0;
  /** The subscription to the view: its `cursor` and `state`, `pause`, `resume`, `filter`. @type {Subscription} */
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

  /** The rows, sorted. Returns the same array until something changes. */
  get rows() {
    this.#ordered ??= [...this.#copy.rows.values()].sort(this.#compare);
    return this.#ordered;
  }

  get size() {
    return this.#copy.rows.size;
  }

  /** Whether the view has more rows than the table holds. */
  get full() {
    return this.#copy.full;
  }

  /** Returns the row with these values of the key columns. @param {any[]} values @returns {Row | undefined} */
  get(...values) {
    const key = Object.fromEntries(this.#key.map((column, place) => [column, values[place]]));
    return this.#copy.rows.get(identity(key, this.#key));
  }

  /** Call `watcher` after each change. Returns a function that removes it. @param {() => void} watcher */
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

/** Returns a function that compares rows by columns, given as a list or a string with commas, as in the API. A minus
 * before a column, or DESC after it, means descending order. Missing values come last.
 * @param {string | string[]} columns */
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

/**
 * Compares numbers, including long integers held as strings, by value, and anything else as strings.
 * @param {any} a @param {any} b
 */
function compared(a, b) {
  if (a === b) return 0;
  if (typeof a === "number" || typeof b === "number") {
    const apart = Number(a) - Number(b);
    if (!Number.isNaN(apart)) return apart;
  }
  const [left, right] = [a, b].map((value) => (typeof value === "object" ? JSON.stringify(value) : String(value)));
  return left < right ? -1 : left > right ? 1 : 0;
}
