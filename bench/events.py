"""The events used in the ingest benchmarks. Each has about 120 bytes and a unique id."""

from __future__ import annotations

import itertools

_numbers = itertools.count()


def event() -> bytes:
    number = next(_numbers)
    return (
        f'{{"reading":"reading-{number}","sensor":"sensor-{number % 1000}","at":"2026-01-01T12:00:00.000Z",'
        f'"value":{number % 100 / 4},"number":{number}}}'
    ).encode()
