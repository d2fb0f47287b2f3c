// A live table. Rows are drawn again only when they change, and flash softly when they do.

import { Component, createRef, html } from "../html.js";
import { cell } from "../model/format.js";

const FLASH_MS = 900;
const FLASH_STEPS = 5; // a smooth fade would repaint every frame: four times as much work as the rest of the page
const calm = matchMedia("(prefers-reduced-motion: reduce)");

/**
 * `entries` are already sorted, and no more than can be drawn. With `onSort`, the headings are buttons; `sort` is
 * {column, down}. `label` names the table for screen readers.
 */
export function Table({ label, columns, entries, sort, onSort }) {
  return html`<div class="table" role="region" aria-label=${label} tabindex="0">
    <table>
      <thead>
        <tr>${columns.map((column) => html`<${Heading} key=${column.name} ...${{ column, sort, onSort }} />`)}</tr>
      </thead>
      <tbody>${entries.map((entry) => html`<${Row} key=${entry.id} entry=${entry} columns=${columns} />`)}</tbody>
    </table>
  </div>`;
}

function Heading({ column, sort, onSort }) {
  const active = sort?.column === column.name;
  const order = !onSort ? null : active ? (sort.down ? "descending" : "ascending") : "none";
  const next = { column: column.name, down: active ? !sort.down : column.kind !== "text" };
  const mark = html`<i aria-hidden="true">${active ? (sort.down ? "↓" : "↑") : ""}</i>`;
  const name = html`<bdi>${column.name}</bdi>`;
  return html`<th scope="col" class=${column.kind} aria-sort=${order}>
    ${onSort ? html`<button type="button" onClick=${() => onSort(next)}>${name}${mark}</button>` : name}
  </th>`;
}

class Row extends Component {
  element = createRef();

  shouldComponentUpdate({ entry, columns }) {
    return entry !== this.props.entry || signature(columns) !== signature(this.props.columns);
  }

  componentDidMount() {
    if (this.props.entry.changes > 0) this.flash();
  }

  componentDidUpdate({ entry }) {
    if (this.props.entry.changes > entry.changes) this.flash();
  }

  /** An animation of the element instead of a CSS class, because it continues undisturbed when the row moves. */
  flash() {
    if (calm.matches) return;
    const colours = { backgroundColor: ["var(--flash)", "transparent"] };
    this.element.current.animate(colours, { duration: FLASH_MS, easing: `steps(${FLASH_STEPS})` });
  }

  render({ entry, columns }) {
    return html`<tr ref=${this.element}>${columns.map((column) => {
      const { text, title } = cell(entry.row[column.name], column);
      const kind = `${column.kind}${column.key ? " key" : ""}`;
      return html`<td key=${column.name} class=${kind} title=${title}><bdi>${text}</bdi></td>`;
    })}</tr>`;
  }
}

function signature(columns) {
  return columns.map(({ name, kind, key, digits }) => `${name} ${kind} ${key} ${digits}`).join();
}
