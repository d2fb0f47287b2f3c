// The only module that imports the vendored libraries: templates as `html`, and Preact's Component. Every value in a
// template becomes a text node or a property; nothing is ever parsed as markup.

import { Component, createRef, h, render } from "./vendor/preact.mjs";
import htm from "./vendor/htm.mjs";

export const html = htm.bind(h);
export { Component, createRef, render };

/** A component that is drawn again when one of its signals changes. A subclass lists its signals in `signals()`. */
export class Connected extends Component {
  signals() {
    return [];
  }

  componentDidMount() {
    this.stops = this.signals().map((signal) => signal.subscribe(() => this.setState({})));
  }

  componentWillUnmount() {
    this.stops.forEach((stop) => stop());
  }
}
