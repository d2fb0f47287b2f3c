// The webhooks of the app: their state, and the dead letters of one. Its owner can pause and resume it, and have dead
// letters sent again.

import { Connected, html } from "../html.js";
import * as format from "../model/format.js";
import { link } from "../model/place.js";
import { LETTERS_MAX, Webhooks } from "../model/webhooks.js";
import { Failure, tone } from "./card.js";
import { Facts } from "./facts.js";
import { WebhookHint } from "./hints.js";

const MESSAGE_MAX = 2_000; // characters shown of a message

export class WebhooksPanel extends Connected {
  constructor(props) {
    super(props);
    this.webhooks = new Webhooks(props.penstock);
  }

  signals() {
    return [this.webhooks.state];
  }

  componentDidMount() {
    super.componentDidMount();
    this.look();
  }

  componentDidUpdate() {
    this.look();
  }

  /** Load the list of webhooks, and the dead letters of the selected webhook, if they have changed. */
  look() {
    const names = this.props.app.webhooks.map(({ name }) => name).join();
    if (names !== this.names) this.webhooks.load();
    this.names = names;
    const chosen = this.chosen();
    const letters = chosen && this.webhooks.state.value.mine.has(chosen.name) ? `${chosen.name} ${chosen.dead}` : null;
    if (letters && letters !== this.letters) this.webhooks.read(chosen.name);
    this.letters = letters;
  }

  chosen() {
    return this.props.app.webhooks.find(({ name }) => name === this.props.name);
  }

  render({ app, name }) {
    const { error } = this.webhooks.state.value;
    const chosen = this.chosen();
    const shown = chosen ? [chosen] : app.webhooks;
    return html`<section class="panel webhooks" aria-label="Webhooks">
      <div class="panel-head">
        <h2>${chosen ? "Webhook" : "Webhooks"}</h2>
        ${name ? html`<a class="back" href="#/webhooks">all webhooks</a>` : html`<a class="back" href="#/">overview</a>`}
      </div>
      ${error ? html`<p class="failure" role="alert">${error}</p>` : null}
      ${name && !chosen ? html`<p class="empty">This app has no webhook ${name}.</p>` : null}
      ${shown.length ? null : html`<${WebhookHint} stream=${app.streams[0]} />`}
      <ul class="hooks">${shown.map((hook) => html`<li key=${hook.name} class="hook">
        <${Hook} hook=${hook} owned=${this.owned(hook)} webhooks=${this.webhooks} />
      </li>`)}</ul>
      ${chosen ? this.details(chosen) : null}
    </section>`;
  }

  owned(hook) {
    return this.webhooks.state.value.mine.get(hook.name);
  }

  details(hook) {
    const owned = this.owned(hook);
    if (!owned) return html`<p class="empty">Only the webhook's owner can see its messages and failures.</p>`;
    return html`<${Facts} facts=${factsOf(owned)} />
      <${Letters} hook=${hook} letters=${this.webhooks.state.value.letters}
        revive=${(number) => this.webhooks.revive(hook.name, number)} />`;
  }
}

function nameOf({ label, name }) {
  return label || name;
}

function Hook({ hook, owned, webhooks }) {
  const failing = hook.state === "active" && hook.retrying > 0;
  const where = link({ kind: hook.kind === "view" ? "views" : "streams", name: hook.of });
  return html`<div class="hook-head">
      <span class="dot ${failing ? "wait" : tone(hook.state)}"></span>
      <a class="hook-name" href=${link({ kind: "webhooks", name: hook.name })}>${nameOf(hook)}</a>
      <span class="tag">${failing ? "retrying" : hook.state}</span>
      <span class="hook-way"><a href=${where}>${hook.of}</a> → <bdi>${hook.address}</bdi></span>
      ${owned ? html`<${Actions} ...${{ hook, webhooks }} />` : null}
    </div>
    <div class="card-facts">
      ${countsOf(hook).map((fact) => html`<span>${fact}</span>`)}
      ${hook.dead ? html`<span class="warning">${format.plural(hook.dead, "dead letter")}</span>` : null}
    </div>
    ${whyOf(hook) ? html`<${Failure} error=${whyOf(hook)} />` : null}`;
}

function Actions({ hook: { name, state }, webhooks }) {
  const stands = ["paused", "disabled", "stopped"].includes(state);
  const act = (action) => html`<button type="button" onClick=${() => webhooks[action](name)}>${action}</button>`;
  return html`<span class="hook-actions">
    ${state === "pending" ? act("verify") : null}${act(stands ? "resume" : "pause")}
  </span>`;
}

function countsOf(hook) {
  return [
    `${format.compact(hook.delivered)} delivered`,
    hook.last_success ? `last at ${format.time(hook.last_success)}` : null,
    hook.pending ? `${format.compact(hook.pending)} waiting` : null,
    hook.retrying ? `${format.compact(hook.retrying)} retrying` : null,
    hook.lag ? `${format.compact(hook.lag)} behind` : null,
    hook.failures ? `${format.compact(hook.failures)} failed attempts` : null,
    hook.forgotten ? `${format.compact(hook.forgotten)} dead letters deleted` : null,
  ].filter(Boolean);
}

/** While the webhook does not deliver, explains why. */
function whyOf({ state, reason, retrying, last_error }) {
  if (reason) return reason;
  return state !== "paused" && (retrying || state !== "active") ? last_error : null;
}

function factsOf(owned) {
  return [
    ["address", html`<code>${owned.url}</code>`],
    ["where", owned.where ? html`<code>${owned.where}</code>` : null],
    ["select", owned.select ? html`<code>${owned.select}</code>` : null],
    ["per message", owned.batch > 1 ? `up to ${format.number(owned.batch)}` : null],
    ["owner", owned.declared ? "the app" : owned.owner],
    ["since", format.time(owned.created)],
  ];
}

function Letters({ hook, letters, revive }) {
  if (!hook.dead) return html`<p class="empty">No dead letters: everything was delivered or is still being retried.</p>`;
  if (!letters) return html`<p class="empty">Loading…</p>`;
  const more = hook.dead > LETTERS_MAX ? `; the first ${letters.length} are shown` : "";
  return html`<p class="count">
      ${format.plural(hook.dead, "dead letter")}${more}
      <button type="button" onClick=${() => revive(null)}>send all again</button>
    </p>
    <ul class="letters">${letters.map((letter) => html`<li key=${letter.id}>
      <p class="count">
        <b>${letter.error}</b> after ${format.plural(letter.tries, "attempt")}, at ${format.time(letter.at)}
        <button type="button" onClick=${() => revive(letter.number)}>send again</button>
      </p>
      <pre tabindex="0" aria-label="The message">${format.clip(JSON.stringify(letter.message), MESSAGE_MAX)}</pre>
    </li>`)}</ul>`;
}
