// The pipe: sources, streams, and the views and handlers that read them, in columns from left to right.

import { html } from "../html.js";
import { DoorCard, HandlerCard, SourceCard, StreamCard, ViewCard } from "./card.js";
import { Edges } from "./edges.js";

const COLUMNS_MAX = 5; // if there are more steps than columns, the deepest views share the last column

/** Returns views and handlers, each with its kind, by every name under which others read it. */
function readersOf(app) {
  const nodes = [
    ...app.handlers.filter(({ view }) => !view).map((node) => ({ kind: "handlers", node, names: node.emits })),
    ...app.views.map((node) => ({ kind: "views", node, names: [node.name, `${node.name}.late`, `${node.name}.changes`] })),
  ];
  return { nodes, byName: new Map(nodes.flatMap((each) => each.names.map((name) => [name, each]))) };
}

/** Returns views and handlers in columns: a reader is to the right of what it reads. Cycles cannot be declared. */
export function readerColumns(app) {
  const { nodes, byName } = readersOf(app);
  const depths = new Map();
  const depth = (each) => {
    if (!depths.has(each)) {
      depths.set(each, 0);
      const read = each.node.reads.filter((name) => byName.has(name)).map((name) => 1 + depth(byName.get(name)));
      depths.set(each, Math.min(COLUMNS_MAX - 3, Math.max(0, ...read)));
    }
    return depths.get(each);
  };
  const columns = [];
  for (const each of nodes) (columns[depth(each)] ??= []).push(each);
  return columns;
}

/** Returns the lines {from, to, tone}: bright where events flow, red into nodes that have failed. */
export function edgesOf(app) {
  const { nodes, byName } = readersOf(app);
  const rates = new Map([...app.streams, ...app.views].map((node) => [node.name, node.rate]));
  const rate = (name) => rates.get(name) ?? rates.get(byName.get(name)?.node.name);
  const flow = (rate, error) => (error ? "bad" : rate > 0 ? "flow" : "idle");
  const fed = new Set(app.sources.map(({ into }) => into));
  const origin = (name) => (byName.has(name) ? `${byName.get(name).kind} ${byName.get(name).node.name}` : `streams ${name}`);
  return [
    ...app.sources.map((each) => ({
      from: `sources ${each.name}`, to: `streams ${each.into}`, tone: flow(each.rate, each.error),
    })),
    ...app.streams.filter(({ name, handler, view }) => !handler && !view && !fed.has(name)).map((each) => ({
      from: "door", to: `streams ${each.name}`, tone: flow(each.rate, each.error),
    })),
    ...nodes.flatMap(({ kind, node }) => node.reads.map((name) => ({
      from: origin(name), to: `${kind} ${node.name}`, tone: flow(rate(name), node.error),
    }))),
  ];
}

export function Pipe({ app, figures, place }) {
  const fed = new Set(app.sources.map(({ into }) => into));
  const selected = (kind, { name }) => place.kind === kind && place.name === name;
  const rates = (kind, { name }) => figures.rates(kind, name);
  const collected = app.streams.filter(({ handler, view }) => !handler && !view);
  const door = collected.some(({ name }) => !fed.has(name)) ? [html`<${DoorCard} />`] : [];
  const sources = app.sources.map((source) => html`<${SourceCard} source=${source}
    rates=${rates("sources", source)} />`);
  const streams = collected.map((stream) => html`<${StreamCard} stream=${stream}
    rates=${rates("streams", stream)} selected=${selected("streams", stream)} />`);
  const readers = readerColumns(app).map((column) => column.map(({ kind, node }) => (kind === "views"
    ? html`<${ViewCard} view=${node} rates=${rates(kind, node)} selected=${selected(kind, node)} />`
    : html`<${HandlerCard} handler=${node} rates=${rates(kind, node)}
        selected=${selected(kind, node) || (place.kind === "streams" && node.emits.includes(place.name))} />`)));
  const title = app.handlers.length ? "Handlers and views" : "Views";
  return html`<nav class="pipe at-${place.kind}" aria-label="The pipe">
    <${Edges} edges=${edgesOf(app)} />
    <${Column} title="In" cards=${[...sources, ...door]} />
    <${Column} title="Streams" cards=${streams} />
    ${readers.map((cards, i) => html`<${Column} title=${i ? "Downstream" : title} cards=${cards} />`)}
  </nav>`;
}

function Column({ title, cards }) {
  return html`<section class="column">
    <h2>${title}</h2>
    <ul>${cards.map((card) => html`<li>${card}</li>`)}</ul>
  </section>`;
}
