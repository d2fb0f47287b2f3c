"""An app with its play beside it."""

from __future__ import annotations

from pathlib import Path

from examples.beside import arguments_of, run
from examples.playing.plays import FEEDS


def main(file: str) -> int:
    """Run both until Ctrl-C; returns the exit status."""
    name = Path(file).stem
    rate = FEEDS[name].rate
    parser = arguments_of(name)
    parser.add_argument("--rate", type=float, default=rate, help=f"events a second ({rate:g})")
    parser.add_argument("--events", type=int, default=0, help="stop sending after so many; 0, the default, is never")
    chosen = parser.parse_args()
    options = [name, *(f"--{each}={getattr(chosen, each)}" for each in ("seed", "rate", "events"))]
    return run(file, chosen.data, chosen.port, "examples.playing", options)
