"""Runs an app together with its play."""

from __future__ import annotations

from pathlib import Path

from examples.beside import arguments_of, run
from examples.playing.plays import FEEDS


def main(file: str) -> int:
    """Run both until Ctrl-C, and return the exit status."""
    name = Path(file).stem
    rate = FEEDS[name].rate
    parser = arguments_of(name)
    parser.add_argument("--rate", type=float, default=rate, help=f"events per second ({rate:g})")
    parser.add_argument("--events", type=int, default=0, help="stop after this many events; 0 (default) means never")
    chosen = parser.parse_args()
    options = [name, *(f"--{option}={getattr(chosen, option)}" for option in ("seed", "rate", "events"))]
    return run(file, chosen.data, chosen.port, "examples.playing", options)
