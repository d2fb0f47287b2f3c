"""The browser client as one file: the modules of `static/client`, concatenated.

The small modules are served as one file, so that the client is easy to copy and a page loads it with one request. The
only change is that the imports between the modules are removed.
"""

from __future__ import annotations

import re
from pathlib import Path

ORDER = (
    "protocol", "socket", "http", "link", "copy", "stores", "saver", "subscription", "table", "penstock",
)  # fmt: skip
"""Each module comes after the modules that it imports."""
_HEAD = "// The client of Penstock for browsers, built from the modules in penstock/dashboard/static/client.\n\n"
_IMPORT = re.compile(r'^import \{[^}\n]*\} from "\./\w+\.js";\n+', re.MULTILINE)


def bundle(folder: Path) -> bytes:
    """Return the browser client's modules as one file."""
    modules = [_IMPORT.sub("", (folder / f"{name}.js").read_text()) for name in ORDER]
    return (_HEAD + "\n".join(modules)).encode()
