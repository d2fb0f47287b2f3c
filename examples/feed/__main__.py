"""`python -m examples.feed`: runs the feed without an app."""

from __future__ import annotations

import argparse
import asyncio
import sys
from contextlib import suppress

from examples.feed.server import serving


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.feed", description="An endless feed of invented RSVPs.")
    parser.add_argument("--port", type=int, default=8090, help="port to listen on (at 127.0.0.1); 0 picks a free one")
    parser.add_argument("--rate", type=float, default=50.0, help="average number of RSVPs per second")
    parser.add_argument("--seed", type=int, default=1, help="random seed")
    parser.add_argument(
        "--until-eof",
        action="store_true",
        help="stop when standard input is closed, which happens when the parent exits",
    )
    arguments = parser.parse_args()
    with suppress(KeyboardInterrupt):
        asyncio.run(_run(arguments))


async def _run(arguments: argparse.Namespace) -> None:
    async with serving(arguments.port, arguments.seed, arguments.rate) as address:
        print(address, flush=True)
        if arguments.until_eof:
            await asyncio.to_thread(sys.stdin.read)
        else:
            await asyncio.Event().wait()


if __name__ == "__main__":
    main()
