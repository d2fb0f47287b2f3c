"""The queries of Nexmark compared with plain Python over the same events."""
