"""A query of `examples/nexmark.py` with an invented auction house beside it."""

from __future__ import annotations

from examples.beside import arguments_of, run


def main(file: str) -> int:
    """Run both until Ctrl-C; returns the exit status."""
    parser = arguments_of("nexmark")
    parser.add_argument("--query", default="app", metavar="QUERY", help="q0 to q22; some of them together if not given")
    parser.add_argument("--rate", type=int, default=200, help="events a second (200)")
    parser.add_argument("--events", type=int, default=0, help="stop after so many; 0, the default, is never")
    chosen = parser.parse_args()
    options = [f"--{name}={getattr(chosen, name)}" for name in ("seed", "rate", "events")]
    folder = chosen.data if chosen.query == "app" else f"{chosen.data}-{chosen.query}"
    return run(f"{file}:{chosen.query}", folder, chosen.port, "examples.nexmark_queries.play", options)
