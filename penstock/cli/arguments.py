"""Argument parser that suggests the nearest name for a mistyped command or option, and prints errors in the common
format."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import NoReturn

from penstock.core.suggestions import unknown

_CHOICE = re.compile(r"argument (COMMAND|ACTION): invalid choice: '([^']*)' \(choose from (.*)\)")


class Parser(argparse.ArgumentParser):
    """Argument parser of the command line. On an error, it prints one line and ends the process with status 2."""

    def error(self, message: str) -> NoReturn:
        if mistyped := _CHOICE.match(message):
            message = unknown(mistyped[1].lower(), mistyped[2], re.findall(r"[\w-]+", mistyped[3]))
        self.exit(2, f"penstock: {message} (see `{self.prog} --help`)\n")

    def refuse(self, others: Sequence[str], arguments: argparse.Namespace) -> NoReturn:
        """End the process with an error about the unrecognised arguments, reported by the command's own parser."""
        command = self._command_parser(arguments)
        option = next((argument.partition("=")[0] for argument in others if argument.startswith("-")), None)
        if option is None:
            command.error(f"unrecognized arguments: {' '.join(others)}")
        command.error(unknown("option", option, [name for name in command._option_string_actions if name[:2] == "--"]))

    def _command_parser(self, arguments: argparse.Namespace) -> Parser:
        """Return the parser of the command or of its action."""
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                chosen = action.choices[getattr(arguments, action.dest)]
                return chosen._command_parser(arguments) if isinstance(chosen, Parser) else self
        return self
