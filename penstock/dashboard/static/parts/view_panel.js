// A live view: bars if it is ranked, a map if its rows have positions, its table, and, when it is selected, everything
// known about it.

import { Component, createRef, html } from "../html.js";
import { columnsOf, defaultSort, sorted } from "../model/columns.js";
import * as format from "../model/format.js";
import { link } from "../model/place.js";
import { companionsOf, hasPlaces, isCompanion } from "../model/places.js";
import { Failure, Trouble, toneOf } from "./card.js";
import { Bars } from "./bars.js";
import { ViewHint } from "./hints.js";
import { Facts } from "./facts.js";
import { PlaceMap } from "./map.js";
import { Table } from "./table.js";

const ROWS_MAX = 300; // drawn in the panel of the selected view
const ROWS_SHORT = 8; // drawn in the overview

/** Follows its view only while it is visible, so on a page with many views, only those on the screen use resources. */
export class ViewPanel extends Component {
  frame = createRef();

  constructor(props) {
    super(props);
    this.rows = props.feeds.rows(props.view);
    this.attached = false;
  }

  componentDidMount() {
    this.stop = this.rows.drawn.subscribe(() => this.setState({}));
    this.observer = new IntersectionObserver(([change]) => this.show(change.isIntersecting), { rootMargin: "200px" });
    this.observer.observe(this.frame.current);
  }

  componentWillUnmount() {
    this.observer.disconnect();
    this.stop();
    this.show(false);
  }

  show(visible) {
    if (visible === this.attached) return;
    this.attached = visible;
    if (visible) this.rows.attach();
    else this.rows.detach();
    this.setState({});
  }

  render({ view, app, feeds, whole, sort, onSort }) {
    const entries = [...this.rows.entries.values()];
    const columns = columnsOf(view.columns, view.key, entries);
    const order = sort ?? defaultSort(view, columns);
    const total = Math.max(view.rows ?? 0, entries.length);
    const content = { view, app, feeds, columns, order, whole, onSort, entries, total, seen: this.attached };
    return html`<section class="panel" ref=${this.frame} aria-label="View ${view.name}">
      <${Title} view=${view} whole=${whole} />
      ${whole ? html`<${Facts} facts=${factsOf(view)} />` : null}
      <${Trouble} node=${view} />
      ${this.rows.error ? html`<${Failure} error=${this.rows.error} />` : null}
      ${this.rows.behind ? html`<${Behind} changes=${this.rows.behind} />` : null}
      ${entries.length
        ? html`<${Content} ...${content} />`
        : html`<${ViewHint} ...${{ view, app, whole, known: this.rows.known }} />`}
    </section>`;
  }
}

function Behind({ changes }) {
  return html`<p class="note">This page is ${format.plural(changes, "change")} behind and is catching up.</p>`;
}

function Title({ view, whole }) {
  return html`<div class="panel-head">
    <h2><span class="dot ${toneOf(view)}" title=${view.state}></span>
      ${whole ? view.name : html`<a href=${link({ kind: "views", name: view.name })}>${view.name}</a>`}</h2>
    <span class="panel-reads">from ${view.reads.join(", ")}</span>
    ${whole ? html`<a class="back" href="#/">overview</a>` : null}
  </div>`;
}

function Content({ view, app, feeds, columns, order, whole, onSort, entries, total, seen }) {
  const shown = sorted(entries, columns, order).slice(0, whole ? ROWS_MAX : ROWS_SHORT);
  const bars = view.top && view.by ? html`<${Bars} entries=${entries} columns=${columns} view=${view} />` : null;
  if (bars && !whole) return bars;
  const companions = companionsOf(view, app);
  const map = hasPlaces(columns) && (whole || !isCompanion(view, app))
    ? html`<${PlaceMap} key=${companions.map(({ name }) => name).join()}
        ...${{ view, companions, feeds, columns, entries, whole, seen }} />` : null;
  return html`${bars}${map}
    <${Table} label="Rows of ${view.name}" columns=${columns} entries=${shown} sort=${order}
      onSort=${whole ? onSort : null} />
    <p class="count">showing ${format.compact(shown.length)} of ${format.plural(total, "row")}</p>`;
}

function factsOf(view) {
  return [
    ["declared", html`<code>${view.declared}</code>`],
    ["written in", view.kind === "sql" ? "SQL" : "Python"],
    ["reads", view.reads.join(", ")],
    ["recomputed", view.derived ? "when the rows that it reads change" : null],
    ["key", view.key.join(", ")],
    ["ranked", view.top ? `top ${view.top} by ${view.by}` : null],
    ["shows a window", view.emit === "close" ? "when it is complete" : null],
    ["behind", format.plural(view.lag ?? 0, "event")],
    ["rows", format.number(view.rows ?? 0)],
    ["version", format.number(view.version ?? 0)],
    ["last batch", view.batch_id],
    ["batch took", view.batch_ms ? `${format.compact(view.batch_ms)} ms` : null],
    ["event time", view.time === "ingest" ? "arrival of the event" : null],
    ["watermark", view.watermark ? format.time(view.watermark) : null],
    ["behind the clock", view.skew_s ? `${format.compact(view.skew_s)} s` : null],
    ["maintained by", view.kind === "handler" ? html`<a href=${link({ kind: "handlers", name: view.name })}>its handler</a>` : null],
    ["late events", view.late ? html`<a href=${link({ kind: "streams", name: `${view.name}.late` })}>
      ${format.number(view.late)}</a>` : null],
  ];
}
