// The selected handler: its state, the events that it failed on, and the state of a key.

import { Component, html } from "../html.js";
import * as format from "../model/format.js";
import { link } from "../model/place.js";
import { Failure, Trouble, toneOf } from "./card.js";
import { Facts } from "./facts.js";
import { Following } from "./stream_panel.js";

const EVENT_MAX = 2_000;

export function HandlerPanel({ handler, penstock }) {
  const failed = `${handler.name}.failed`;
  return html`<section class="panel" aria-label="Handler ${handler.name}">
    <div class="panel-head">
      <h2><span class="dot ${toneOf(handler)}" title=${handler.state}></span>${handler.name}</h2>
      <span class="panel-reads">from ${handler.reads.join(", ")}</span>
      <a class="back" href="#/">overview</a>
    </div>
    <${Facts} facts=${factsOf(handler)} />
    <${Trouble} node=${handler} />
    <h3>Failures</h3>
    <${Following} key=${failed} name=${failed} ...${{ penstock, stream: handler, events: Failures }} />
    <h3>State of a key</h3>
    <${KeyState} key=${handler.name} handler=${handler} penstock=${penstock} />
  </section>`;
}

/** The events for which the handler raised an error, each with its origin and the traceback. */
function Failures({ entries, loading }) {
  if (!entries.length) return html`<p class="empty">${loading ? "Loading…" : "No failed events."}</p>`;
  return html`<ul class="letters">${entries.map(({ id, row }) => html`<li key=${id}>
    <p><b>${row.error}</b> on an event of <code>${row.stream}</code>${row.key ? html`, key <code>${row.key}</code>` : null}</p>
    <pre tabindex="0" aria-label="The event">${format.clip(row.event ?? "", EVENT_MAX)}</pre>
    <details><summary>traceback</summary><pre tabindex="0" aria-label="Traceback">${row.traceback}</pre></details>
  </li>`)}</ul>`;
}

/** Requests the state of a key when the key is submitted, not while it is typed. */
class KeyState extends Component {
  state = { asked: null, found: null, error: null };

  async ask(event) {
    event.preventDefault();
    const asked = event.target.elements.key.value;
    const { handler, penstock } = this.props;
    const path = `v1/handlers/${encodeURIComponent(handler.name)}/state/${encodeURIComponent(asked)}`;
    try {
      const found = await penstock.get(path);
      this.setState({ asked, found, error: null });
    } catch (error) {
      this.setState({ asked, found: null, error: String(error.message ?? error) });
    }
  }

  render({ handler }, { asked, found, error }) {
    return html`<form class="key-state" onSubmit=${(event) => this.ask(event)}>
        <label>${named(handler)} <input name="key" required autocomplete="off" placeholder=${example(handler)} /></label>
        <button type="submit">show</button>
      </form>
      ${error ? html`<${Failure} error=${error} />` : null}
      ${found ? html`<pre tabindex="0" aria-label="State of ${asked}">${shown(found)}</pre>` : null}`;
  }
}

/** Returns the names of a handler's key fields. */
function named(handler) {
  return [].concat(handler.key).join(", ");
}

/** Returns an example of a key with several fields. */
function example(handler) {
  return Array.isArray(handler.key) ? JSON.stringify(handler.key.map((name) => `a ${name}`)) : null;
}

function shown({ state, timers }) {
  return JSON.stringify(Object.keys(timers ?? {}).length ? { state, timers } : state, null, 2);
}

function factsOf(handler) {
  const stream = (name) => html`<a href=${link({ kind: "streams", name })}>${name}</a> `;
  return [
    ["declared", html`<code>${handler.declared}</code>`],
    ["state", handler.state],
    ["key", named(handler)],
    ["fills", handler.emits.map(stream)],
    ["updates", handler.view ? html`<a href=${link({ kind: "views", name: handler.view })}>${handler.view}</a>` : null],
    ["behind", format.plural(handler.lag ?? 0, "event")],
    ["keys", handler.keys === null ? null : format.number(handler.keys)],
    ["emitted", handler.emitted ? format.number(handler.emitted) : null],
    ["failed on", handler.failed ? format.plural(handler.failed, "event") : null],
    ["batch took", handler.batch_ms ? `${format.compact(handler.batch_ms)} ms` : null],
    ["watermark", handler.watermark ? format.time(handler.watermark) : null],
  ];
}
