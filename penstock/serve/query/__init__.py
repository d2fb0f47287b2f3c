"""Ad-hoc queries: a SELECT over views and recent streams, checked by us and run by DuckDB in a process of its own."""
