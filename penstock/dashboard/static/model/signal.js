// An observable value.

export class Signal {
  #value;
  #watchers = new Set();

  constructor(value) {
    this.#value = value;
  }

  get value() {
    return this.#value;
  }

  /** Replace the value and call every watcher, even if the value is the same object: its content may have changed. */
  set value(value) {
    this.#value = value;
    for (const watcher of [...this.#watchers]) watcher(value);
  }

  /** Call `watcher` after each change. Returns a function that removes it. */
  subscribe(watcher) {
    this.#watchers.add(watcher);
    return () => this.#watchers.delete(watcher);
  }
}

/**
 * Wraps `action` so that it runs at most once in `interval_ms` and only on an animation frame. A burst of a thousand
 * changes is therefore drawn only a few times, and a hidden tab, which gets no frames, draws nothing until it is
 * visible again.
 */
export function paced(action, interval_ms) {
  let waiting = false;
  let last = -Infinity;
  const run = () => {
    waiting = false;
    last = performance.now();
    action();
  };
  return () => {
    if (waiting) return;
    waiting = true;
    const delay = Math.max(0, last + interval_ms - performance.now());
    setTimeout(() => requestAnimationFrame(run), delay);
  };
}
