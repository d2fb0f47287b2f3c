// The whole page: header, what is wrong if anything is, the pipe, and below it the overview or what is selected.

import { Connected, createRef, html } from "../html.js";
import { Header } from "./header.js";
import { EmptyApp, NoViews, PostHint } from "./hints.js";
import { Pipe } from "./pipe.js";
import { StreamPanel } from "./stream_panel.js";
import { ViewPanel } from "./view_panel.js";

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

  render({ figures, live, feeds, place }) {
    const { app, error } = figures.state.value;
    const where = place.state.value;
    return html`<${Header} app=${app} live=${live} error=${error} />
      ${app ? html`<${Notices} app=${app} />` : html`<p class="empty">${error ? `No answer yet from the app: ${error}` : "Loading…"}</p>`}
      ${app?.streams.length ? html`<div class="at-${where.kind}"><${Pipe} app=${app} figures=${figures} place=${where} /></div>` : null}
      <main ref=${this.main}>${app ? html`<${Content} ...${{ app, where, live, feeds, place }} />` : null}</main>`;
  }
}

function Content({ app, where, live, feeds, place }) {
  const { kind, name, tab, sort } = where;
  const found = kind === "overview" ? null : app[kind].find((each) => each.name === name);
  if (found && kind === "streams") return html`<${StreamPanel} key=${name} stream=${found} tab=${tab} live=${live} />`;
  if (found) {
    const key = JSON.stringify([name, found.key]);
    return html`<${ViewPanel} key=${key} view=${found} ...${{ app, feeds, sort, whole: true }} onSort=${(next) => place.sort(next)} />`;
  }
  if (name) return html`<p class="empty">This app has no ${kind.slice(0, -1)} named ${name}. <a href="#/">Show the overview</a></p>`;
  return html`<${Overview} app=${app} feeds=${feeds} />`;
}

function Overview({ app, feeds }) {
  const [first] = app.streams;
  if (!first) return html`<${EmptyApp} app=${app} />`;
  if (!app.views.length) {
    return html`<div class="panels"><${NoViews} stream=${first} />
      <section class="panel"><h2>Try it</h2><${PostHint} key=${first.name} stream=${first} /></section></div>`;
  }
  return html`<div class="panels">${app.views.map((view) => html`
    <${ViewPanel} key=${JSON.stringify([view.name, view.key])} view=${view} app=${app} feeds=${feeds} />`)}</div>`;
}

/** One sentence for what a person should know at once. Errors of a node stand in its card. */
function Notices({ app }) {
  const engine = app.processes?.engine;
  const notices = [
    app.state === "stopping" ? "The app is stopping: new events are refused." : null,
    app.state === "starting" ? "Spark is starting, which takes some seconds. Events posted meanwhile are kept and will be counted." : null,
    engine && engine.pid === null && app.state === "degraded" ? `The engine is down (${engine.restarts} restarts) and is being started again. Events are kept.` : null,
  ].filter(Boolean);
  return notices.length ? html`<p class="notice" role="status">${notices.join(" ")}</p>` : null;
}
