"""The browser client in a real browser, at a real gateway: its guarantees to the page that uses it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.dashboard.faulty import World, faulty

pytestmark = pytest.mark.browser
NO_WEBSOCKET = """
    window.WebSocket = class {
        static OPEN = 1;
        constructor() { setTimeout(() => this.onclose?.()); }
        close() {}
    };
"""
NO_EVENTS = """
    window.held = new Set();
    const plain = window.fetch;
    window.fetch = (address, init) => String(address).includes("/live") ? new Promise((_, reject) => {
        held.add(String(address));
        init.signal.addEventListener("abort", () => reject(init.signal.reason));
    }) : plain(address, init);
"""
WINDOW = 16
"""Messages that the server may send ahead of a page."""
SCRIPTS = Path(__file__).with_name("client")
PLAY = """
    const module = URL.createObjectURL(new Blob([given[0]], { type: "text/javascript" }));
    const { play } = await import(module);
    const client = await import("/penstock.js");
    const failures = [];
    for (const seed of given[2]) failures.push(...(await play(client, given[1], seed)));
    return failures;
"""
QUICK = """
    const [passed, plainTimeout] = [[], window.setTimeout];
    Math.random = () => 0;
    window.setTimeout = (go, ms) => {
        if (ms >= 10_000) return plainTimeout(go, ms);
        if (ms) passed.push(ms);
        return plainTimeout(go);
    };
"""
"""Waits take no time, and are in `passed`; time limits are unchanged."""
FULL = """
    IDBObjectStore.prototype.put = function () {
        this.transaction.abort();
        throw new DOMException("no room", "QuotaExceededError");
    };
"""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Run a gateway with some events and rows, for all tests: each has its own browser storage."""
    with faulty(tmp_path_factory.mktemp("data"), random.Random(1)) as world:
        world.append(3)
        world.change(random.Random(1), 3)
        yield world


@pytest.fixture
def world(running: World) -> World:
    """Return it, on a network without faults unless the test adds some."""
    running.proxy.calm = True
    return running


def client(page: Page, world: World, script: str, *given: Any) -> Any:
    """Return the result of a script that has `penstock`, a new client, and the arguments `given`."""
    if "/v1/health" not in page.url:
        page.goto(f"{world.address}/v1/health")
    opening = "const { connect } = await import('/penstock.js'); const penstock = connect();"
    return page.evaluate(f"async (given) => {{ {opening} {script} }}", list(given))


def test_without_a_websocket_it_goes_by_server_sent_events(page: Page, world: World) -> None:
    page.add_init_script(NO_WEBSOCKET)
    world.open(page)
    world.append(2)
    assert world.settled(page)["transports"] == ["sse"]


def test_where_event_streams_are_held_back_it_polls(page: Page, world: World) -> None:
    """A proxy holds back an answer until it is complete: the first event does not come in ten seconds."""
    page.clock.install()
    page.add_init_script(NO_WEBSOCKET + NO_EVENTS)
    world.open(page)
    page.wait_for_function("held.size === 2")
    page.clock.fast_forward(11_000)
    world.append(2)
    seen = world.settled(page)
    assert (seen["transports"], seen["notes"]) == (["poll"], world.notes)


def test_it_goes_back_to_a_websocket_when_there_is_one(page: Page, world: World) -> None:
    """A fallback transport is used for a minute; then a WebSocket is tried beside it, and takes over."""
    page.clock.install()
    page.add_init_script(f"window.real = WebSocket; {NO_WEBSOCKET}")
    world.open(page)
    page.wait_for_function("seen.transports.has('sse')")
    page.evaluate("() => { window.WebSocket = window.real }")
    page.clock.fast_forward(70_000)
    page.wait_for_function("seen.transports.has('websocket')")
    world.append(2)
    assert world.settled(page)["notes"] == world.notes


def test_what_answers_in_the_place_of_a_gateway_is_not_taken_for_one(page: Page, world: World) -> None:
    """While the gateway is down, a proxy before it answers: no fallback transport would get through."""
    script = """
        const [asked, phases] = [new Set(), []];
        window.fetch = async (address) => {
            asked.add(new URL(address).pathname);
            return new Response("bad gateway", { status: 502 });
        };
        await new Promise((resolve) => {
            const state = ({ phase }) => phases.push(phase) === 9 && resolve();
            connect(undefined, { state }).follow("streams", "notes", { since: "earliest" });
        });
        return [[...asked], [...new Set(phases)]];
    """
    assert client(page, world, QUICK + NO_WEBSOCKET + script) == [["/v1/health"], ["connecting", "waiting"]]


def test_an_answer_that_was_cut_off_within_its_status_is_asked_for_again(page: Page, world: World) -> None:
    """Browsers report the received part as the status: `HTTP/1.1 2` is a 2."""
    script = """
        const plain = window.fetch;
        let calls = 0;
        window.fetch = async (address, init) => calls++
            ? plain(address, init)
            : { ok: false, status: 2, type: "basic", headers: new Headers(), text: async () => "" };
        const receipt = await penstock.publish("notes", { name: "cut" });
        return [calls, receipt.accepted];
    """
    assert client(page, world, script) == [2, 1]
    world.notes.append("cut")


def test_an_answer_that_is_no_page_is_asked_for_again(page: Page, world: World) -> None:
    script = """
        const plain = window.fetch;
        const answers = ["{}", "null", '{"events": []}', '{"rows": [], "cursor": "c1"}'];
        window.fetch = async (address, init) => (answers.length ? new Response(answers.shift()) : plain(address, init));
        const { events } = await new Promise((snapshot, error) => {
            penstock.follow("streams", "notes", { last: 2 }, { snapshot, error });
        });
        return [answers, events.map(({ name }) => name)];
    """
    assert client(page, world, script) == [[], world.notes[-2:]]


def test_a_long_page_that_comes_slowly_is_waited_for(page: Page, world: World) -> None:
    """It takes two minutes in all, and never half a minute of silence."""
    page.clock.install()
    script = """
        const pieces = ['{"rows": [{"name": "a"', "}, ", '{"name": "b"}', '], "cursor"', ': "v1"}'];
        window.fetch = async (address, { signal }) => new Response(new ReadableStream({
            async start(controller) {
                signal.addEventListener("abort", () => controller.error(signal.reason));
                for (const piece of pieces) {
                    await new Promise((go) => setTimeout(go, 25_000));
                    if (!signal.aborted) controller.enqueue(new TextEncoder().encode(piece));
                }
                if (!signal.aborted) controller.close();
            },
        }));
        const { Http } = await import("/penstock.js");
        const http = new Http(new URL("http://gateway.test/"), async () => null);
        const pages = http.pages({ kind: "views", name: "x" }, null, new AbortController().signal, true, () => {});
        window.come = pages.next().then(({ value }) => value.data.rows.length, ({ name }) => name);
    """
    client(page, world, script)
    for _ in range(5):
        page.clock.run_for(25_000)
    assert page.evaluate("come") == 2


def test_a_long_poll_that_does_not_wait_is_asked_for_less_and_less_until_one_waits(page: Page, world: World) -> None:
    script = """
        const [now, moment] = [Date.now, { late_ms: 0 }];
        Date.now = () => now() + moment.late_ms;
        const waited_ms = [0, 0, 0, 30_000, 0, 0, 0];
        const client = connect(undefined, { transports: ["poll"] });
        await new Promise((resolve) => {
            window.fetch = async () => {
                if (!waited_ms.length) return new Promise(() => resolve());
                moment.late_ms += waited_ms.shift();
                return new Response('{"events": [], "cursor": "c0"}');
            };
            client.follow("streams", "x", { since: "c0" });
        });
        return passed;
    """
    assert client(page, world, QUICK + script) == [125, 250, 500, 125, 250, 500]


def test_how_long_it_waits_can_be_said(page: Page, world: World) -> None:
    """The time limits can be set for following and for sending."""
    script = """
        const client = connect(undefined, { transports: ["poll"], backoff: { base_ms: 100, cap_ms: 300 } });
        let left = 4;
        window.fetch = async () => {
            if (left--) throw new TypeError("no network");
            return new Response('{"accepted": 1}');
        };
        await client.publish("x", {});
        const sending = passed.splice(0);
        left = 4;
        await new Promise((snapshot) => {
            window.fetch = async () => {
                if (left--) throw new TypeError("no network");
                return new Response('{"events": [], "cursor": "c0"}');
            };
            client.follow("streams", "x", { last: 1 }, { snapshot });
        });
        return [sending, [...new Set(passed)]];
    """
    assert client(page, world, QUICK + script) == [[50, 100, 150, 150], [50, 100, 150]]


def test_what_breaks_by_itself_is_asked_for_less_and_less_though_others_thrive(page: Page, world: World) -> None:
    script = """
        const headers = { "Content-Type": "text/event-stream" };
        const refusal = JSON.stringify({ status: 503, code: "busy", retry_after_s: 7 });
        const answers = ["", "", "", `event: error\\ndata: ${refusal}\\n\\n`, ""];
        const [waits, thriving] = [[], {}];
        const client = connect(undefined, { transports: ["sse"] });
        const body = new ReadableStream({ start: (controller) => (thriving.controller = controller) });
        const say = () => thriving.controller.enqueue(
            new TextEncoder().encode('event: change\\nid: c1\\ndata: {"events": []}\\n\\n'),
        );
        window.fetch = async (address) => {
            if (String(address).includes("thrives")) return new Response(body, { headers });
            waits.push(Math.max(0, ...passed.splice(0)));
            const heard = new Promise((resolve) => (thriving.heard = resolve));
            say();
            await heard;
            return answers.length ? new Response(answers.shift(), { headers }) : new Promise(() => {});
        };
        client.follow("streams", "thrives", { since: "c0" }, { change: () => thriving.heard() });
        client.follow("streams", "breaks", { since: "c0" });
        while (waits.length < 6) await new Promise((go) => plainTimeout(go, 5));
        return waits;
    """
    assert client(page, world, QUICK + script) == [0, 125, 250, 500, 7000, 2000]


def test_an_error_that_is_not_json_is_a_broken_event_stream(page: Page, world: World) -> None:
    script = """
        const { Http } = await import("/penstock.js");
        const headers = { "Content-Type": "text/event-stream" };
        window.fetch = async () => new Response("event: error\\ndata: {\\n\\n", { headers });
        const http = new Http(new URL("http://gateway.test/"), async () => null);
        const events = http.events({ kind: "streams", name: "x" }, null, new AbortController().signal, () => {});
        return events.next().then(() => "", ({ name }) => name);
    """
    assert client(page, world, script) == "Broken"


def test_events_are_sent_once_and_in_order_whatever_breaks(page: Page, world: World) -> None:
    """Calls without an answer are repeated with the same key; those of one stream are sent one after the other."""
    page.goto(f"{world.address}/v1/health")
    page.evaluate("async () => { window.client = await import('/penstock.js') }")
    world.proxy.calm = False
    sending = """
        () => {
            const penstock = client.connect();
            const names = Array.from({ length: 40 }, (_, number) => `p${number}`);
            window.sent = Promise.all(names.map((name) => penstock.publish("notes", { name })));
        }
    """
    page.evaluate(sending)
    world.restart()
    receipts = page.evaluate("sent")
    assert all(receipt["accepted"] + receipt["duplicates"] == 1 for receipt in receipts)
    world.proxy.calm = True
    world.notes += [f"p{number}" for number in range(40)]
    script = "return (await penstock.get('v1/streams/notes', { last: 1000 })).events.map(({ name }) => name)"
    assert client(page, world, script) == world.notes
    assert world.proxy.cuts > 0


def test_what_no_retry_helps_is_told_at_once(page: Page, world: World) -> None:
    script = """
        const told = {};
        const errors = Promise.all(given.map(([kind, name, options]) => new Promise((resolve) => {
            const subscription = penstock.follow(kind, name, options, { error: (error) => {
                told[name] = [error.code, error.status, subscription.state.phase];
                resolve();
            } });
        })));
        await errors;
        told.publish = await penstock.publish("nothing", {}).catch(({ code }) => code);
        const rejected = ({ code, problem }) => [code, problem.rejected];
        told.events = await penstock.publish("notes", { wrong: 1 }).catch(rejected);
        return told;
    """
    targets = [["views", "nothing", {}], ["streams", "notes", {"where": "name ="}], ["views", "latest", {"since": "x"}]]
    assert client(page, world, script, *targets) == {
        "nothing": ["not_found", 404, "ended"],
        "notes": ["bad_expression", 400, "ended"],
        "latest": ["bad_cursor", 400, "ended"],
        "publish": "not_found",
        "events": ["invalid_events", 1],
    }


def test_a_slow_page_is_given_one_message_after_the_other(page: Page, world: World) -> None:
    """The next one waits until the promise of a handler is resolved, and no more than the window is sent ahead;
    processed messages are acknowledged, so that it continues beyond the window."""
    script = """
        window.order = [];
        let busy = 0;
        const ready = new Promise((resolve) => {
            penstock.follow("streams", "notes", {}, {
                progress: resolve,
                change: async ({ events }) => {
                    order.push(busy++, ...events.map(({ name }) => name));
                    await new Promise((go) => setTimeout(go, 5));
                    busy--;
                },
            });
        });
        await ready;
    """
    client(page, world, script)
    before, order = len(world.notes), list[Any]()
    while order.count(0) <= 2 * WINDOW:  # a message may have several events
        world.append(20)
        page.wait_for_function("last => order.at(-1) === last", arg=world.notes[-1])
        order = page.evaluate("order")
    assert [name for name in order if name != 0] == world.notes[before:]


def test_a_handler_that_fails_ends_the_subscription_before_the_message(page: Page, world: World) -> None:
    """It is not moved past the message that the page could not process: when resumed, it gives the same message
    again."""
    script = """
        const taken = [];
        let failures = 0;
        await new Promise((resolve) => {
            const subscription = penstock.follow("streams", "notes", { since: "earliest" }, {
                change: ({ events }) => {
                    if (failures === 0) throw new Error("the page is not ready");
                    taken.push(...events.map(({ name }) => name));
                    if (taken.length >= given[0]) resolve();
                },
                error: (error) => {
                    failures++;
                    taken.push(error.message, subscription.cursor);
                    subscription.resume();
                },
            });
        });
        return taken;
    """
    taken = client(page, world, script, len(world.notes) + 2)
    assert taken == ["the page is not ready", None, *world.notes]


def test_a_subscription_can_be_closed_while_the_connection_is_being_made(page: Page, world: World) -> None:
    script = """
        const subscription = penstock.follow("streams", "notes");
        while (penstock.state.phase !== "connecting") await Promise.resolve();
        await subscription.close();
        return subscription.state.phase;
    """
    assert client(page, world, script) == "ended"


def test_a_filter_can_be_changed_on_the_way(page: Page, world: World) -> None:
    """A stream continues from its position, a table begins with the matching rows."""
    script = """
        const table = penstock.table("latest", { key: ["name"], where: "name = 'a'" });
        const until = (condition) => new Promise((resolve, reject) => {
            table.watch(() => (table.error ? reject(table.error) : condition() && resolve()));
        });
        await until(() => table.known);
        const before = table.rows.map(({ name }) => name);
        const more = until(() => table.size > 1);
        table.subscription.filter({ where: "name < 'd'" });
        await more;
        return [before, table.rows.map(({ name }) => name)];
    """
    names = sorted(world.rows)
    assert client(page, world, script) == [
        [name for name in names if name == "a"],
        [name for name in names if name < "d"],
    ]


def test_a_table_has_its_rows_in_order_and_by_key(page: Page, world: World) -> None:
    script = """
        const table = penstock.table("latest", { key: ["name"], order: ["-n", "name"] });
        await new Promise((resolve) => table.watch(() => table.known && resolve()));
        const rows = table.rows.map(({ name, n }) => [name, n]);
        return [rows, table.get(given[0]), table.get("nobody") ?? null, table.size];
    """
    rows, row, missing, size = client(page, world, script, min(world.rows))
    assert rows == [[name, n] for name, n in sorted(world.rows.items(), key=lambda item: (-item[1], item[0]))]
    assert row == {"name": min(world.rows), "n": world.rows[min(world.rows)]}
    assert (missing, size) == (None, len(world.rows))


@pytest.mark.parametrize("order", ["-n, name", "n DESC, name", '"n" desc, name ASC', ["n desc", "name"]])
def test_a_table_takes_the_order_that_the_api_takes(page: Page, world: World, order: str | list[str]) -> None:
    script = """
        const table = penstock.table("latest", { key: ["name"], order: given[0] });
        await new Promise((resolve) => table.watch(() => table.known && resolve()));
        return table.rows.map(({ name, n }) => [name, n]);
    """
    rows = client(page, world, script, order)
    assert rows == [[name, n] for name, n in sorted(world.rows.items(), key=lambda item: (-item[1], item[0]))]


def test_a_page_that_is_not_seen_lets_go_and_catches_up(page: Page, world: World) -> None:
    page.clock.install()
    world.open(page, pauseHidden=True)
    world.settled(page)
    set_hidden(page, True)
    page.clock.run_for(11_000)
    assert page.evaluate("penstock.state.phase") == "paused"
    world.append(4)
    set_hidden(page, False)
    assert world.settled(page)["notes"] == world.notes


def set_hidden(page: Page, hidden: bool) -> None:
    page.evaluate(
        "hidden => { Object.defineProperty(document, 'hidden', { value: hidden, configurable: true });"
        " document.dispatchEvent(new Event('visibilitychange')); }",
        hidden,
    )


@pytest.mark.parametrize("storage", ["indexeddb", "local", "session"])
def test_a_page_that_is_loaded_again_shows_what_it_had_without_a_gateway(
    page: Page, world: World, storage: str
) -> None:
    world.open(page, storage=storage)
    world.settled(page)
    page.evaluate("penstock.close()")
    page.add_init_script(f"{NO_WEBSOCKET} window.fetch = () => Promise.reject(new TypeError('no network'))")
    world.open(page, storage=storage)
    seen = world.settled(page)
    assert seen["kept"] == world.notes
    assert "live" not in seen["states"]


def test_what_was_kept_is_forgotten_when_it_is_said_so(page: Page, world: World) -> None:
    world.open(page)
    world.settled(page)
    page.evaluate("(async () => { await penstock.close(); await penstock.forget('notes') })()")
    world.open(page)
    assert world.settled(page)["kept"] == []


def test_what_was_kept_for_one_is_not_shown_to_another(page: Page, world: World) -> None:
    world.open(page, user="ann")
    world.settled(page)
    page.evaluate("penstock.close()")
    world.open(page, user="bob")
    assert world.settled(page)["kept"] == []
    page.evaluate("penstock.close()")
    world.open(page, user="bob")
    assert world.settled(page)["kept"] == world.notes


def test_what_is_kept_follows_a_change_of_the_filter(page: Page, world: World) -> None:
    """A page that is reloaded with the new filter has its rows, and not those of the previous one."""
    script = """
        const { storeOf } = await import("/penstock.js");
        const table = penstock.table("latest", { key: ["name"], keep: "filtered" });
        const until = (condition) => new Promise((resolve) => table.watch(() => condition() && resolve()));
        await until(() => table.size === given[0].length);
        const fewer = until(() => table.size === given[1].length);
        table.subscription.filter({ where: "name < 'd'" });
        await fewer;
        await table.close();
        const { rows, what } = await storeOf("indexeddb").load("filtered");
        return [rows.map(([, { name }]) => name).sort(), what.includes("name < 'd'")];
    """
    everyone = sorted(world.rows)
    fewer = [name for name in everyone if name < "d"]
    assert 0 < len(fewer) < len(everyone)
    assert client(page, world, script, everyone, fewer) == [fewer, True]


def test_a_stream_that_is_filtered_anew_keeps_its_place_and_events_of_the_new_filter(page: Page, world: World) -> None:
    """A page that is reloaded with the new filter continues from there: nothing is left out, and nothing is shown that
    the filter excludes."""
    script = """
        const { storeOf } = await import("/penstock.js");
        const kept = async () => {
            for (;;) {
                const found = await storeOf("indexeddb").load("turned");
                if (found?.what.includes("LIKE")) return found;
                await new Promise((again) => setTimeout(again, 20));
            }
        };
        const first = await new Promise((resolve) => {
            const subscription = penstock.follow("streams", "notes", { last: 3, keep: "turned" }, {
                snapshot: () => setTimeout(() => resolve(subscription)),
            });
        });
        first.filter({ where: "name LIKE 'n%'" });
        const { rows } = await kept();
        await first.close();
        await penstock.publish("notes", given.map((name) => ({ name })));
        return [rows, await new Promise((resolve) => {
            const found = [];
            penstock.follow("streams", "notes", { where: "name LIKE 'n%'", last: 3, keep: "turned" }, {
                snapshot: ({ events }, { kept }) => found.push(kept, ...events),
                change: ({ events }) => resolve([...found, ...events.map(({ name }) => name)]),
            });
        })];
    """
    names = ["x1", f"n{len(world.notes)}", "x2"]
    world.notes += names
    assert client(page, world, script, *names) == [[], [True, names[1]]]


def test_two_tabs_with_one_name_do_not_spoil_each_other(browser: Browser, world: World) -> None:
    """Both follow and store; one is closed, and the other continues to store. At any time the storage has the data of
    one of them at one cursor."""
    context = browser.new_context()
    first, second = context.new_page(), context.new_page()
    world.open(first)
    world.open(second)
    for _ in range(5):
        world.append(3)
        world.change(random.Random(2), 2)
        assert world.settled(first)["notes"] == world.settled(second)["notes"] == world.notes
    first.evaluate("penstock.close()")
    world.append(3)
    world.settled(second)
    second.evaluate("penstock.close()")
    first.add_init_script(NO_WEBSOCKET + "window.fetch = () => Promise.reject(new TypeError('no network'))")
    world.open(first)
    kept = "() => seen.kept.length && seen.rows.length && [seen.kept, seen.rows]"
    notes, rows = first.wait_for_function(kept).json_value()
    assert notes == world.notes[: len(notes)]
    assert len(notes) >= len(world.notes) - 3
    assert rows == [[name, world.rows[name]] for name in sorted(world.rows)]
    context.close()


@pytest.mark.parametrize("storage", ["indexeddb", "local"])
def test_what_is_kept_belongs_to_its_cursor_whatever_two_tabs_do(page: Page, world: World, storage: str) -> None:
    """The tabs run at different speeds, with pauses and reloads, in any order."""
    assert played(page, world, "tabs.mjs", storage) == []


@pytest.mark.parametrize("storage", ["indexeddb", "local"])
def test_what_is_kept_is_of_its_filter_whenever_that_changes(page: Page, world: World, storage: str) -> None:
    """The filter changes during a write, after a failed one, or before there is data of the new one, in any order."""
    assert played(page, world, "filters.mjs", storage) == []


def played(page: Page, world: World, script: str, storage: str) -> Any:
    seeds = [random.randrange(2**31) for _ in range(5)]
    print(f"seeds {seeds}")
    return client(page, world, PLAY, (SCRIPTS / script).read_text(), storage, seeds)


def test_what_changes_while_it_is_written_is_kept_with_its_own_cursor(page: Page, world: World) -> None:
    script = """
        const { Copy, Saver } = await import("/penstock.js");
        const copy = new Copy(["k"], 1_000);
        const kept = [];
        let release;
        const opened = new Promise((resolve) => { release = resolve; });
        const save = async (name, change) => {
            await opened;
            const rows = change.all();
            kept.push([change.place.cursor, rows.map(([, row]) => row.v)]);
            return true;
        };
        const saver = new Saver({ save }, "name", { whose: "", target: "view" }, copy, () => {});
        saver.note("1", copy.take("change", { upserts: [{ k: "a", v: 1 }], deletes: [] }));
        const writing = saver.flush();
        await Promise.resolve();
        saver.note("2", copy.take("change", { upserts: [{ k: "b", v: 2 }], deletes: [] }));
        release();
        await writing;
        await saver.close();
        return kept;
    """
    assert client(page, world, script) == [["2", [1, 2]], ["2", [1, 2]]]


def test_a_storage_that_is_full_costs_what_was_to_be_kept_and_nothing_else(page: Page, world: World) -> None:
    page.add_init_script(FULL)
    warnings: list[str] = []
    page.on("console", lambda message: warnings.append(message.text) if message.type == "warning" else None)
    world.open(page)
    world.append(3)
    assert world.settled(page)["notes"] == world.notes
    page.evaluate("penstock.close()")
    assert [warning for warning in warnings if "Penstock cannot keep notes" in warning]
    assert len(warnings) == 2, "one for the stream, one for the view"
    world.open(page)
    assert world.settled(page)["kept"] == []


def test_a_gateway_that_restarts_is_noticed_and_said(page: Page, world: World) -> None:
    world.open(page)
    world.settled(page)
    world.restart()
    page.wait_for_function("seen.states.includes('waiting') && seen.states.at(-1) === 'live'")
    world.append(1)
    world.settled(page)
    expect(page.locator("body")).to_be_visible()
