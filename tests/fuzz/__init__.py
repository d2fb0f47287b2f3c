"""A real gateway process, without an engine, and hostile clients."""
