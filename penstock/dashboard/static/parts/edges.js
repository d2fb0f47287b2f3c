// The lines of the pipe, drawn behind its cards from their actual positions.

import { Component, createRef, html } from "../html.js";

export class Edges extends Component {
  state = { paths: [], width: 0, height: 0 };
  canvas = createRef();

  componentDidMount() {
    this.observer = new ResizeObserver(() => this.measure());
    this.observer.observe(this.canvas.current.parentElement);
    this.measure();
  }

  componentDidUpdate() {
    this.measure();
  }

  componentWillUnmount() {
    this.observer.disconnect();
  }

  /** Reads the layout, and draws again only if a line has moved: once a second, for all nodes of the app. */
  measure() {
    const frame = this.canvas.current.parentElement;
    const cards = [...frame.querySelectorAll("[data-node]")];
    const nodes = new Map(cards.map((card) => [card.dataset.node, place(card, frame)]));
    const next = {
      paths: this.props.edges.flatMap(({ from, to, tone }) => {
        const [left, right] = [nodes.get(from), nodes.get(to)];
        return left && right && right.left > left.right ? [{ line: curve(left, right), tone }] : [];
      }),
      width: frame.clientWidth,
      height: frame.clientHeight,
    };
    if (JSON.stringify(next) !== JSON.stringify(this.state)) this.setState(next);
  }

  render(_, { paths, width, height }) {
    return html`<svg class="edges" ref=${this.canvas} viewBox="0 0 ${width} ${height}" aria-hidden="true">
      ${paths.map(({ line, tone }) => html`<path class=${tone} d=${line} />`)}
    </svg>`;
  }
}

function place(node, frame) {
  const [box, origin] = [node.getBoundingClientRect(), frame.getBoundingClientRect()];
  const middle = box.top - origin.top + box.height / 2;
  return { left: box.left - origin.left, right: box.right - origin.left, middle };
}

function curve(from, to) {
  const [x, y, right, bottom] = [from.right, from.middle, to.left, to.middle].map(Math.round);
  const bend = Math.round((x + right) / 2);
  return `M${x} ${y}C${bend} ${y} ${bend} ${bottom} ${right} ${bottom}`;
}
