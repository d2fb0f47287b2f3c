"""The app in `examples/royalties.py` with sales, a payment service and a payer beside it."""

from __future__ import annotations

from pathlib import Path

from examples.beside import arguments_of, run


def main(file: str) -> int:
    """Run all of it until Ctrl-C; returns the exit status."""
    parser = arguments_of("royalties")
    parser.add_argument("--rate", type=float, default=20.0, help="sales a second (20)")
    parser.add_argument("--sales", type=int, default=400, help="how many, before the books are compared (400)")
    parser.add_argument("--kill-every", type=float, default=4.0, metavar="S", help="kill -9 the payer; 0 is never (4)")
    chosen = parser.parse_args()
    data = Path(chosen.data).absolute()
    options = [
        f"--{name}={getattr(chosen, name.replace('-', '_'))}" for name in ("seed", "rate", "sales", "kill-every")
    ]
    return run(file, chosen.data, chosen.port, "examples.paying", [f"--books={data}.books", *options])
