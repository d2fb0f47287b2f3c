// The client against the vectors of docs/protocol.md, in whatever runs JavaScript: node, or a browser.
//
// `check(client, vectors)` gives a sentence for each case that is not as the vectors say. `client` are the exports of
// penstock.js, `vectors` the files by their names.

export async function check(client, vectors) {
  const failures = [];
  for (const [file, test] of Object.entries(TESTS)) {
    for (const example of vectors[file].cases) {
      try {
        await test(client, example);
      } catch (error) {
        failures.push(`${file}: ${example.name}: ${error.message}`);
      }
    }
  }
  return failures;
}

const TESTS = {
  positions, table, backoff, requests, pages, socket,
  errors: ({ retriable }, { status, code, retry }) => same(retriable(status, code), retry),
  sse: serverSentEvents,
};

function same(found, wanted, what = "") {
  const [left, right] = [text(found), text(wanted)];
  if (left !== right) throw new Error(`${what} is ${left}, and should be ${right}`);
}

/** JSON with the names of objects in order. */
function text(value) {
  const sorted = (_, each) => each && typeof each === "object" && !Array.isArray(each)
    ? Object.fromEntries(Object.entries(each).sort(([a], [b]) => (a < b ? -1 : 1))) : each;
  return JSON.stringify(value, sorted);
}

function targetOf({ stream, view, ...filter }) {
  return { kind: view ? "views" : "streams", name: view ?? stream, ...filter };
}

/** Each message comes on a WebSocket of its own, which then breaks: where does the next one begin? */
async function positions(client, { kind, since, messages, positions: wanted }) {
  const world = new World();
  const target = { kind: `${kind}s`, name: "x" };
  const subscription = world.follow(client, target, since);
  for (const [place, position] of wanted.entries()) {
    const { since: asked } = await world.asked();
    same(asked ?? null, position, `after ${place} messages the position`);
    const message = messages[place];
    if (message?.broken) world.hearText(message.broken);
    else if (message) world.hear(message.kind, message.cursor, message.data);
    await world.settled();
    world.lose();
  }
  await subscription.close();
}

function table({ Copy }, { key, messages, after }) {
  const copy = new Copy(key, 1_000);
  const rows = (each) => each.map(text).sort();
  messages.forEach(({ kind, data }, place) => {
    copy.take(kind, data);
    same(rows([...copy.rows.values()]), rows(after[place]), `after message ${place + 1} the table`);
  });
}

function backoff({ backoff_ms, refusedBy }, { base_s, cap_s, steps }) {
  const bounds = { base_ms: base_s * 1000, cap_ms: cap_s * 1000 };
  let failures = 0;
  for (const { random, retry_after_s, problem, delay_s, message, retry_ms } of steps) {
    if (message) failures = 0;
    if (retry_ms !== undefined) bounds.base_ms = Math.min(retry_ms, bounds.cap_ms);
    if (delay_s === undefined) continue;
    const after_s = problem ? refusedBy(problem).retryAfter_s : (retry_after_s ?? 0);
    const delay_ms = backoff_ms(failures++, random, bounds, after_s * 1000);
    if (Math.abs(delay_ms - delay_s * 1000) > 0.001) throw new Error(`the delay is ${delay_ms} ms, not ${delay_s} s`);
  }
}

function requests({ requestOf, pollOf, subscriptionOf }, { transport, target, since, request }) {
  if (transport === "websocket") return same(subscriptionOf(targetOf(target), since), request.say);
  const { path, query } = transport === "poll" ? pollOf(targetOf(target), since) : requestOf(targetOf(target), since);
  same(`/${path}${transport === "sse" ? "/live" : ""}`, request.path);
  same(Object.fromEntries(Object.entries(query).map(([name, value]) => [name, String(value)])), request.query);
}

function pages({ Broken, messagesOf }, { asked, page, messages, error, broken = false }) {
  let [found, lost] = [null, false];
  try {
    const told = messagesOf(page, asked).map(({ event, ...rest }) => ({ kind: event, ...rest }));
    same(told, messages);
  } catch (caught) {
    lost = caught instanceof Broken;
    if (!lost && !caught.code) throw caught;
    found = caught.code ?? null;
  }
  same([lost, found], [broken, error], "what is thrown");
}

function serverSentEvents({ EventStream }, { text: given, hex, events, last_id, retry_ms }) {
  const bytes = hex === undefined
    ? new TextEncoder().encode(given) : Uint8Array.from(hex.match(/../g) ?? [], (pair) => parseInt(pair, 16));
  for (let cut = 0; cut <= bytes.length; cut++) {
    const [stream, decoder] = [new EventStream(), new TextDecoder()];
    const pieces = [bytes.subarray(0, cut), bytes.subarray(cut)].map((piece) => decoder.decode(piece, { stream: true }));
    const found = pieces.flatMap((piece) => stream.push(piece));
    same(found.map(({ event, data, id }) => ({ type: event, data, id })), events, `cut at ${cut}, it`);
    same([stream.lastId, stream.retry_ms], [last_id, retry_ms], `cut at ${cut}, id and retry`);
  }
}

/**
 * The steps of a page with several subscriptions. Ids are compared by the order in which they were first said. This
 * client hands a message to the page when the page is done with the one before, and asks anew when it is done with all:
 * so what is given is compared at the end, and what the page holds up is taken before anything is asked.
 */
async function socket(client, { window, steps }) {
  const world = new World(window);
  const ids = new Map();
  const subscriptions = [];
  for (const { subscribe, since, hear, take, lost, say, waited_s } of steps) {
    if (subscribe) subscriptions.push(world.follow(client, targetOf(subscribe), since));
    if (hear) world.socket.hear(JSON.stringify({ ...hear, id: ids.get(hear.id) ?? hear.id }));
    if (take) await world.take();
    if (lost) world.lose();
    await world.settled();
    const asks = say.some(({ op }) => op === "subscribe");
    if (asks && !subscribe) await world.takeAll();
    if (asks) world.link.retry();
    await world.settled();
    const rests_s = world.rests_ms.splice(0).map((each) => each / 1000);
    if (waited_s) same(rests_s, waited_s, "what is waited");
    const said = lost ? [] : world.said();
    const alike = (each) => text({ ...each, id: null });
    for (const each of say) if (!ids.has(each.id)) ids.set(each.id, said.find((one) => alike(one) === alike(each))?.id);
    same(said.map(text).sort(), say.map((each) => text({ ...each, id: ids.get(each.id) })).sort(), "what is said");
  }
  await world.takeAll();
  same(world.given.sort(), steps.flatMap(({ given }) => (given ? [given[1]] : [])).sort(), "what is given");
  await Promise.all(subscriptions.map((each) => each.close()));
}

/** Stands for the network: WebSockets that the test hears and speaks for, and a page that takes messages when told. */
class World {
  given = [];
  sockets = [];
  /** How long each pause of one subscription alone would have been. */
  rests_ms = [];
  #waiting = [];

  /** With a window, the page is not done with a message until it is told to be. */
  constructor(window) {
    this.window = window;
    const world = this;
    Math.random = () => 0;
    globalThis.WebSocket = class FakeSocket {
      static OPEN = 1;
      readyState = 0;
      sent = [];

      constructor() {
        world.sockets.push(this);
        setTimeout(() => {
          this.readyState = 1;
          this.onopen();
        });
      }

      send(message) {
        this.sent.push(JSON.parse(message));
      }

      hear(data) {
        this.onmessage?.({ data });
      }

      close() {
        this.readyState = 3;
        this.onclose?.();
      }
    };
  }

  get socket() {
    return this.sockets.at(-1);
  }

  follow(client, target, since) {
    this.link ??= this.#linked(client);
    const done = (_, { cursor }) => {
      this.given.push(cursor);
      return this.window ? new Promise((resolve) => this.#waiting.push(resolve)) : undefined;
    };
    const handlers = Object.fromEntries(["snapshot", "change", "progress", "stall", "reset"].map((each) => [each, done]));
    handlers.error = (error) => this.given.push(error.code);
    return new client.Subscription(this.link, target, handlers, { since: since ?? undefined }, () => {});
  }

  #linked({ Link }) {
    const link = new Link(new URL("http://gateway.test/"), async () => null, ["websocket"], () => {}, { window: this.window });
    const rest = link.rest.bind(link);
    link.rest = (delay_ms, signal) => {
      this.rests_ms.push(delay_ms);
      return rest(delay_ms, signal);
    };
    return link;
  }

  hear(event, cursor, data) {
    const { id } = this.socket.sent.findLast(({ op }) => op === "subscribe");
    this.socket.hear(JSON.stringify({ id, event, cursor, data }));
  }

  /** What is no message, under the id of the subscription. */
  hearText(given) {
    const { id } = this.socket.sent.findLast(({ op }) => op === "subscribe");
    this.socket.hear(given.replace("{", `{"id": "${id}", `));
  }

  async take() {
    await this.settled();
    this.#waiting.shift()?.();
    await this.settled();
  }

  async takeAll() {
    while (this.#waiting.length) await this.take();
    await this.settled();
  }

  lose() {
    this.socket.close();
  }

  /** The next subscription that is asked for, on a new connection. */
  async asked() {
    this.link.retry();
    await this.settled();
    return this.socket.sent.find(({ op }) => op === "subscribe");
  }

  /** What was said since the last call. */
  said() {
    return this.socket.sent.splice(0);
  }

  async settled() {
    for (let turn = 0; turn < 5; turn++) await new Promise((resolve) => setTimeout(resolve));
  }
}
