// A node of the pipe: a source, a stream, a handler or a view, with its figures. All except sources open when clicked.

import { html } from "../html.js";
import * as format from "../model/format.js";
import { link } from "../model/place.js";
import { Sparkline } from "./sparkline.js";

const TONES = {
  running: "good", connected: "good", ready: "good", live: "good", idle: "good", active: "good",
  starting: "wait", connecting: "wait", waiting: "wait", degraded: "wait", stopping: "wait", paused: "wait",
  pending: "wait", failed: "bad", gone: "bad", disabled: "bad", stopped: "bad",
};

/** Returns good, wait or bad: the colour of a state. A state that this page does not know is neutral. */
export function tone(state) {
  return TONES[state] ?? "none";
}

/** Returns the colour of a node. Between two failures, a node's problem takes precedence over its state. */
export function toneOf(node, state = node.state) {
  return { red: "bad", amber: "wait" }[node.problem?.level] ?? tone(state);
}

export function StreamCard({ stream, rates, selected }) {
  const state = stream.error ? "failed" : stream.held || stream.shedding ? "degraded" : stream.end > 0 ? "running" : "empty";
  const facts = [
    stream.end > 0 ? format.plural(stream.end, "event") : "no events yet",
    format.bytes(stream.bytes ?? 0),
    stream.duplicates ? format.plural(stream.duplicates, "duplicate") : null,
    stream.refused ? `${format.compact(stream.refused)} refused` : null,
    stream.shed ? `${format.compact(stream.shed)} shed` : null,
  ];
  return html`<${Card} kind="streams" node=${stream} ...${{ state, rates, selected, facts }}>
    <${Strained} stream=${stream} />
    ${stream.rejected ? html`<span class="warning">${format.compact(stream.rejected)} rejected</span>` : null}
  <//>`;
}

/** Shows that a stream currently accepts no events or sheds events, or both. */
export function Strained({ stream }) {
  return html`${stream.held ? html`<span class="strain" title=${stream.held}>held</span>` : null}
    ${stream.shedding ? html`<span class="strain" title=${stream.shedding.reason}>shedding</span>` : null}`;
}

export function ViewCard({ view, rates, selected }) {
  const facts = [
    format.plural(view.rows ?? 0, "row"),
    view.lag ? `${format.compact(view.lag)} behind` : "up to date",
    view.batch_ms ? `${format.compact(view.batch_ms)} ms per batch` : null,
    view.late ? `${format.compact(view.late)} late` : null,
  ];
  if (view.state !== "running") facts[1] = view.state;
  const tag = view.top ? `top ${view.top}` : view.kind === "sql" ? "sql" : null;
  return html`<${Card} kind="views" node=${view} state=${view.state} ...${{ rates, selected, facts, tag }} />`;
}

export function HandlerCard({ handler, rates, selected }) {
  const facts = [
    handler.keys === null ? null : format.plural(handler.keys, "key"),
    handler.state !== "running" ? handler.state : handler.lag ? `${format.compact(handler.lag)} behind` : "up to date",
    handler.emitted ? `${format.compact(handler.emitted)} emitted` : null,
    handler.batch_ms ? `${format.compact(handler.batch_ms)} ms per batch` : null,
  ];
  return html`<${Card} kind="handlers" node=${handler} state=${handler.state} tag="handler"
    ...${{ rates, selected, facts }}>
    ${handler.failed ? html`<span class="warning">${format.compact(handler.failed)} failed</span>` : null}
  <//>`;
}

export function SourceCard({ source, rates }) {
  const facts = [
    source.state,
    `${format.compact(source.received ?? 0)} received`,
    source.lost ? `${format.compact(source.lost)} lost` : null,
    source.reconnects ? format.plural(source.reconnects, "reconnect") : null,
  ];
  return html`<${Card} kind="sources" node=${source} state=${source.state} tag=${source.kind} ...${{ rates, facts }}>
    <span class="address" title=${source.address}>${source.address}</span>
  <//>`;
}

/** The card for events that clients push. */
export function DoorCard() {
  return html`<div class="card door" data-node="door">
    <div class="card-head"><span class="dot good"></span><strong>front door</strong></div>
    <div class="card-facts"><code>POST /v1/streams/…</code></div>
  </div>`;
}

function Card({ kind, node, state, rates, selected, facts, tag, children }) {
  const body = html`
    <div class="card-head">
      <span class="dot ${toneOf(node, state)}"></span>
      <strong title=${node.name}>${node.name}</strong>
      ${tag ? html`<span class="tag">${tag}</span>` : null}
      <span class="card-rate"><b>${format.rate(node.rate)}</b><small>/s</small></span>
    </div>
    <${Sparkline} rates=${rates} />
    <div class="card-facts">${facts.filter(Boolean).map((fact) => html`<span>${fact}</span>`)}${children}</div>
    <${Trouble} node=${node} />`;
  const id = `${kind} ${node.name}`;
  if (kind === "sources") return html`<div class="card" data-node=${id}>${body}</div>`;
  return html`<a class="card" href=${link({ kind, name: node.name })} data-node=${id}
    aria-current=${selected ? "page" : null}>${body}</a>`;
}

/** Shows a node's error, or its problem if there is no error at the moment. */
export function Trouble({ node }) {
  const message = node.error ?? node.problem?.message;
  return message ? html`<${Failure} error=${message} declared=${node.declared} level=${node.problem?.level} />` : null;
}

/** The message of an error, and the place in the user's file that it refers to. */
export function Failure({ error, declared, level = "red" }) {
  return html`<p class="failure ${level}">${error}${declared ? html` <code>${declared}</code>` : null}</p>`;
}
