// A page that changes its filter while it keeps, in a storage that is slow, fails, or is left to another tab. Whatever
// the order, what is stored under a filter are rows and cursor of that filter, or none. `play(client, kind, seed)` gives
// what was not so, as sentences.

const STEPS = 120;
const FILTERS = ["n > 10", "n < 10", "n = 10"];
const LAST = 4; // events of a stream that are kept

export async function play(client, kind, seed) {
  const failures = [];
  for (const Followed of [View, Stream]) failures.push(...(await played(client, kind, generator(seed), Followed)));
  return failures;
}

async function played({ Copy, Saver, storeOf }, kind, draw, Followed) {
  const [store, failures] = [new Slow(storeOf(kind), draw), []];
  const followed = new Followed(Copy);
  const what = (where) => ({ whose: "", target: { where } });
  const saver = new Saver(store, "turned", what(followed.where), followed.copy, () => {});
  const look = async (when) => {
    const kept = await store.inner.load("turned");
    const where = kept && JSON.parse(kept.what)[1].where;
    const wrong = kept?.cursor && followed.wrong(where, kept);
    if (wrong) failures.push(`${when}: under ${where} at ${kept.cursor}: ${wrong}`);
    return kept && [where, kept.cursor];
  };
  for (let step = 0; step < STEPS; step++) {
    const chosen = draw();
    if (chosen < 0.2) saver.turn({ where: followed.turn(draw) }, followed.cursor);
    else if (chosen < 0.6) saver.note(...followed.next());
    else if (chosen < 0.8) saver.flush();
    else await store.goOn();
    await look(`step ${step}`);
  }
  saver.note(...followed.next());
  store.good = true;
  let closed = false;
  saver.close().then(() => (closed = true));
  while (!closed) await store.goOn();
  const last = JSON.stringify(await look("at the end"));
  if (last !== JSON.stringify([followed.where, followed.cursor])) failures.push(`at the end there is ${last}`);
  await store.inner.forget("turned");
  return failures;
}

/** A view, whose rows say which filter and version they are of. Through each filter it begins with a snapshot. */
class View {
  where = FILTERS[0];
  cursor = null;
  #version = 0;

  constructor(Copy) {
    this.copy = new Copy(["k"], 1_000);
  }

  turn(draw) {
    this.cursor = null;
    return (this.where = one(FILTERS, draw));
  }

  next() {
    const event = this.cursor === null ? "snapshot" : "change";
    const rows = ["a", "b"].map((k) => ({ k, v: this.#version + 1, where: this.where }));
    this.cursor = `${this.where} ${++this.#version}`;
    return [this.cursor, this.copy.take(event, event === "snapshot" ? { rows } : { upserts: rows, deletes: [] })];
  }

  wrong(where, { cursor, rows }) {
    const fit = rows.length === 2 && rows.every(([, row]) => row.where === where && cursor === `${where} ${row.v}`);
    return fit ? "" : JSON.stringify(rows);
  }
}

/** A stream, whose events say which filter they passed. It goes on from where it is. */
class Stream {
  where = FILTERS[0];
  cursor = null;
  #turned = 0;
  #number = 0;

  constructor(Copy) {
    this.copy = new Copy(null, LAST);
  }

  turn(draw) {
    this.copy.take("reset", {});
    this.#turned = this.#number;
    return (this.where = one(FILTERS, draw));
  }

  next() {
    const event = { n: ++this.#number, where: this.where, first: this.#turned + 1 };
    this.cursor = String(this.#number);
    return [this.cursor, this.copy.take("change", { events: [event] })];
  }

  wrong(where, { cursor, rows }) {
    const events = rows.map(([, event]) => event);
    const after = Math.max(Number(cursor) - LAST, (events.at(-1)?.first ?? Number(cursor) + 1) - 1);
    const numbers = Array.from({ length: Number(cursor) - after }, (_, place) => after + 1 + place);
    const fit = JSON.stringify(events.map(({ n }) => n)) === JSON.stringify(numbers.filter((n) => n > 0));
    return fit && events.every((event) => event.where === where) ? "" : JSON.stringify(events);
  }
}

/** A store that begins a write when it is told to, and fails at some. */
class Slow {
  good = false;
  #held = [];

  constructor(inner, draw) {
    this.inner = inner;
    this.draw = draw;
  }

  async save(name, change) {
    await new Promise((resolve) => this.#held.push(resolve));
    const chosen = this.good ? 1 : this.draw();
    if (chosen < 0.2) throw new Error("no room");
    return chosen < 0.4 ? false : this.inner.save(name, change);
  }

  /** Let a write go on, if there is one. */
  async goOn() {
    await new Promise((resolve) => setTimeout(resolve));
    this.#held.shift()?.();
  }
}

function one(list, draw) {
  return list[Math.floor(draw() * list.length)];
}

/** Numbers from 0 to 1, the same for the same seed. */
function generator(seed) {
  let state = seed >>> 0;
  return () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 32;
  };
}
