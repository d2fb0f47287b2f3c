// The lines of the pipe, drawn behind its cards from where the cards really are.

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

  /** Reads the layout, and draws again only if a line has moved: once a second, for as many nodes as the app has. */
  measure() {
    const frame = this.canvas.current.parentElement;
    const nodes = new Map([...frame.querySelectorAll("[data-node]")].map((node) => [node.dataset.node, place(node, frame)]));
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
  return { left: box.left - origin.left, right: box.right - origin.left, middle: box.top - origin.top + box.height / 2 };
}

function curve(from, to) {
  const bend = (from.right + to.left) / 2;
  const [a, b] = [from.middle, to.middle].map(Math.round);
  return `M${Math.round(from.right)} ${a}C${Math.round(bend)} ${a} ${Math.round(bend)} ${b} ${Math.round(to.left)} ${b}`;
}
