"""Content codings that a client accepts according to its `Accept-Encoding` header (RFC 9110, 12.5.3)."""

from __future__ import annotations

GZIP = "gzip"


def accepts_gzip(header: str) -> bool:
    """Return whether an `Accept-Encoding` header accepts gzip. An empty header does not."""
    weights: dict[str, float] = {}
    for item in header[:1000].split(","):
        name, _, rest = item.strip().lower().partition(";")
        weights[name.strip()] = _coding_weight(rest)
    return weights.get(GZIP, weights.get("x-gzip", weights.get("*", 0.0))) > 0


def _coding_weight(text: str) -> float:
    name, separator, value = text.strip().partition("=")
    if name.strip() != "q" or not separator:
        return 1.0
    try:
        return float(value)
    except ValueError:
        return 0.0
