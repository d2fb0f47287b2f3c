"""The format of the log files of gateway and engine."""

from __future__ import annotations

import logging
import re

_FORMAT = "%(asctime)s %(name)s: %(message)s"
_INDENT = "    "
_breaks = re.compile(r"\r\n|[\n\v\f\r\x1c-\x1e\x85\u2028\u2029]")
_control = re.compile(r"[\x00-\x08\x0e-\x1f\x7f-\x9f]")


class EntryFormatter(logging.Formatter):
    """Formats an entry so that only its first line begins at the margin, and control characters are escaped.

    Entries quote text of clients (a query, a name, an error that repeats them), which must not be able to look like an
    entry of its own or to move the cursor of the terminal that shows it.
    """

    def __init__(self) -> None:
        super().__init__(_FORMAT)

    def format(self, record: logging.LogRecord) -> str:
        lines = _breaks.split(super().format(record))
        return f"\n{_INDENT}".join(_control.sub(lambda found: repr(found[0])[1:-1], line) for line in lines)


def configure() -> None:
    """Send the log of this process to standard error, in this format."""
    handler = logging.StreamHandler()
    handler.setFormatter(EntryFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
