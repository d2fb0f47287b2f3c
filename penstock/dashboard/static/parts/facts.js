// A line of names with their values; a fact without a value is omitted.

import { html } from "../html.js";

export function Facts({ facts }) {
  const known = facts.filter(([, value]) => value !== null && value !== undefined && value !== "");
  const pairs = known.map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`);
  return html`<dl class="facts">${pairs}</dl>`;
}
