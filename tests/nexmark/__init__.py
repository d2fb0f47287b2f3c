"""The queries of Nexmark against plain Python over the same events."""
