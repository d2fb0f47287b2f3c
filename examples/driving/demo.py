"""The app in `examples/fleet.py` with an invented fleet beside it."""

from __future__ import annotations

from examples.beside import arguments_of, run


def main(file: str) -> int:
    """Run both until Ctrl-C; returns the exit status."""
    parser = arguments_of("fleet")
    parser.add_argument("--vehicles", type=int, default=40, help="how many drive (40)")
    parser.add_argument("--rate", type=float, default=40.0, help="fixes a second, of all vehicles together (40)")
    parser.add_argument("--fixes", type=int, default=0, help="stop driving after so many; 0, the default, is never")
    chosen = parser.parse_args()
    options = [f"--{name}={getattr(chosen, name)}" for name in ("seed", "rate", "vehicles", "fixes")]
    return run(file, chosen.data, chosen.port, "examples.driving", options)
