// Stores for kept data: IndexedDB, or web storage. Each name has rows and a `Place` (a cursor and its stamp), which are
// written together.
//
// Several tabs may write under one name. Each write has a stamp. A tab that finds its own stamp, or the stamp that it
// began with, writes the changes since then; a tab that finds another tab's stamp writes everything, or nothing if the
// other tab has only just written. So the store always has the content of one tab at one cursor, and never a mixture.

/** @typedef {import("./copy.js").Id} Id */
/** @typedef {import("./protocol.js").Row} Row */
/** @typedef {{what: string, cursor: string | null, stamp: string, at_ms: number}} Place */
/**
 * @typedef {object} Change
 * @property {Place} place the place to store
 * @property {string | null} after the stamp that this tab wrote or read last
 * @property {[Id, Row][] | null} put the rows changed since then; null if unknown
 * @property {Id[]} drop the ids removed since then
 * @property {() => [Id, Row][]} all returns all current content, and sets `place` to match, so it is called first
 */
/**
 * @typedef {object} Store
 * @property {(name: string) => Promise<(Place & {rows: [Id, Row][]}) | null>} load
 * @property {(name: string, change: Change) => Promise<boolean>} save saves all or nothing; false if saving is left to
 *   another tab
 * @property {(name: string) => Promise<void>} forget
 */

export const LEASE_MS = 5_000; // for this long after a tab has written, other tabs leave the writing to that tab
const DATABASE = "penstock";

/** Whether to add to the stored content, replace it, or leave it unchanged. @param {Place | null | undefined} before
 * @param {Change} change @returns {"add" | "replace" | "leave"} */
function choose(before, { place, after, put }) {
  if (!before || before.what !== place.what) return "replace";
  if (before.stamp === after) return put ? "add" : "replace";
  const age_ms = place.at_ms - before.at_ms;
  return age_ms >= 0 && age_ms < LEASE_MS ? "leave" : "replace";
}

/** @implements {Store} */
export class IndexedStore {
  /** @type {Promise<IDBDatabase> | null} */
  #opening = null;

  /** @param {string} name */
  async load(name) {
    const transaction = await this.#transaction("readonly");
    const [places, rows] = stores(transaction);
    const [place, ids, found] = await Promise.all([
      answered(places.get(name)), answered(rows.getAllKeys(of(name))), answered(rows.getAll(of(name))),
    ]);
    const kept = /** @type {[string, Id][]} */ (ids).map(([, id], n) => /** @type {[Id, Row]} */ ([id, found[n]]));
    return place ? { ...place, rows: kept } : null;
  }

  /** @param {string} name @param {Change} change */
  async save(name, change) {
    const transaction = await this.#transaction("readwrite");
    const [places, rows] = stores(transaction);
    let left = false;
    places.get(name).onsuccess = ({ target }) => {
      const chosen = choose(/** @type {IDBRequest} */ (target).result, change);
      left = chosen === "leave";
      if (left) return;
      if (chosen === "replace") rows.delete(of(name));
      for (const [id, row] of (chosen === "add" && change.put) || change.all()) rows.put(row, [name, id]);
      for (const id of chosen === "add" ? change.drop : []) rows.delete([name, id]);
      places.put(change.place, name);
    };
    await completed(transaction);
    return !left;
  }

  /** @param {string} name */
  async forget(name) {
    const transaction = await this.#transaction("readwrite");
    const [places, rows] = stores(transaction);
    places.delete(name);
    rows.delete(of(name));
    await completed(transaction);
  }

  /** @param {IDBTransactionMode} mode */
  async #transaction(mode) {
    this.#opening ??= this.#open();
    try {
      return (await this.#opening).transaction(["places", "rows"], mode);
    } catch (error) {
      this.#opening = null; // closed by the browser, or by a newer version of this module in another tab
      throw error;
    }
  }

  /** @returns {Promise<IDBDatabase>} */
  async #open() {
    const request = indexedDB.open(DATABASE, 1);
    request.onupgradeneeded = () => {
      request.result.createObjectStore("places");
      request.result.createObjectStore("rows");
    };
    const database = await answered(request);
    const gone = () => (this.#opening = null);
    database.onclose = gone;
    database.onversionchange = () => gone() ?? database.close();
    return database;
  }
}

/** @param {IDBTransaction} transaction */
function stores(transaction) {
  return [transaction.objectStore("places"), transaction.objectStore("rows")];
}

/** The key range of all ids of a name: in IndexedDB, an array sorts after every string and number.
 * @param {string} name */
function of(name) {
  return IDBKeyRange.bound([name], [name, []]);
}

/** @template T @param {IDBRequest<T>} request @returns {Promise<T>} */
function answered(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

/** @param {IDBTransaction} transaction @returns {Promise<void>} */
function completed(transaction) {
  return new Promise((resolve, reject) => {
    transaction.oncomplete = () => resolve();
    transaction.onabort = () => reject(transaction.error ?? new Error("the browser's storage aborted a write"));
  });
}

/** Stores in `localStorage` or `sessionStorage`: one string per name, so it is complete or missing. For small views.
 * @implements {Store} */
export class WebStore {
  #storage;

  /** @param {() => Storage} storage which throws if the browser forbids it */
  constructor(storage) {
    this.#storage = storage;
  }

  /** @param {string} name @returns {Promise<any>} */
  async load(name) {
    return JSON.parse(this.#storage().getItem(slot(name)) ?? "null");
  }

  /** @param {string} name @param {Change} change */
  async save(name, change) {
    const text = this.#storage().getItem(slot(name));
    if (choose(text && JSON.parse(text), change) === "leave") return false;
    const rows = change.all();
    this.#storage().setItem(slot(name), JSON.stringify({ ...change.place, rows }));
    return true;
  }

  /** @param {string} name */
  async forget(name) {
    this.#storage().removeItem(slot(name));
  }
}

/** @param {string} name */
function slot(name) {
  return `penstock.kept.${name}`;
}

/** @param {"indexeddb" | "local" | "session" | Store} chosen @returns {Store} */
export function storeOf(chosen) {
  if (chosen === "local") return new WebStore(() => localStorage);
  if (chosen === "session") return new WebStore(() => sessionStorage);
  return chosen === "indexeddb" ? new IndexedStore() : chosen;
}
