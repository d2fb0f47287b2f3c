"""argparse, with the nearest name where a command or an option is mistyped, and errors as all others are printed."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import NoReturn

from penstock.suggestions import unknown

_CHOICE = re.compile(r"argument (COMMAND|ACTION): invalid choice: '([^']*)' \(choose from (.*)\)")


class Parser(argparse.ArgumentParser):
    """A parser whose errors end the process with one line and status 2."""

    def error(self, message: str) -> NoReturn:
        if mistyped := _CHOICE.match(message):
            message = unknown(mistyped[1].lower(), mistyped[2], re.findall(r"[\w-]+", mistyped[3]))
        self.exit(2, f"penstock: {message} (see `{self.prog} --help`)\n")

    def refuse(self, others: Sequence[str], arguments: argparse.Namespace) -> NoReturn:
        """End the process with what no parser took, from the parser of the command that was given."""
        command = self._of(arguments)
        option = next((each.partition("=")[0] for each in others if each.startswith("-")), None)
        if option is None:
            command.error(f"unrecognized arguments: {' '.join(others)}")
        command.error(unknown("option", option, [each for each in command._option_string_actions if each[:2] == "--"]))

    def _of(self, arguments: argparse.Namespace) -> Parser:
        """The parser of the command, or of its action."""
        for each in self._actions:
            if isinstance(each, argparse._SubParsersAction):
                chosen = each.choices[getattr(arguments, each.dest)]
                return chosen._of(arguments) if isinstance(chosen, Parser) else self
        return self
