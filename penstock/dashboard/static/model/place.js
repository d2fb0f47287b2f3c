// The current place in the page. It is kept in the URL's hash, so that reloading, going back and shared links lead to
// it.
//
//     #/                                overview
//     #/views/NAME?sort=COLUMN&dir=asc  one view
//     #/streams/NAME/TAB                one stream: latest events, `rejected` or `send`
//     #/handlers/NAME                   one handler: its failures, and the state of a key
//     #/query?sql=TEXT                  a query
//     #/webhooks/ID                     the webhooks, or one of them

import { Signal } from "./signal.js";

export function read(hash) {
  const [path, query] = hash.replace(/^#\/?/, "").split("?");
  const [kind, name, tab] = path.split("/").map(decode);
  if (kind === "query") return { kind, name: null, tab: null, sort: null, sql: new URLSearchParams(query).get("sql") };
  if (kind === "webhooks") return { kind, name: name || null, tab: null, sort: null };
  if (!["views", "streams", "handlers"].includes(kind) || !name) return { kind: "overview", name: null, tab: null, sort: null };
  const options = new URLSearchParams(query);
  const sort = options.has("sort") ? { column: options.get("sort"), down: options.get("dir") === "desc" } : null;
  return { kind, name, tab: tab ?? null, sort };
}

export function link({ kind, name, tab, sort, sql }) {
  if (kind === "query") return sql ? `#/query?${new URLSearchParams({ sql })}` : "#/query";
  if (!name) return kind === "webhooks" ? "#/webhooks" : "#/";
  const path = `#/${kind}/${encodeURIComponent(name)}${tab ? `/${tab}` : ""}`;
  return sort ? `${path}?${new URLSearchParams({ sort: sort.column, dir: sort.down ? "desc" : "asc" })}` : path;
}

/** A malformed escape in a hand-written hash is kept unchanged. */
function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

export class Place {
  state = new Signal(read(location.hash));

  constructor() {
    addEventListener("hashchange", () => (this.state.value = read(location.hash)));
  }

  /** Store the query, so that a reload runs it again. */
  ask(sql) {
    history.replaceState(null, "", link({ kind: "query", sql }));
  }

  /** Change the order of a table without adding to the history. */
  sort(sort) {
    this.state.value = { ...this.state.value, sort };
    history.replaceState(null, "", link(this.state.value));
  }
}
