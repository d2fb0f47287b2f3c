"""Runs the app in `examples/royalties.py` with sales, a payment service and a payer."""

from __future__ import annotations

from pathlib import Path

from examples.beside import arguments_of, run


def main(file: str) -> int:
    """Run everything until Ctrl-C, and return the exit status."""
    parser = arguments_of("royalties")
    parser.add_argument("--rate", type=float, default=20.0, help="sales per second (20)")
    parser.add_argument("--sales", type=int, default=400, help="number of sales before the books are compared (400)")
    parser.add_argument(
        "--kill-every", type=float, default=4.0, metavar="S", help="kill -9 the payer every S seconds (4); 0: never"
    )
    chosen = parser.parse_args()
    data = Path(chosen.data).absolute()
    options = [
        f"--{name}={getattr(chosen, name.replace('-', '_'))}" for name in ("seed", "rate", "sales", "kill-every")
    ]
    return run(file, chosen.data, chosen.port, "examples.paying", [f"--books={data}.books", *options])
