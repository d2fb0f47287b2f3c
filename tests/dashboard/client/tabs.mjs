// Two tabs that keep the same view under one name, each at its own pace. Whatever they do, the storage has at each time
// the rows that belong to its cursor. `play(client, kind, seed)` gives what was not so, as sentences.

const STEPS = 150;

export async function play({ Copy, Saver, storeOf }, kind, seed) {
  const draw = generator(seed);
  const [history, failures] = [changes(draw), []];
  const clock = Date.now;
  let now_ms = clock();
  Date.now = () => now_ms;
  const store = storeOf(kind);
  const tabs = await Promise.all([0, 1].map(() => opened()));

  async function opened() {
    const copy = new Copy(["k"], 1_000);
    const saver = new Saver(store, "shared", { whose: "", target: "view" }, copy, (error) => failures.push(String(error)));
    return { copy, saver, at: Number(await saver.load()) };
  }

  for (let step = 0; step < STEPS; step++) {
    const number = Math.floor(draw() * 2);
    const tab = tabs[number];
    const what = draw();
    if (what < 0.1) {
      tabs[number] = await opened(); // loaded again
      if (!same(tabs[number].copy, history[tabs[number].at])) failures.push(`a tab begins with rows of another cursor`);
      continue;
    }
    if (what < 0.7 && tab.at + 1 < history.length) {
      const changed = tab.copy.take("change", history[++tab.at].change);
      tab.saver.note(String(tab.at), changed);
    } else if (what < 0.8) {
      tab.saver.note(String(tab.at), tab.copy.take("snapshot", { rows: [...history[tab.at].rows.values()] }));
    }
    now_ms += draw() < 0.3 ? 6_000 : 100;
    await tab.saver.flush();
    const kept = await store.load("shared");
    if (kept && !same({ rows: new Map(kept.rows) }, history[Number(kept.cursor)])) {
      failures.push(`step ${step}: the rows are not those of cursor ${kept.cursor}`);
    }
  }
  Date.now = clock;
  await store.forget("shared");
  return failures;
}

/** The view after each change, and the change. */
function changes(draw) {
  const history = [{ rows: new Map(), change: null }];
  for (let version = 1; version < STEPS; version++) {
    const rows = new Map(history.at(-1).rows);
    const upserts = Array.from({ length: 2 }, () => ({ k: "abcdef"[Math.floor(draw() * 6)], v: version }));
    const deletes = draw() < 0.4 ? [{ k: "abcdef"[Math.floor(draw() * 6)] }] : [];
    for (const row of upserts) rows.set(JSON.stringify([row.k]), row);
    for (const { k } of deletes) rows.delete(JSON.stringify([k]));
    history.push({ rows, change: { upserts, deletes } });
  }
  return history;
}

function same(copy, { rows }) {
  const text = (map) => JSON.stringify([...map].sort(([a], [b]) => (a < b ? -1 : 1)));
  return text(copy.rows) === text(rows);
}

/** Numbers from 0 to 1, the same for the same seed. */
function generator(seed) {
  let state = seed >>> 0;
  return () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 32;
  };
}
