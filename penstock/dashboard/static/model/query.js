// A query, run once or kept live, with its last result or error.

import { Signal } from "./signal.js";

export const ROWS_MAX = 500; // rows that are drawn; the result may have more

const NOTHING = { columns: [], entries: [], total: 0, truncated: false, elapsed_ms: null };

export class Query {
  /**
   * {running, live, answer: null or {columns, entries, total, truncated, elapsed_ms}, error: null or {detail,
   * position, sql}}. After a failure, the last result stays.
   */
  state = new Signal({ running: false, live: false, answer: null, error: null });
  #penstock;
  #asking = null;
  #subscription = null;

  constructor(penstock) {
    this.#penstock = penstock;
  }

  /** Run a query, once or until `stop`. Cancels the previous one. */
  run(sql, live) {
    this.#leave();
    this.#set({ running: true, live, error: null });
    if (live) this.#follow(sql);
    else this.#ask(sql);
  }

  /** Stop the query; the last result stays. */
  stop() {
    this.#leave();
    this.#set({ running: false, live: false });
  }

  #leave() {
    this.#asking?.abort();
    this.#subscription?.close();
    this.#asking = this.#subscription = null;
  }

  async #ask(sql) {
    const asking = (this.#asking = new AbortController());
    try {
      const found = await this.#penstock.query(sql, { signal: asking.signal });
      if (!asking.signal.aborted) this.#took(found, found.elapsed_ms);
    } catch (error) {
      if (!asking.signal.aborted) this.#failed(sql, error);
    }
  }

  #follow(sql) {
    const asked = {};
    const current = (handler) => (value) => this.#subscription === asked.subscription && handler(value);
    asked.subscription = this.#subscription = this.#penstock.follow("queries", sql, {}, {
      snapshot: current((found) => this.#took(found, null)),
      progress: current(() => this.#set({ running: false })),
      error: current((error) => this.#failed(sql, error)),
    });
  }

  #took({ columns, rows, truncated = false }, elapsed_ms) {
    const before = this.state.value.live ? (this.state.value.answer ?? NOTHING).entries : [];
    const entries = rows.slice(0, ROWS_MAX).map((row, id) => entryOf(row, id, before));
    this.#set({ running: false, error: null, answer: { columns, entries, total: rows.length, truncated, elapsed_ms } });
  }

  #failed(sql, error) {
    this.#leave();
    const { detail = error.message, position = null } = error.problem ?? {};
    this.#set({ running: false, live: false, error: { detail, position, sql } });
  }

  #set(change) {
    this.state.value = { ...this.state.value, ...change };
  }
}

/** Returns the entry for a row at its position, marked as changed if another row was there before. */
function entryOf(row, id, before) {
  const last = before[id];
  const same = last && JSON.stringify(last.row) === JSON.stringify(row);
  if (same) return last;
  return { id, row, changes: before.length ? (last?.changes ?? 0) + 1 : 0 };
}

const WORD = /^(\w+|"[^"]*"?|'[^']*'?|.)/su;

/**
 * Splits the text into three parts: before the error, the error, and the rest; the error is empty if its position is
 * unknown. The position counts characters, some of which have length two in the browser's strings.
 */
export function marked(sql, position) {
  if (position === null) return [sql, "", ""];
  const place = [...sql].slice(0, position).join("").length;
  const [word] = sql.slice(place).match(WORD) ?? [sql.slice(place - 1, place)];
  const start = Math.min(place, sql.length - word.length);
  return [sql.slice(0, start), word, sql.slice(start + word.length)];
}
