// The content of a subscription: the rows of a view by key, or the latest events of a stream.

import { identity } from "./protocol.js";

/** @typedef {import("./protocol.js").Row} Row */
/** @typedef {string | number} Id */

export class Copy {
  /** Rows by the text of their key, or events by an increasing number. @type {Map<Id, Row>} */
  rows = new Map();
  /** Whether the copy is incomplete: it holds the first rows of a view, or the last events of a stream. */
  full = false;
  #key;
  #most;
  #count = 0;

  /** @param {string[] | null} key of a view; null for a stream @param {number} most */
  constructor(key, most) {
    this.#key = key;
    this.#most = most;
  }

  /** Whether the copy has any content besides the position. */
  get holds() {
    return this.#most > 0;
  }

  /** The content of the copy, in the form that the server sends. */
  get data() {
    const rows = [...this.rows.values()];
    return this.#key ? { rows } : { events: rows };
  }

  /** Start with the stored content. @param {[Id, Row][]} rows */
  fill(rows) {
    this.rows = new Map(rows);
    for (const [id] of rows) if (typeof id === "number") this.#count = Math.max(this.#count, id);
  }

  /** Apply a message to the copy; returns the ids that it has changed, or null if it has changed everything.
   * @param {string} event @param {any} data @returns {Id[] | null} */
  take(event, data) {
    if (event === "snapshot" || event === "reset") {
      this.rows.clear();
      this.full = false;
    }
    if (event === "snapshot") this.#add(data.rows ?? data.events);
    if (event === "snapshot" || event === "reset") return null;
    if (event !== "change") return [];
    return this.#add(data.upserts ?? data.events).concat(this.#remove(data.deletes ?? []));
  }

  /** @param {Row[]} rows @returns {Id[]} */
  #add(rows) {
    if (!this.#most) return [];
    const ids = rows.map((row) => (this.#key ? identity(row, this.#key) : ++this.#count));
    const added = ids.filter((id, place) => this.#put(id, rows[place]));
    return this.#key ? added : added.concat(this.#trim());
  }

  /** @param {Id} id @param {Row} row */
  #put(id, row) {
    const room = !this.#key || this.rows.size < this.#most || this.rows.has(id);
    if (room) this.rows.set(id, row);
    else this.full = true;
    return room;
  }

  /** Drop the oldest events over the limit; returns their ids. @returns {Id[]} */
  #trim() {
    const surplus = Math.max(0, this.rows.size - this.#most);
    const gone = [...this.rows.keys()].slice(0, surplus);
    for (const id of gone) this.rows.delete(id);
    this.full ||= surplus > 0;
    return gone;
  }

  /** @param {Row[]} keys @returns {Id[]} */
  #remove(keys) {
    return keys.map((key) => identity(key, this.#key ?? [])).filter((id) => this.rows.delete(id));
  }
}
