"""A real gateway process, without an engine, and clients that mean it no good."""
