"""Benchmarks: each figure beside its baseline from the same run. `python -m bench [NAME ...]`, or `make bench`."""
