"""The queries of the Nexmark benchmark, an event generator, and helper programs."""
