"""Runs the app in `examples/fleet.py` with a simulated fleet."""

from __future__ import annotations

from examples.beside import arguments_of, run


def main(file: str) -> int:
    """Run both until Ctrl-C, and return the exit status."""
    parser = arguments_of("fleet")
    parser.add_argument("--vehicles", type=int, default=40, help="number of vehicles (40)")
    parser.add_argument("--rate", type=float, default=40.0, help="fixes per second, for the whole fleet (40)")
    parser.add_argument("--fixes", type=int, default=0, help="stop after this many fixes; 0 (default) means never")
    chosen = parser.parse_args()
    options = [f"--{name}={getattr(chosen, name)}" for name in ("seed", "rate", "vehicles", "fixes")]
    return run(file, chosen.data, chosen.port, "examples.driving", options)
