"""Runs a query of `examples/nexmark.py` with a simulated auction house."""

from __future__ import annotations

from examples.beside import arguments_of, run


def main(file: str) -> int:
    """Run both until Ctrl-C, and return the exit status."""
    parser = arguments_of("nexmark")
    parser.add_argument("--query", default="app", metavar="QUERY", help="q0 to q22; by default, several together")
    parser.add_argument("--rate", type=int, default=200, help="events per second (200)")
    parser.add_argument("--events", type=int, default=0, help="stop after this many events; 0 (default) means never")
    chosen = parser.parse_args()
    options = [f"--{name}={getattr(chosen, name)}" for name in ("seed", "rate", "events")]
    folder = chosen.data if chosen.query == "app" else f"{chosen.data}-{chosen.query}"
    return run(f"{file}:{chosen.query}", folder, chosen.port, "examples.nexmark_queries.play", options)
