// A query in SQL: the editor, examples, and the result, which can be kept live.

import { Component, createRef, html } from "../html.js";
import { columnsOf } from "../model/columns.js";
import * as format from "../model/format.js";
import { Query, ROWS_MAX, marked } from "../model/query.js";
import { examplesOf } from "../model/query_examples.js";
import { Table } from "./table.js";

export class QueryPanel extends Component {
  text = createRef();

  constructor(props) {
    super(props);
    this.query = new Query(props.penstock);
    this.examples = examplesOf(props.app);
    this.state = { sql: props.sql ?? this.examples[0]?.sql ?? "SELECT 1 AS one" };
  }

  componentDidMount() {
    this.stop = this.query.state.subscribe(({ error }) => {
      this.setState({});
      if (error && error !== this.shown) this.point(error);
      this.shown = error;
    });
    if (this.props.sql) this.run(this.query.state.value.live);
  }

  componentWillUnmount() {
    this.stop();
    this.query.stop();
  }

  /** Put the cursor at the error, if the text is still the one that was run. */
  point({ position, sql }) {
    if (position === null || sql !== this.state.sql) return;
    const [before, word] = marked(sql, position);
    this.text.current?.focus();
    this.text.current?.setSelectionRange(before.length, before.length + word.length);
  }

  run(live) {
    this.props.onRun(this.state.sql);
    this.query.run(this.state.sql, live);
  }

  choose(sql) {
    this.setState({ sql }, () => this.run(this.query.state.value.live));
  }

  toggle() {
    if (this.query.state.value.live) this.query.stop();
    else this.run(true);
  }

  pressed(event) {
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    this.run(this.query.state.value.live);
  }

  render(_, { sql }) {
    const { running, live, answer, error } = this.query.state.value;
    const wrong = error?.sql === sql ? error : null;
    const change = (event) => this.setState({ sql: event.target.value });
    return html`<section class="panel query" aria-label="Query">
      <div class="panel-head"><h2>Query</h2><a class="back" href="#/">overview</a></div>
      <${Editor} ...${{ sql, wrong, change, text: this.text, pressed: (event) => this.pressed(event) }} />
      <div class="query-bar">
        <button type="button" class="run" onClick=${() => this.run(live)} aria-keyshortcuts="Control+Enter">
          Run <kbd>Ctrl</kbd> <kbd>Enter</kbd>
        </button>
        <button type="button" aria-pressed=${String(live)} onClick=${() => this.toggle()}>Keep live</button>
        <span class="told" role="status">${told({ running, live, answer, error })}</span>
      </div>
      <${Examples} examples=${this.examples} choose=${(each) => this.choose(each)} />
      ${error ? html`<p class="failure" role="alert" id="query-error">${error.detail}</p>` : null}
      ${answer ? html`<div class=${error ? "stale" : null}><${Answer} answer=${answer} /></div>` : null}
    </section>`;
  }
}

/** The text, and behind it the same text with the error marked. The copy also determines the editor's height. */
function Editor({ sql, wrong, change, text, pressed }) {
  const [before, word, after] = marked(sql, wrong ? wrong.position : null);
  return html`<div class="editor">
    <div class="editor-mark" aria-hidden="true">
      ${before}${word ? html`<mark>${word}</mark>` : null}${after}${"\n"}
    </div>
    <textarea ref=${text} aria-label="A SELECT in SQL" aria-invalid=${wrong ? "true" : null} spellcheck="false"
      aria-describedby=${wrong ? "query-error" : null} autocapitalize="off" autocomplete="off" value=${sql}
      onInput=${change} onKeyDown=${pressed}></textarea>
  </div>`;
}

function Examples({ examples, choose }) {
  if (!examples.length) return null;
  return html`<ul class="examples" aria-label="Examples">${examples.map(({ title, sql }) => html`<li key=${title}>
    <button type="button" title=${sql} onClick=${() => choose(sql)}>${title}</button>
  </li>`)}</ul>`;
}

function Answer({ answer: { columns, entries } }) {
  if (!entries.length) return html`<p class="empty">No rows.</p>`;
  return html`<${Table} label="Result" columns=${columnsOf(columns, [], entries)} entries=${entries} />`;
}

/** Describes the outcome of the query in one line, which screen readers announce. */
function told({ running, live, answer, error }) {
  if (running) return "running…";
  if (error) return "failed";
  if (!answer) return "";
  const { total, truncated, elapsed_ms, entries } = answer;
  const rows = `${format.plural(total, "row")}${truncated ? ", and there are more" : ""}`;
  const drawn = entries.length < total ? `; the first ${format.number(ROWS_MAX)} are shown` : "";
  return `${rows}${drawn}${live ? ", live" : ` in ${format.number(elapsed_ms)} ms`}`;
}
