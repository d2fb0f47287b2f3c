// A stream or view that the page follows. A refused subscription is retried, because the target may appear later.

const REFUSED_RETRY_MS = 5_000;

export class Following {
  #penstock;
  #kind;
  #name;
  #options;
  #handlers;
  #tell;
  #cursor = null;
  #subscription = null;
  #timer = null;

  /** `options` and `handlers` are those of the client's `follow`; `handlers.error` is called after each refusal. */
  constructor(penstock, kind, name, options, handlers) {
    this.#penstock = penstock;
    this.#kind = kind;
    this.#name = name;
    this.#options = options;
    this.#handlers = { ...handlers, error: (error) => this.#refused(error) };
    this.#tell = handlers.error;
  }

  /** Start, or resume from the last cursor. */
  open() {
    const options = this.#cursor ? { since: this.#cursor } : this.#options;
    this.#subscription = this.#penstock.follow(this.#kind, this.#name, options, this.#handlers);
  }

  /** Stop, and remember the cursor. */
  close() {
    clearTimeout(this.#timer);
    this.#cursor = this.#subscription.cursor;
    this.#subscription.close();
  }

  /** A cursor that the server rejects is dropped at once; any other refusal is retried after a while. */
  #refused(error) {
    this.#tell(error);
    this.close();
    const stale = error.code === "bad_cursor" && this.#cursor !== null;
    if (stale) this.#cursor = null;
    this.#timer = setTimeout(() => this.open(), stale ? 0 : REFUSED_RETRY_MS);
  }
}
