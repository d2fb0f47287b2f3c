"""Runs an app together with a helper process that sends events to it and ends when the app ends."""

from __future__ import annotations

import argparse
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

PROJECT = Path(__file__).parent.parent
END_S = 20.0


def arguments_of(demo: str) -> argparse.ArgumentParser:
    """Return a parser with the options that all demos share."""
    parser = argparse.ArgumentParser(prog=f"python examples/{demo}.py")
    parser.add_argument("--data", default=f".penstock/{demo}", metavar="DIR", help=f"data directory (.penstock/{demo})")
    parser.add_argument("--port", type=int, default=8080, help="dashboard port (8080); 0 picks a free one")
    parser.add_argument("--seed", type=int, default=1, help="random seed (1)")
    return parser


def run(file: str, data: str, port: int, module: str, options: Sequence[str]) -> int:
    """Run an app as `penstock run` would, and run `module` next to it with the app's address as `--to`."""
    from penstock.cli.main import main

    chosen = port or _free_port()
    with _beside(module, ["--to", f"http://127.0.0.1:{chosen}", *options]):
        return main(["run", file, "--data", data, "--port", str(chosen)])


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@contextmanager
def _beside(module: str, options: Sequence[str]) -> Iterator[None]:
    """Run `module` for the duration of the block. It has its own session, so Ctrl-C does not reach it; it exits when
    its input is closed."""
    command = [sys.executable, "-m", module, *options]
    with subprocess.Popen(command, cwd=PROJECT, stdin=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdin is not None
        try:
            yield
        finally:
            process.stdin.close()
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
