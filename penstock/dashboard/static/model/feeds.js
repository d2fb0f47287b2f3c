// The rows of every view that the page has shown. Going back to a view reuses its rows and its cursor.

import { Rows } from "./rows.js";

const KEPT_MAX = 24; // views in memory; the least recently shown is dropped first

export class Feeds {
  #penstock;
  #kept = new Map();

  constructor(penstock) {
    this.#penstock = penstock;
  }

  /** Returns the rows of a view. A view that was redeclared with another key starts empty. */
  rows(view) {
    const name = JSON.stringify([view.name, view.key]);
    const rows = this.#kept.get(name) ?? new Rows(this.#penstock, view.name, view.key);
    this.#kept.delete(name);
    this.#kept.set(name, rows);
    if (this.#kept.size > KEPT_MAX) this.#kept.delete(this.#kept.keys().next().value);
    return rows;
  }
}
