// The pipe: what comes in, the streams, and the views that read them, in columns from left to right.

import { html } from "../html.js";
import { DoorCard, SourceCard, StreamCard, ViewCard } from "./card.js";
import { Edges } from "./edges.js";

const COLUMNS_MAX = 5; // with more steps than fit, the deepest views share the last column

/** The views in columns: one that reads another view stands to the right of it. A cycle cannot be declared. */
export function viewColumns(views) {
  const byName = new Map(views.map((view) => [view.name, view]));
  const depths = new Map();
  const depth = (view) => {
    if (!depths.has(view.name)) {
      depths.set(view.name, 0);
      const read = view.reads.filter((name) => byName.has(name)).map((name) => 1 + depth(byName.get(name)));
      depths.set(view.name, Math.min(COLUMNS_MAX - 3, Math.max(0, ...read)));
    }
    return depths.get(view.name);
  };
  const columns = [];
  for (const view of views) (columns[depth(view)] ??= []).push(view);
  return columns;
}

/** The lines {from, to, tone}: bright where events flow, red into what has failed. */
export function edgesOf(app) {
  const rates = new Map([...app.streams, ...app.views].map((node) => [node.name, node.rate]));
  const streams = new Set(app.streams.map(({ name }) => name));
  const flow = (rate, error) => (error ? "bad" : rate > 0 ? "flow" : "idle");
  const fed = new Set(app.sources.map(({ into }) => into));
  return [
    ...app.sources.map((each) => ({
      from: `sources ${each.name}`, to: `streams ${each.into}`, tone: flow(each.rate, each.error),
    })),
    ...app.streams.filter(({ name }) => !fed.has(name)).map((each) => ({
      from: "door", to: `streams ${each.name}`, tone: flow(each.rate, each.error),
    })),
    ...app.views.flatMap((view) => view.reads.map((name) => ({
      from: `${streams.has(name) ? "streams" : "views"} ${name}`,
      to: `views ${view.name}`,
      tone: flow(rates.get(name), view.error),
    }))),
  ];
}

export function Pipe({ app, figures, place }) {
  const fed = new Set(app.sources.map(({ into }) => into));
  const selected = (kind, { name }) => place.kind === kind && place.name === name;
  const rates = (kind, { name }) => figures.rates(kind, name);
  const door = app.streams.some(({ name }) => !fed.has(name)) ? [html`<${DoorCard} />`] : [];
  const sources = app.sources.map((source) => html`<${SourceCard} source=${source}
    rates=${rates("sources", source)} />`);
  const streams = app.streams.map((stream) => html`<${StreamCard} stream=${stream}
    rates=${rates("streams", stream)} selected=${selected("streams", stream)} />`);
  const views = viewColumns(app.views).map((column) => column.map((view) => html`<${ViewCard} view=${view}
    rates=${rates("views", view)} selected=${selected("views", view)} />`));
  return html`<nav class="pipe at-${place.kind}" aria-label="The pipe">
    <${Edges} edges=${edgesOf(app)} />
    <${Column} title="In" cards=${[...sources, ...door]} />
    <${Column} title="Streams" cards=${streams} />
    ${views.map((cards, i) => html`<${Column} title=${i ? "Views of views" : "Views"} cards=${cards} />`)}
  </nav>`;
}

function Column({ title, cards }) {
  return html`<section class="column">
    <h2>${title}</h2>
    <ul>${cards.map((card) => html`<li>${card}</li>`)}</ul>
  </section>`;
}
