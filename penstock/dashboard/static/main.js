// Puts the page together. A page that is not seen asks for nothing, and soon lets go of its connection as well; when it
// is seen again it goes on from its cursors.

import { html, render } from "./html.js";
import { Feeds } from "./model/feeds.js";
import { Figures } from "./model/figures.js";
import { key } from "./model/key.js";
import { Live } from "./model/live.js";
import { Place } from "./model/place.js";
import { Page } from "./parts/page.js";

const HIDDEN_GRACE_MS = 10_000; // a glance at another tab does not cost a reconnect

const live = new Live();
const figures = new Figures();
const place = new Place();
let leaving = null;

function follow() {
  clearTimeout(leaving);
  if (document.hidden) {
    figures.stop();
    leaving = setTimeout(() => live.pause(), HIDDEN_GRACE_MS);
  } else {
    figures.start();
    live.open();
  }
}

key.subscribe(() => {
  live.pause();
  figures.restart();
  follow();
});
document.addEventListener("visibilitychange", follow);
addEventListener("online", follow);
const root = document.getElementById("page");
root.replaceChildren();
render(html`<${Page} ...${{ live, figures, place, feeds: new Feeds(live) }} />`, root);
follow();
