// Webhooks. Their figures are part of the app's figures and visible to everyone; owners' data and actions are requested
// here.

import { Signal } from "./signal.js";

export const LETTERS_MAX = 20; // dead letters shown, oldest first; the rest are available from the API

const TROUBLED = ["disabled", "stopped"];

/** Whether a person should look at the webhook. */
export function isTroubled({ state, reason, retrying, dead }) {
  return TROUBLED.includes(state) || retrying > 0 || dead > 0 || (state === "pending" && Boolean(reason));
}

export class Webhooks {
  /**
   * {mine: webhooks that this reader may change, by id; letters: null or the dead letters of one; error: null or a
   * sentence}.
   */
  state = new Signal({ mine: new Map(), letters: null, error: null });
  #penstock;

  constructor(penstock) {
    this.#penstock = penstock;
  }

  /** Load the webhooks that belong to this reader. */
  load() {
    return this.#tried(async () => {
      const { webhooks } = await this.#penstock.get("v1/webhooks");
      this.#set({ mine: new Map(webhooks.map((each) => [each.id, each])) });
    });
  }

  /** Load the dead letters of a webhook. */
  read(id) {
    return this.#tried(async () => {
      const { dead } = await this.#penstock.get(`${pathOf(id)}/dead`, { limit: LETTERS_MAX });
      this.#set({ letters: dead });
    });
  }

  pause(id) {
    return this.#changed(id, "pause");
  }

  resume(id) {
    return this.#changed(id, "resume");
  }

  /** Send a challenge to the address of a pending webhook. */
  verify(id) {
    return this.#changed(id, "verify");
  }

  /** Retry one dead letter, or all of them. */
  revive(id, number = null) {
    return this.#tried(async () => {
      await this.#penstock.post(`${pathOf(id)}/dead/redrive`, { number });
      await this.read(id);
    });
  }

  #changed(id, action) {
    return this.#tried(async () => {
      const told = await this.#penstock.post(`${pathOf(id)}/${action}`);
      this.#set({ mine: new Map(this.state.value.mine).set(id, told) });
    });
  }

  async #tried(action) {
    try {
      this.#set({ error: null });
      await action();
    } catch (error) {
      this.#set({ error: String(error.message ?? error) });
    }
  }

  #set(change) {
    this.state.value = { ...this.state.value, ...change };
  }
}

function pathOf(id) {
  return `v1/webhooks/${encodeURIComponent(id)}`;
}
