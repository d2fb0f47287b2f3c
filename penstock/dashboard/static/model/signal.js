// A value that can be watched.

export class Signal {
  #value;
  #watchers = new Set();

  constructor(value) {
    this.#value = value;
  }

  get value() {
    return this.#value;
  }

  /** Replace the value and call every watcher, also when it is the same object: its content may have changed. */
  set value(value) {
    this.#value = value;
    for (const watcher of [...this.#watchers]) watcher(value);
  }

  /** Call `watcher` at each change. Returns the function that ends this. */
  subscribe(watcher) {
    this.#watchers.add(watcher);
    return () => this.#watchers.delete(watcher);
  }
}

/**
 * `action`, at most once in `interval_ms` and only on an animation frame. A burst of a thousand changes is so drawn a
 * few times, and a hidden tab, which gets no frames, draws nothing until it is seen again.
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
