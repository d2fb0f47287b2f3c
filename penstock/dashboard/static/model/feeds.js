// The rows of every view that the page has shown, so that going away and coming back keeps them and their place.

import { Rows } from "./rows.js";

const KEPT_MAX = 24; // views in memory; the one looked at longest ago goes first

export class Feeds {
  #penstock;
  #kept = new Map();

  constructor(penstock) {
    this.#penstock = penstock;
  }

  /** The rows of a view. A view declared anew with another key starts from nothing. */
  rows(view) {
    const name = JSON.stringify([view.name, view.key]);
    const rows = this.#kept.get(name) ?? new Rows(this.#penstock, view.name, view.key);
    this.#kept.delete(name);
    this.#kept.set(name, rows);
    if (this.#kept.size > KEPT_MAX) this.#kept.delete(this.#kept.keys().next().value);
    return rows;
  }
}
