"""Dashboard: one page of static files that shows any app through the public API.

It has no separate server side. `routes` serves the page and its assets with strict headers; the page gets all its data
from `/v1/app` and `/v1/live`, like any other client.

The page is built on the browser client in `static/client`, whose modules are served as one file (`bundle`).
`protocol.js` implements the protocol without any network access, and is tested with the vectors described in
`docs/protocol.md`. `link.js` chooses the transport (`socket.js`, `http.js`) and implements the back-off that all
subscriptions share. `subscription.js` passes each message to the page and advances the cursor when the page has
processed it. `copy.js` holds the rows; `saver.js` writes them with their cursor to a store (`stores.js`), in one
transaction.
"""

from penstock.dashboard.assets import HEADERS, Asset, load
from penstock.dashboard.routes import CLIENT_PATHS, is_file, routes

__all__ = ["CLIENT_PATHS", "HEADERS", "Asset", "is_file", "load", "routes"]
