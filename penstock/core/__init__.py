"""Basic modules that every other package can use.

`errors` defines the error classes, `settings` defines all settings, and `contracts` defines the interfaces between the
tiers. Event and state classes and their types are in `schema`, `event_shape` and `state_value`. `columns`, `lossless`
and `arrays` convert events and rows between Python, Arrow and JSON. `cursor` defines the positions that clients resume
from, `files` handles durable files and their checksums, `signing` creates and verifies webhook signatures, and `sse`
parses server-sent events. `access` turns credentials into a caller with grants, and `filters` compiles `where` and
`select` to Arrow.

This package does not import any other Penstock package. Do not add code to it that belongs to a single tier, such as a
file format, a Spark query or a transport.
"""
