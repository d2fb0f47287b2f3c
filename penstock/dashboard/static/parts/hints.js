// Hints shown when there is no data yet: always the next thing to do.

import { Component, html } from "../html.js";
import { curlCommand, webhookCommand } from "../model/example.js";
import { key } from "../model/key.js";
import { link } from "../model/place.js";

const COPIED_MS = 1_500;

/** A command or a piece of code with a button that copies it. */
class Snippet extends Component {
  state = { copied: false };

  componentWillUnmount() {
    clearTimeout(this.timer);
  }

  async copy() {
    await navigator.clipboard?.writeText(this.props.text);
    this.setState({ copied: true });
    this.timer = setTimeout(() => this.setState({ copied: false }), COPIED_MS);
  }

  render({ text, label }, { copied }) {
    const button = html`<button type="button" onClick=${() => this.copy()}>${copied ? "copied" : "copy"}</button>`;
    return html`<div class="snippet">
      <pre tabindex="0" aria-label=${label}>${text}</pre>
      ${navigator.clipboard ? button : null}
    </div>`;
  }
}

/** The command is built when the hint first appears, so that it does not change under the reader's mouse. */
export class PostHint extends Component {
  constructor(props) {
    super(props);
    this.command = curlCommand(props.stream, document.baseURI, Boolean(key.value));
  }

  render({ stream }) {
    return html`<div class="hint">
      <p>Post an event to <b>${stream.name}</b> from a terminal:</p>
      <${Snippet} text=${this.command} label="Command that posts an event" />
      <p>Send a JSON object, an array of them, or one object per line as <code>application/x-ndjson</code>.
        The response arrives when the events are on disk.</p>
    </div>`;
  }
}

/** Explains how to create the first webhook. */
export function WebhookHint({ stream }) {
  const name = stream?.name ?? "readings";
  return html`<div class="hint">
    <p>There are no webhooks yet. A webhook posts each event of a stream, or each changed row of a view, to your address,
      signed, and retries until it is delivered:</p>
    <${Snippet} text=${webhookCommand(name, document.baseURI, Boolean(key.value))} label="Command that creates a webhook" />
    <p>The response contains the webhook's secret. The address first receives a challenge, which it must return.</p>
  </div>`;
}

const FIRST_STREAM = `class Reading(Event, id="reading_id", time="at"):
    reading_id: str
    at: datetime
    sensor: str
    value: float

readings = app.stream("readings", Reading, key="sensor")`;

export function EmptyApp({ app }) {
  return html`<section class="panel"><h2>This app declares no streams yet</h2>
    <div class="hint">
      <p>A stream is where events come in. Add one to the file of <b>${app.name}</b> and run it again:</p>
      <${Snippet} text=${FIRST_STREAM} label="Python code that declares a stream" />
    </div>
  </section>`;
}

function firstView({ name, key, fields }) {
  const column = key ?? fields[0]?.name ?? "name";
  const table = /^\w+$/.test(name) ? name : `\`${name}\``;
  return `app.sql(
    "busiest",
    "SELECT ${column}, count(*) AS n FROM ${table} GROUP BY ${column}",
    key=["${column}"], top=10, by="n",
)`;
}

export function NoViews({ stream }) {
  return html`<section class="panel"><h2>This app declares no views yet</h2>
    <div class="hint">
      <p>A view is a table that Spark keeps up to date. Count the events of <b>${stream.name}</b> with one:</p>
      <${Snippet} text=${firstView(stream)} label="Python code that declares a view" />
    </div>
  </section>`;
}

/**
 * The full command is shown with one view of an empty stream; the others link to it. Nobody posts to a handler's
 * stream.
 */
function Unfed({ stream, view, app, whole }) {
  if (stream.handler) return html`<p class="empty">No rows yet: the handler ${stream.handler} has emitted nothing.</p>`;
  const first = app.views.find(({ reads }) => reads.includes(stream.name));
  if (whole || first.name === view.name) return html`<${PostHint} key=${stream.name} stream=${stream} />`;
  const send = link({ kind: "streams", name: stream.name, tab: "send" });
  return html`<p class="empty">Waiting for the first event of ${stream.name}. <a href=${send}>Post one</a></p>`;
}

/** Explains why a view has no rows: it failed, it is starting, its input is empty, or no row has resulted so far. */
export function ViewHint({ view, app, known, whole }) {
  const inputs = app.streams.filter(({ name }) => view.reads.includes(name));
  const broken = inputs.find(({ error }) => error);
  if (broken) return html`<p class="empty">No rows: the stream ${broken.name} has failed.</p>`;
  const empty = inputs.find(({ end }) => !end);
  if (empty && view.state !== "failed") return html`<${Unfed} stream=${empty} ...${{ view, app, whole }} />`;
  return html`<p class="empty">${whyEmpty(view, known)}</p>`;
}

function whyEmpty({ state, emit }, known) {
  if (state === "failed") return "No rows: the view has failed. Fix its code and run the app again.";
  if (state === "starting") return "Spark is starting, which takes a few seconds. Events posted until then are kept.";
  if (!known) return "Loading…";
  return emit === "close" ? "No rows yet: they appear when a window is complete." : "No rows yet.";
}
