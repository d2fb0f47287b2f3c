"""The queries of the Nexmark benchmark, a generator of its events, and programs beside them."""
