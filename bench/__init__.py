"""Benchmarks that compare each figure with a baseline from the same run. `python -m bench [NAME ...]`, or `make
bench`."""
