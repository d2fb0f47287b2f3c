"""Ad-hoc queries: a SELECT over views and recent streams, checked here and run by DuckDB in a separate process.

`parsing` parses the SQL in a limited number of steps. `check` compares every node of the tree with the lists in `nodes`
and `functions`, replaces table names with generated names, and writes new SQL from the tree. `relations` builds an
Arrow table from a view or from the end of a stream, and `sources` keeps it in an in-memory file while it is current. A
query reads its tables and encodes its result only during its turn, so the memory used by all queries is bounded.
`penstock.serve.held` bounds the results that clients have not read yet.

`pool` starts processes that run `worker`. Each process receives the open files and the SQL, runs the query in an empty
DuckDB, and returns a file. DuckDB's own limits do not cover a single function call on a single row, so there are three
further limits: the kernel's memory limit, an alarm, and a kill by the parent process. `live` runs a query again when
its inputs have changed, once for all followers.
"""
