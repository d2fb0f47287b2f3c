// The top of the page: the app, its state, and whether this page is connected to it.

import { Connected, html } from "../html.js";
import * as format from "../model/format.js";
import { key, signOut } from "../model/key.js";
import { isTroubled } from "../model/webhooks.js";
import { tone } from "./card.js";

export function Header({ app, penstock, connection, error }) {
  const collected = app?.streams.filter(({ handler, view }) => !handler && !view) ?? [];
  const total = collected.reduce((sum, { rate }) => sum + (rate ?? 0), 0);
  return html`<header class="top">
    <a class="brand" href="#/">
      <img src="assets/icon.svg" alt="" width="28" height="28" /><h1>${app?.name ?? "Penstock"}</h1>
    </a>
    ${app ? html`<span class="pill ${error ? "" : tone(app.state)}">${error ? "no response" : app.state}</span>` : null}
    ${connection ? html`<${Connection} ...${{ penstock, connection, error }} />` : null}
    ${app ? html`<a class="to-page" href="#/query">Query</a><${ToWebhooks} webhooks=${app.webhooks} />` : null}
    ${key.value ? html`<button type="button" class="sign-out" onClick=${signOut}>sign out</button>` : null}
    ${app ? html`<dl class="totals">
      <div><dt>events/s</dt><dd>${format.rate(total)}</dd></div>
      <div><dt>readers</dt><dd>${app.connections}</dd></div>
      ${app.clock ? html`<div><dt>clock</dt><dd title=${app.clock}>${format.time(app.clock)}</dd></div>` : null}
      <div><dt>up</dt><dd title=${app.started}>${format.duration(app.started)}</dd></div>
      <div><dt>Penstock</dt><dd>${app.version}</dd></div>
    </dl>` : null}
  </header>`;
}

function ToWebhooks({ webhooks }) {
  const troubled = webhooks.filter(isTroubled).length;
  const title = `${format.plural(troubled, "webhook")} in trouble`;
  const mark = html`<span class="pill bad" title=${title} aria-label=${title}>${troubled}</span>`;
  return html`<a class="to-page" href="#/webhooks">Webhooks${troubled ? mark : null}</a>`;
}

const WORDS = { idle: "live", connecting: "connecting…", live: "live", waiting: "reconnecting", paused: "paused" };

/** The state of the live connection, announced when it changes; while it is broken, a button retries at once. */
class Connection extends Connected {
  signals() {
    return [this.props.connection];
  }

  render({ penstock, connection, error }) {
    const { phase } = connection.value;
    const lost = phase === "waiting" || (["live", "idle"].includes(phase) && error);
    const shown = lost ? "waiting" : phase;
    return html`<span class="connection">
      <span class="pill ${tone(shown)}" role="status">${WORDS[shown]}</span>
      ${phase === "waiting" ? html`<button type="button" onClick=${() => penstock.resume()}>try now</button>` : null}
    </span>`;
  }
}
