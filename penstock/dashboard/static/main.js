// Assembles the page. A hidden page requests nothing, and soon closes its connection as well; when it is visible again
// it resumes from its cursors.

import { html, render } from "./html.js";
import { Feeds } from "./model/feeds.js";
import { Figures } from "./model/figures.js";
import { key } from "./model/key.js";
import { Place } from "./model/place.js";
import { Signal } from "./model/signal.js";
import { Page } from "./parts/page.js";
import { connect } from "./penstock.js";

const penstock = connect(document.baseURI, {
  key: () => key.value,
  pauseHidden: true,
  state: (state) => (connection.value = state),
});
const connection = new Signal(penstock.state);
const figures = new Figures(penstock);
const place = new Place();

function look() {
  if (document.hidden) figures.stop();
  else figures.start();
}

key.subscribe(() => {
  penstock.pause();
  figures.restart();
  look();
  penstock.resume();
});
document.addEventListener("visibilitychange", look);
const root = document.getElementById("page");
root.replaceChildren();
render(html`<${Page} ...${{ penstock, connection, figures, place, feeds: new Feeds(penstock) }} />`, root);
look();
