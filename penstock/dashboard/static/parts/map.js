// A map of a view whose rows have `lat` and `lon`, drawn from the rows alone, without tiles and without network access.

import { Component, createRef, html } from "../html.js";
import { columnsOf, newestWindow } from "../model/columns.js";
import * as format from "../model/format.js";
import * as places from "../model/places.js";
import { coloursOf, paint } from "./map_paint.js";

const GLIDE_MS = 450;
const NEAR = 14; // maximum distance in pixels from the pointer to the point that it selects
const NARROW = 520; // pixels; on a narrower map the row is shown above or below its point, not beside it
const calm = matchMedia("(prefers-reduced-motion: reduce)");
const dark = matchMedia("(prefers-color-scheme: dark)");

/** `companions` are views whose rows are drawn as crosses; they stay the same while the map is on the page. */
export class PlaceMap extends Component {
  canvas = createRef();
  state = { chosen: null, hidden: new Set() };
  frame = null;
  states = []; // in order of first occurrence, so that a state keeps its colour; states not seen for long are dropped
  points = [];
  alerts = [];
  following = false;

  constructor(props) {
    super(props);
    this.others = props.companions.map((view) => ({ view, rows: props.feeds.rows(view) }));
  }

  componentDidMount() {
    this.stops = this.others.map(({ rows }) => rows.drawn.subscribe(() => this.setState({})));
    this.follow(this.props.seen);
    this.observer = new ResizeObserver(() => this.resize());
    this.observer.observe(this.canvas.current);
    this.recolour = () => {
      this.colours = coloursOf(this.canvas.current);
      this.draw();
    };
    dark.addEventListener("change", this.recolour);
    this.recolour();
    this.resize();
  }

  componentWillUnmount() {
    cancelAnimationFrame(this.waiting);
    this.waiting = null;
    dark.removeEventListener("change", this.recolour);
    this.observer.disconnect();
    this.stops.forEach((stop) => stop());
    this.follow(false);
  }

  /** Companions, like the view itself, are followed only while the map is visible. */
  follow(seen) {
    if (seen === this.following) return;
    this.following = seen;
    this.others.forEach(({ rows }) => (seen ? rows.attach() : rows.detach()));
  }

  componentDidUpdate() {
    this.follow(this.props.seen);
    this.aim();
    this.draw();
  }

  resize() {
    const { clientWidth: width, clientHeight: height } = this.canvas.current;
    if (!width || (this.size?.width === width && this.size.height === height)) return;
    const density = devicePixelRatio || 1;
    [this.canvas.current.width, this.canvas.current.height] = [width * density, height * density];
    this.size = { width, height };
    this.frame = null;
    this.aim();
    this.draw();
  }

  /** Keep the frame while it fits; otherwise glide to a frame that fits. */
  aim() {
    const entries = this.entries();
    if (!this.size || !entries.length) return;
    if (this.frame && !places.outgrown(this.frame.to, entries, this.size)) return;
    const [now, to] = [performance.now(), places.fit(entries, this.size)];
    this.frame = { from: this.frame && !calm.matches ? this.shown(now) : to, to, since: now };
  }

  shown(now) {
    const part = Math.min(1, (now - this.frame.since) / GLIDE_MS);
    return part === 1 ? this.frame.to : places.between(this.frame.from, this.frame.to, part * part * (3 - 2 * part));
  }

  /** Returns the current position of an entry on the map. */
  spot({ row }) {
    return this.frame ? places.project(this.shown(performance.now()), this.size, row) : { x: 0, y: 0 };
  }

  /** Request that the map be drawn with the next animation frame. Many requests cause only one drawing. */
  draw() {
    this.waiting ??= requestAnimationFrame((now) => {
      this.waiting = null;
      if (!this.size || !this.frame) return;
      const frame = this.shown(Math.max(now, this.frame.since));
      const at = (entry) => ({ ...entry, ...places.project(frame, this.size, entry.row) });
      const [points, alerts] = [this.points.map(at), this.alerts.map(at)];
      const chosen = [...points, ...alerts].find(({ mark }) => mark === this.state.chosen);
      paint(this.canvas.current, { size: this.size, frame, points, alerts, chosen, colours: this.colours });
      if (frame !== this.frame.to) this.draw();
    });
  }

  entries() {
    return [...this.points, ...this.alerts];
  }

  point({ offsetX, offsetY }) {
    let [best, nearest] = [null, NEAR * NEAR];
    for (const entry of this.entries()) {
      const { x, y } = this.spot(entry);
      const far = (x - offsetX) ** 2 + (y - offsetY) ** 2;
      if (far <= nearest) [best, nearest] = [entry, far];
    }
    this.choose(best?.mark ?? null);
  }

  choose(chosen) {
    if (chosen !== this.state.chosen) this.setState({ chosen });
  }

  /** Arrow keys step through the rows in order, so that each row can be reached without a pointer. */
  step(event) {
    const move = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Home: 0, End: 0, Escape: 0 }[event.key];
    if (move === undefined) return;
    event.preventDefault();
    const marks = this.entries().map(({ mark }) => mark);
    const place = marks.indexOf(this.state.chosen);
    const count = marks.length;
    const next = place < 0 && move < 0 ? count - 1 : (place + move + count) % count;
    const chosen = { Home: 0, End: count - 1, Escape: null }[event.key];
    this.choose(marks[chosen === undefined ? next : chosen] ?? null);
  }

  toggle(name) {
    const hidden = new Set(this.state.hidden);
    if (!hidden.delete(name)) hidden.add(name);
    this.setState({ hidden });
  }

  /** Prepares entries for drawing and pointing: adds an identifying mark, the label, and the number of the state. */
  marked(view, entries, columns, state) {
    const names = columns.filter(({ key, kind }) => key && kind !== "window");
    const label = (row) => names.map((column) => format.cell(row[column.name], column).text).join(" · ");
    const number = (row) => (state ? this.numberOf(places.stateOf(row, state)) : 0);
    return entries.map(({ id, row }) => ({ row, columns, label, mark: `${view.name} ${id}`, state: number(row) }));
  }

  numberOf(state) {
    const found = this.states.indexOf(state);
    return found < 0 ? this.states.push(state) - 1 : found;
  }

  gather({ view, entries, columns }, { hidden }) {
    const newest = newestWindow(entries, columns).entries;
    const found = places.placed(newest);
    const state = places.stateColumn(columns, found);
    if (state && (!this.states.length || this.states.length > places.STATES_MAX)) {
      this.states = [...new Set(found.map(({ row }) => places.stateOf(row, state)))].sort();
    }
    this.points = this.marked(view, found, columns, state);
    this.alerts = this.others.filter((other) => !hidden.has(other.view.name)).flatMap((other) => {
      const rows = [...other.rows.entries.values()];
      return this.marked(other.view, places.placed(rows), columnsOf(other.view.columns, other.view.key, rows), null);
    });
    return { state, away: newest.length - found.length };
  }

  render(props, state) {
    const { state: column, away } = this.gather(props, state);
    const chosen = this.size && this.entries().find(({ mark }) => mark === state.chosen);
    const rows = `${format.plural(this.points.length, "row")} of ${props.view.name}`;
    return html`<figure class="map ${props.whole ? "whole" : ""}">
      <div class="map-frame">
        <canvas ref=${this.canvas} tabindex="0" role="img" aria-label="Map of ${rows}. Arrow keys move from row to row."
          onPointerMove=${(event) => this.point(event)} onPointerLeave=${() => this.choose(null)}
          onPointerDown=${(event) => this.point(event)} onKeyDown=${(event) => this.step(event)}
          onBlur=${() => this.choose(null)} />
        <div role="status">${chosen ? html`<${Tip} entry=${chosen} spot=${this.spot(chosen)} size=${this.size} />` : null}</div>
      </div>
      <figcaption>
        ${column ? html`<${Legend} column=${column} states=${this.states} points=${this.points} />` : null}
        ${this.others.map(({ view }) => html`<label class="map-other">
          <input type="checkbox" checked=${!state.hidden.has(view.name)} onChange=${() => this.toggle(view.name)} />
          <i aria-hidden="true">×</i> ${view.name}</label>`)}
        ${away ? html`<span>${format.plural(away, "row")} without a valid position</span>` : null}
      </figcaption>
    </figure>`;
  }
}

function Legend({ column, states, points }) {
  const counts = states.map((_, number) => points.filter(({ state }) => state === number).length);
  return html`<ul class="map-legend" aria-label="Points by ${column.name}">
    ${states.map((state, number) => (counts[number] ? html`<li key=${state}>
      <i class="mark-${(number % 6) + 1} shape-${number % 4}" aria-hidden="true"></i>
      ${format.clip(state, 40)} <b>${format.compact(counts[number])}</b></li>` : null))}
  </ul>`;
}

/** The selected row, beside its point and within the map. */
function Tip({ entry, spot: { x, y }, size }) {
  const beside = x < size.width / 2 ? { left: `${x + 12}px` } : { right: `${size.width - x + 12}px` };
  const across = size.width < NARROW ? { left: "8px", right: "8px" } : beside;
  const down = y < size.height / 2 ? { top: `${y + 8}px` } : { bottom: `${size.height - y + 8}px` };
  return html`<dl class="map-tip" key=${entry.mark} style=${{ ...across, ...down }}>${entry.columns.map((column) => {
    const { text } = format.cell(entry.row[column.name], column);
    return html`<div key=${column.name}><dt>${column.name}</dt><dd><bdi>${format.clip(text, 80)}</bdi></dd></div>`;
  })}</dl>`;
}
