"""The browser client as one file: the modules of `static/client`, one after the other.

They are written as modules of a size that can be read, and used as one that can be copied and that a page gets with one
request. Nothing is done to them but that their imports of each other are left out.
"""

from __future__ import annotations

import re
from pathlib import Path

ORDER = (
    "protocol", "socket", "http", "link", "copy", "stores", "keeper", "subscription", "table", "penstock",
)  # fmt: skip
"""A module comes after those that it imports."""
_HEAD = "// The client of Penstock for browsers, made of the modules in penstock/dashboard/static/client.\n\n"
_IMPORT = re.compile(r'^import \{[^}\n]*\} from "\./\w+\.js";\n+', re.MULTILINE)


def bundle(folder: Path) -> bytes:
    """The modules of a folder as one."""
    modules = [_IMPORT.sub("", (folder / f"{name}.js").read_text()) for name in ORDER]
    return (_HEAD + "\n".join(modules)).encode()
