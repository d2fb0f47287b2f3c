// The selected stream: its latest events, its dead letters, and how to post to it.

import { Component, html } from "../html.js";
import { columnsOf } from "../model/columns.js";
import * as format from "../model/format.js";
import { link } from "../model/place.js";
import { Tail } from "../model/tail.js";
import { Failure, Strained, tone } from "./card.js";
import { Facts } from "./facts.js";
import { PostHint } from "./hints.js";
import { Table } from "./table.js";

const ROWS_MAX = 100;
const RAW_MAX = 2_000;

export function StreamPanel({ stream, tab, penstock, whole }) {
  const name = tab === "rejected" ? `${stream.name}.rejected` : stream.name;
  const events = tab === "rejected" ? DeadLetters : LatestEvents;
  return html`<section class="panel" aria-label="Stream ${stream.name}">
    <div class="panel-head">
      <h2><span class="dot ${tone(stateOf(stream))}"></span>${stream.name} <${Strained} stream=${stream} /></h2>
      ${whole ? html`<a class="back" href="#/">overview</a>` : null}
    </div>
    <${Facts} facts=${factsOf(stream)} />
    ${stream.error ? html`<${Failure} error=${stream.error} declared=${stream.declared} />` : null}
    <${Strain} stream=${stream} />
    <${Tabs} stream=${stream} tab=${tab} />
    ${tab === "send"
      ? html`<${PostHint} key=${stream.name} stream=${stream} />`
      : html`<${Following} key=${name} ...${{ name, penstock, stream, events }} />`}
  </section>`;
}

function stateOf(stream) {
  if (stream.error) return "failed";
  return stream.held || stream.shedding ? "degraded" : "running";
}

/** Explains, in one sentence each, why the stream accepts no events, and why it sheds events. */
function Strain({ stream: { held, shedding } }) {
  return html`${held ? html`<p class="strained">Accepts no events at the moment: it ${held}.</p>` : null}
    ${shedding ? html`<p class="strained">Shedding events, as declared, since ${format.time(shedding.since)}:
      it ${shedding.reason}.</p>` : null}`;
}

function Tabs({ stream, tab }) {
  if (stream.handler || stream.view) return null; // nobody posts to it
  const rejected = stream.rejected ? `Rejected (${format.compact(stream.rejected)})` : "Rejected";
  const tabs = [[null, "Latest events"], ["rejected", rejected], ["send", "Post an event"]];
  return html`<nav class="tabs" aria-label="Views of ${stream.name}">${tabs.map(([each, title]) => {
    const href = link({ kind: "streams", name: stream.name, tab: each });
    return html`<a href=${href} aria-current=${each === tab ? "page" : null}>${title}</a>`;
  })}</nav>`;
}

/** Follows the tail of one stream for as long as it is on the page. When paused, it still reads but stops drawing. */
export class Following extends Component {
  state = { frozen: null };

  constructor(props) {
    super(props);
    this.tail = new Tail(props.penstock, props.name);
  }

  componentDidMount() {
    this.stop = this.tail.drawn.subscribe(() => this.state.frozen || this.setState({}));
    this.tail.open();
  }

  componentWillUnmount() {
    this.stop();
    this.tail.close();
  }

  toggle() {
    this.setState(({ frozen }) => ({ frozen: frozen ? null : this.tail.entries }));
  }

  render({ stream, events }, { frozen }) {
    const entries = (frozen ?? this.tail.entries).slice(0, ROWS_MAX);
    const { error, loading, partial } = this.tail;
    return html`${error ? html`<${Failure} error=${error} />` : null}
      <${events} ...${{ entries, stream, loading }} />
      ${entries.length ? html`<p class="count">
        newest first, ${format.plural(entries.length, "event")} shown${partial ? "; older events are not shown" : ""}
        <button type="button" onClick=${() => this.toggle()}>${frozen ? "resume" : "pause"}</button>
      </p>` : null}`;
  }
}

function LatestEvents({ entries, stream, loading }) {
  if (!entries.length && loading) return html`<p class="empty">Loading…</p>`;
  if (!entries.length && stream.view) {
    return html`<p class="empty">No late events for the view ${stream.view}.</p>`;
  }
  if (!entries.length && stream.handler) {
    return html`<p class="empty">No events yet: the handler ${stream.handler} has emitted none.</p>`;
  }
  if (!entries.length) return html`<${PostHint} stream=${stream} />`;
  const key = [...new Set([stream.id, stream.key].filter(Boolean))];
  const columns = columnsOf(stream.fields, key, entries);
  return html`<${Table} label="Latest events of ${stream.name}" columns=${columns} entries=${entries} />`;
}

function DeadLetters({ entries, loading }) {
  if (!entries.length) return html`<p class="empty">${loading ? "Loading…" : "Nothing was rejected."}</p>`;
  return html`<ul class="letters">${entries.map(({ id, row }) => html`<li key=${id}>
    <p><b>${row.reason}</b>${row.path ? html` at <code>${row.path}</code>` : null}</p>
    <pre tabindex="0" aria-label="The event as it was sent">${format.clip(format.decoded(row.raw), RAW_MAX)}</pre>
  </li>`)}</ul>`;
}

function factsOf(stream) {
  return [
    ["declared", html`<code>${stream.declared}</code>`],
    ["key", stream.key],
    ["id", stream.id],
    ["time", stream.time],
    ["handler", stream.handler],
    ["late for", stream.view],
    ["partitions", stream.partitions],
    ["events kept", format.number(stream.events ?? 0)],
    ["on disk", format.bytes(stream.bytes ?? 0)],
    ["accepted since start", stream.handler || stream.view ? null : format.number(stream.accepted ?? 0)],
    ["duplicates", stream.duplicates ? format.number(stream.duplicates) : null],
    ["refused", stream.refused ? format.number(stream.refused) : null],
    ["shed", stream.shed ? format.number(stream.shed) : null],
    ["last event", stream.last_event ? format.time(stream.last_event) : null],
    ...(stream.by_source ?? []).map((way) => [`received by ${way.source}`, told(way)]),
  ];
}

/** Describes in one line how many events arrived by one route, leaving out zeros. */
function told(way) {
  const counted = ["accepted", "duplicates", "rejected", "refused", "shed", "failed", "lost"]
    .filter((name) => way[name])
    .map((name) => `${format.number(way[name])} ${name}`);
  const mean = way.durable_ms_mean;
  const durable = mean === null || mean === undefined ? [] : [`durable in ${format.number(Number(mean.toFixed(1)))} ms`];
  return [...counted, ...durable].join(", ") || "nothing yet";
}
