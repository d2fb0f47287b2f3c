// The whole page: header, problems if there are any, the pipe, and below it the overview or the selected node.

import { Connected, createRef, html } from "../html.js";
import * as format from "../model/format.js";
import { Header } from "./header.js";
import { HandlerPanel } from "./handler_panel.js";
import { EmptyApp, NoViews, PostHint } from "./hints.js";
import { Pipe } from "./pipe.js";
import { QueryPanel } from "./query_panel.js";
import { SignIn } from "./sign_in.js";
import { StreamPanel } from "./stream_panel.js";
import { ViewPanel } from "./view_panel.js";
import { WebhooksPanel } from "./webhooks_panel.js";

const PROBLEM_MAX = 300; // characters of a problem; its own page shows the whole text

export class Page extends Connected {
  main = createRef();

  signals() {
    return [this.props.figures.state, this.props.place.state];
  }

  componentDidUpdate() {
    const { app } = this.props.figures.state.value;
    const { kind, name } = this.props.place.state.value;
    document.title = [name, app?.name, "Penstock"].filter(Boolean).join(" · ");
    const selection = `${kind} ${name}`;
    if (this.selection && this.selection !== selection && name) this.main.current?.scrollIntoView({ block: "nearest" });
    this.selection = selection;
  }

  render({ figures, penstock, connection, feeds, place }) {
    const { app, error, status } = figures.state.value;
    const where = place.state.value;
    if (status) return html`<${Header} app=${null} /><main><${SignIn} status=${status} reason=${error} /></main>`;
    return html`<${Header} ...${{ app, penstock, connection, error }} />
      ${app ? html`<${Notices} app=${app} />` : html`<${Waiting} error=${error} />`}
      ${app?.streams.length ? html`<${Pipe} app=${app} figures=${figures} place=${where} />` : null}
      <main ref=${this.main}>${app ? html`<${Content} ...${{ app, where, penstock, feeds, place }} />` : null}</main>`;
  }
}

function Waiting({ error }) {
  return html`<p class="empty">${error ? `No response from the app yet: ${error}` : "Loading…"}</p>`;
}

function Content({ app, where, penstock, feeds, place }) {
  const { kind, name, tab, sort } = where;
  if (kind === "query") {
    const onRun = (sql) => place.ask(sql);
    return html`<${QueryPanel} app=${app} penstock=${penstock} sql=${where.sql} onRun=${onRun} />`;
  }
  if (kind === "webhooks") return html`<${WebhooksPanel} key=${name} ...${{ app, penstock, name }} />`;
  const found = kind === "overview" ? null : app[kind].find((each) => each.name === name);
  if (found && kind === "streams") {
    return html`<${StreamPanel} key=${name} stream=${found} tab=${tab} penstock=${penstock} whole />`;
  }
  if (found && kind === "handlers") return html`<${HandlerPanel} key=${name} handler=${found} penstock=${penstock} />`;
  if (found) {
    const onSort = (next) => place.sort(next);
    return html`<${ViewPanel} key=${identity(found)} view=${found} ...${{ app, feeds, sort, onSort, whole: true }} />`;
  }
  if (!name) return html`<${Overview} app=${app} feeds=${feeds} penstock=${penstock} />`;
  const noun = kind.slice(0, -1);
  return html`<p class="empty">This app has no ${noun} named ${name}. <a href="#/">Show the overview</a></p>`;
}

/** If a view was redeclared with another key, the page treats it as a different view. */
function identity(view) {
  return JSON.stringify([view.name, view.key]);
}

function Overview({ app, feeds, penstock }) {
  const [first] = app.streams;
  if (!first) return html`<${EmptyApp} app=${app} />`;
  const emitted = app.streams.filter((stream) => stream.handler && !stream.name.endsWith(".failed"));
  if (!app.views.length && !emitted.length) {
    return html`<div class="panels"><${NoViews} stream=${first} />
      <section class="panel"><h2>Try it</h2><${PostHint} key=${first.name} stream=${first} /></section></div>`;
  }
  return html`<div class="panels">
    ${app.views.map((view) => html`<${ViewPanel} key=${identity(view)} view=${view} app=${app} feeds=${feeds} />`)}
    ${emitted.map((stream) => html`<${StreamPanel} key=${stream.name} stream=${stream} penstock=${penstock} />`)}
  </div>`;
}

/** Shows what the reader must know: one sentence about the app, and each of its problems, with a link to the page that
 * explains it. */
function Notices({ app }) {
  const notice = noticeOf(app);
  const isTold = ({ kind }) => kind === "process" && app.state === "starting"; // the notice above already says this
  const problems = (app.problems ?? []).filter((each) => !isTold(each));
  return html`${notice ? html`<p class="notice" role="status">${notice}</p>` : null}
    ${problems.length ? html`<ul class="problems" role="status" aria-label="Problems">${problems.map((each) => html`
      <li key=${`${each.kind} ${each.name}`} class=${each.level}>
        <a href=${each.page}>${format.clip(each.message, PROBLEM_MAX)}</a>
        <span>since ${format.time(each.since)}</span>
      </li>`)}</ul>` : null}`;
}

function noticeOf({ state, processes, streams }) {
  const again = processes?.engine?.restarts;
  if (state === "stopping") return "The app is stopping: new events are refused.";
  if (state !== "starting") return null;
  const kept = streams.some(({ error }) => error) ? "" : " Events posted until then are kept.";
  if (again) return `The engine ended and is being restarted (${format.plural(again, "restart")} so far).${kept}`;
  return `Spark is starting, which takes a few seconds.${kept}`;
}
