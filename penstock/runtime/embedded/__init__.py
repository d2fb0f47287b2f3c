"""`Storage` in a data directory. Only these modules in `runtime` know where data is stored and in which format.

`storage.open_storage` is the only entry point; `runtime/opening.py` calls it for all processes. `directory` contains
the paths, the lock and the owner of a data directory.
"""
