// Keeps a copy and its cursor in a store, a little behind the page and always together.
//
// A page that is left at once has no time for a write to IndexedDB: then the last half second comes again.

import { LEASE_MS } from "./stores.js";

/** @typedef {import("./copy.js").Copy} Copy */
/** @typedef {import("./copy.js").Id} Id */
/** @typedef {import("./stores.js").Store} Store */

const KEEP_MS = 500; // between two writes
const UNKEPT_MS = 30_000; // after one that failed, for want of room or otherwise

export class Keeper {
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
  /** Changed since the last write; null: everything. @type {Set<Id> | null} */
  #changed = new Set();
  #dirty = false;
  #wrote_ms = 0;
  #writing = Promise.resolve();
  /** @type {ReturnType<typeof setTimeout> | null} */
  #timer = null;
  #told = false;

  /** What was kept of another target, or for someone else, is not taken. @param {Store} store @param {string} name
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

  /** Fill the copy with what was kept. The cursor, or null if there is nothing. @returns {Promise<string | null>} */
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

  /** The page stands here now. @param {string | null} cursor @param {Id[] | null} changed null: everything */
  note(cursor, changed) {
    this.#cursor = cursor;
    if (changed === null) this.#changed = null;
    else for (const id of changed) this.#changed?.add(id);
    this.#dirty = true;
    this.#timer ??= setTimeout(() => this.flush(), Math.max(0, this.#wrote_ms + KEEP_MS - Date.now()));
  }

  /** Another filter: what was to be written belongs to the one before. The page stands at `cursor`, with nothing of the
   * new one yet; null if it has no place in it either. @param {unknown} target @param {string | null} cursor */
  turn(target, cursor) {
    this.#what = JSON.stringify([this.#whose, target]);
    this.#cursor = null;
    this.#changed = null;
    this.#dirty = false;
    if (cursor !== null) this.note(cursor, null);
  }

  /** Write now what is to be written, after what is being written. */
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
    if (!this.#dirty || this.#cursor === null) return; // without a place, rows are those of the filter before
    const { rows } = this.#copy;
    const changed = this.#changed && [...this.#changed];
    const stamp = crypto.getRandomValues(new Uint32Array(4)).join("-");
    const place = { what: this.#what, cursor: this.#cursor, stamp, at_ms: Date.now() };
    const put = changed?.flatMap((id) => (rows.has(id) ? [/** @type {[Id, any]} */ ([id, rows.get(id)])] : [])) ?? null;
    const drop = changed?.filter((id) => !rows.has(id)) ?? [];
    const all = () => {
      Object.assign(place, { what: this.#what, cursor: this.#cursor }); // it may have gone on since, or turned
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
    this.#changed = null; // what is there now is not what this page wrote last
    this.#dirty = true;
    this.#timer ??= setTimeout(() => this.flush(), again_ms);
  }

  /** Once is enough. @param {unknown} error */
  #tell(error) {
    if (this.#told) return;
    this.#told = true;
    this.#unkept(error instanceof Error ? error : new Error(String(error)));
  }
}
