// Saves a copy in a store, always together with its cursor, shortly after the page changes.
//
// If the user leaves the page suddenly, there is no time to write to IndexedDB; the messages of the last half second
// are then received again next time.

import { LEASE_MS } from "./stores.js";

/** @typedef {import("./copy.js").Copy} Copy */
/** @typedef {import("./copy.js").Id} Id */
/** @typedef {import("./stores.js").Store} Store */

const KEEP_MS = 500; // between two writes
const UNKEPT_MS = 30_000; // after a failed write, for example for lack of space

export class Saver {
  #store;
  #name;
  #whose;
  #what;
  #copy;
  #unkept;
  /** @type {string | null} */
  #stamp = null;
  /** @type {string | null} */
  #cursor = null;
  /** The ids changed since the last write; null if everything has changed. @type {Set<Id> | null} */
  #changed = new Set();
  #dirty = false;
  #wrote_ms = 0;
  #writing = Promise.resolve();
  /** @type {ReturnType<typeof setTimeout> | null} */
  #timer = null;
  #told = false;

  /** A copy of another target, or for another user, is ignored. @param {Store} store @param {string} name
   * @param {{whose: unknown, target: unknown}} what @param {Copy} copy @param {(error: Error) => void} unkept */
  constructor(store, name, { whose, target }, copy, unkept) {
    this.#store = store;
    this.#name = name;
    this.#whose = whose;
    this.#what = JSON.stringify([whose, target]);
    this.#copy = copy;
    this.#unkept = unkept;
    globalThis.addEventListener?.("pagehide", this.#leaving);
    globalThis.document?.addEventListener("visibilitychange", this.#leaving);
  }

  /**
   * Fill the copy from the store. Returns the cursor, or null if nothing is stored. @returns {Promise<string | null>}
   */
  async load() {
    try {
      const found = await this.#store.load(this.#name);
      if (found?.what !== this.#what || !found.cursor) return null;
      this.#copy.fill(found.rows);
      this.#stamp = found.stamp;
      return found.cursor;
    } catch (error) {
      this.#tell(error);
      return null;
    }
  }

  /** Record the page's current position. @param {string | null} cursor @param {Id[] | null} changed null: everything */
  note(cursor, changed) {
    this.#cursor = cursor;
    if (changed === null) this.#changed = null;
    else for (const id of changed) this.#changed?.add(id);
    this.#dirty = true;
    this.#timer ??= setTimeout(() => this.flush(), Math.max(0, this.#wrote_ms + KEEP_MS - Date.now()));
  }

  /** Switch to another filter, after dropping pending writes for the previous filter. The page is at `cursor` and has
   * no rows for the new filter yet; `cursor` is null if the page has no position either.
   * @param {unknown} target @param {string | null} cursor */
  turn(target, cursor) {
    this.#what = JSON.stringify([this.#whose, target]);
    this.#cursor = null;
    this.#changed = null;
    this.#dirty = false;
    if (cursor !== null) this.note(cursor, null);
  }

  /** Write pending changes now, after any write in progress. */
  flush() {
    if (this.#timer) clearTimeout(this.#timer);
    this.#timer = null;
    this.#writing = this.#writing.then(() => this.#write());
    return this.#writing;
  }

  close() {
    globalThis.removeEventListener?.("pagehide", this.#leaving);
    globalThis.document?.removeEventListener("visibilitychange", this.#leaving);
    return this.flush();
  }

  #leaving = () => {
    if (this.#dirty) this.flush();
  };

  async #write() {
    if (!this.#dirty || this.#cursor === null) return; // without a position, the rows are from the previous filter
    const { rows } = this.#copy;
    const changed = this.#changed && [...this.#changed];
    const stamp = crypto.getRandomValues(new Uint32Array(4)).join("-");
    const place = { what: this.#what, cursor: this.#cursor, stamp, at_ms: Date.now() };
    const put = changed?.flatMap((id) => (rows.has(id) ? [/** @type {[Id, any]} */ ([id, rows.get(id)])] : [])) ?? null;
    const drop = changed?.filter((id) => !rows.has(id)) ?? [];
    const all = () => {
      // the page may have advanced or changed its filter since then
      Object.assign(place, { what: this.#what, cursor: this.#cursor });
      return /** @type {[Id, any][]} */ (this.#cursor === null ? [] : [...this.#copy.rows]);
    };
    this.#changed = new Set();
    this.#dirty = false;
    this.#wrote_ms = place.at_ms;
    let again_ms = LEASE_MS;
    try {
      if (await this.#store.save(this.#name, { place, after: this.#stamp, put, drop, all })) {
        this.#stamp = place.stamp;
        return;
      }
    } catch (error) {
      this.#tell(error);
      again_ms = UNKEPT_MS;
    }
    this.#changed = null; // the stored content is not what this page last wrote
    this.#dirty = true;
    this.#timer ??= setTimeout(() => this.flush(), again_ms);
  }

  /** Report an error once. @param {unknown} error */
  #tell(error) {
    if (this.#told) return;
    this.#told = true;
    this.#unkept(error instanceof Error ? error : new Error(String(error)));
  }
}
