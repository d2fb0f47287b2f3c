// The contents of `/v1/app`, polled each second while the page is visible, and recent rates for the sparklines.

import { key } from "./key.js";
import { Signal } from "./signal.js";

const POLL_MS = 1_000;
const TIMEOUT_MS = 5_000;
export const SAMPLES = 60;

export class Figures {
  /** {app: the last response or null, error: why there is no newer response or null, status: 401 or 403 if refused}. */
  state = new Signal({ app: null, error: null, status: null });
  #penstock;
  #timer = null;
  #running = false;
  #rates = new Map();

  constructor(penstock) {
    this.#penstock = penstock;
  }

  start() {
    if (this.#running) return;
    this.#running = true;
    this.#poll();
  }

  /** Poll at once with another key. */
  restart() {
    this.stop();
    this.state.value = { app: null, error: null, status: null };
    this.start();
  }

  stop() {
    this.#running = false;
    clearTimeout(this.#timer);
  }

  /** The last rates of a node, oldest first, at most SAMPLES. `kind` is streams, views or sources. */
  rates(kind, name) {
    return this.#rates.get(`${kind} ${name}`) ?? [];
  }

  async #poll() {
    const asker = key.value;
    try {
      const app = await this.#penstock.get("v1/app", {}, { timeout_ms: TIMEOUT_MS });
      if (asker !== key.value) return;
      this.#remember(app);
      this.state.value = { app, error: null, status: null };
    } catch (error) {
      if (asker !== key.value) return;
      const status = [401, 403].includes(error.status) ? error.status : null;
      const app = status ? null : this.state.value.app; // data that the reader may no longer see is removed
      this.state.value = { app, error: String(error.message ?? error), status };
    }
    clearTimeout(this.#timer);
    if (this.#running) this.#timer = setTimeout(() => this.#poll(), POLL_MS);
  }

  /** Drops the history of nodes that are no longer in the app: memory is bounded by the app's size. */
  #remember(app) {
    const next = new Map();
    for (const kind of ["sources", "streams", "views"]) {
      for (const { name, rate } of app[kind]) {
        next.set(`${kind} ${name}`, [...this.rates(kind, name), rate ?? 0].slice(-SAMPLES));
      }
    }
    this.#rates = next;
  }
}
