"""The log format of the gateway and the engine."""

from __future__ import annotations

import logging
import re

_FORMAT = "%(asctime)s %(name)s: %(message)s"
_INDENT = "    "
_breaks = re.compile(r"\r\n|[\n\v\f\r\x1c-\x1e\x85\u2028\u2029]")
_control = re.compile(r"[\x00-\x08\x0e-\x1f\x7f-\x9f]")


class EntryFormatter(logging.Formatter):
    """Formatter that indents every line of an entry except the first, and escapes control characters.

    Entries quote text from clients, such as queries, names, and errors that repeat them. This text must not look like a
    separate entry, or move the cursor in the terminal that displays it.
    """

    def __init__(self) -> None:
        super().__init__(_FORMAT)

    def format(self, record: logging.LogRecord) -> str:
        lines = _breaks.split(super().format(record))
        return f"\n{_INDENT}".join(_control.sub(lambda match: repr(match[0])[1:-1], line) for line in lines)


def configure() -> None:
    """Log the process's messages to standard error in this format, for the whole process."""
    handler = logging.StreamHandler()
    handler.setFormatter(EntryFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
