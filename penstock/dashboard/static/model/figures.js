// What `/v1/app` says, asked each second while the page is seen, and the recent rates for the sparklines.

import { key } from "./key.js";
import { Signal } from "./signal.js";

const POLL_MS = 1_000;
const TIMEOUT_MS = 5_000;
export const SAMPLES = 60;

export class Figures {
  /** {app: the last answer or null, error: why there is no newer one or null, status: 401 or 403 if it was refused}. */
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

  /** Ask at once, as someone else. */
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
      const app = status ? null : this.state.value.app; // what one may not see any more is not shown any more
      this.state.value = { app, error: String(error.message ?? error), status };
    }
    clearTimeout(this.#timer);
    if (this.#running) this.#timer = setTimeout(() => this.#poll(), POLL_MS);
  }

  /** Nodes that are no longer in the app lose their history: memory follows the app's size. */
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
