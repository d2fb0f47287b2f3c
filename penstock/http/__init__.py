"""HTTP server code shared by the packages `collect` and `serve`: uvicorn's protocols with limits, and the parts of HTTP
that do not depend on the endpoint.

`protocol` contains the protocol classes for uvicorn, `edge` limits connections, `guard` rejects requests that come from
other sites' pages or have no key, and `head` checks request heads. `body` and `small_body` read request bodies with
size limits, `pending` counts the bytes of incomplete requests and messages, `arriving` ends requests whose caller is
revoked before the body is complete, and `deadline` bounds many short waits with one timer. `compression` and
`encodings` compress responses, `frames` builds WebSocket frames, `origins` implements CORS, and `problems` turns errors
into `application/problem+json`.

This package does not use streams, views or cursors: the endpoints are in `collect`, `serve` and `dashboard`. Within
Penstock, it imports only `core`.
"""
