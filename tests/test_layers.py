"""The allowed imports between packages, checked in the source."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "penstock"
LAYERS: Mapping[str, set[str]] = {
    "core": set(),
    "control": {"core"},
    "cep": {"core"},
    "windows": {"core"},
    "rollups": {"core", "windows"},
    "joins": {"core", "rollups"},
    "sketches": {"core"},
    "app": {"core", "cep", "windows", "rollups", "joins"},
    "handlers": {"core", "app"},
    "testing": {"core", "app", "handlers"},
    "http": {"core"},
    "collect": {"core", "app", "http"},
    "queue": {"core"},
    "analyze": {"core", "control", "app", "handlers", "sketches"},
    "store": {"core", "handlers"},
    "serve": {"core", "http"},
    "client": {"core"},
    "dashboard": {"http"},
}
"""The packages that each folder may import besides itself. `runtime` and `cli` combine the others."""
ABOVE = {"runtime", "cli", "__init__"}
LATER = {("sketches", "analyze")}
"""`sketches.columns` reaches the analyze tier when one of its functions is first used, not when it is imported."""


OVER_STORAGE = {"control", "app", "handlers", "collect", "analyze", "serve", "runtime"}
"""The folders of the processes, which reach what is stored through the contracts.

`queue`, `store` and `runtime/embedded` implement these; `cli` takes paths from the command line; `client` and
`dashboard` have no storage.
"""
FILE_MODULES = {"pathlib", "shutil", "sqlite3", "tempfile"}
MAY_USE_PATHS: Mapping[str, set[str]] = {
    "where the storage is": {"runtime/opening.py"},
    "the user's program and what it names, and files of the package": {
        "app/app.py",
        "app/declared.py",
        "app/fingerprints/code.py",
        "app/fingerprints/trees.py",
        "app/fingerprints/values.py",
        "app/hints.py",
        "app/loading.py",
        "handlers/purity.py",
        "handlers/replay.py",
        "runtime/affected.py",
        "runtime/gateway.py",
        "runtime/webhooks.py",
        "serve/query/pool.py",
        "serve/query/worker.py",
    },
    "sources whose feed is a folder, a file or a secret in a file": {
        "collect/sources/files/arrivals.py",
        "collect/sources/files/folder.py",
        "collect/sources/files/follow.py",
        "collect/sources/files/rotation.py",
        "collect/sources/files/tail.py",
        "collect/sources/nats/source.py",
    },
    "Spark's process: its installation, its checkpoints and its temporary folders": {
        "analyze/archive.py",
        "analyze/check.py",
        "analyze/checkpoint.py",
        "analyze/java.py",
        "analyze/plans.py",
        "analyze/scratch.py",
        "analyze/session.py",
        "analyze/workers.py",
    },
    "working folders of this machine: logs of children, and runs of handlers in temporary folders": {
        "runtime/examination.py",
        "runtime/migrations.py",
        "runtime/rehearsing.py",
        "runtime/storage.py",
        "runtime/supervisor.py",
    },
}
"""Modules of these folders that use paths, by reason."""
STORED_NAME = re.compile(
    r"\S*\.(db|db-\w+|delta|snapshot|outbox|arrow)|\S*(owner|keys|ack_key|declarations|purge|prepared)\.json|rebuild\.lock"
)
"""Names of files in a data directory."""


def modules() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py"))


def part(path: Path) -> str:
    """Return the folder, or the module at the top level, that a file belongs to."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module or ""
            if node.module == "penstock":
                yield from (f"penstock.{alias.name}" for alias in node.names)


def own_parts(path: Path) -> set[str]:
    parts = {name.split(".")[1] for name in imports(path) if name.startswith("penstock.")}
    return {name for name in parts if (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").exists()}


def test_every_folder_is_in_a_layer() -> None:
    assert {part(path) for path in modules()} == LAYERS.keys() | ABOVE


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_imports_only_what_its_layer_may(path: Path) -> None:
    here = part(path)
    if here in ABOVE - {"runtime"}:
        return
    allowed = LAYERS.get(here, {*LAYERS, "runtime"} - {"client"}) | {here}
    surplus = {name for name in own_parts(path) - allowed if (here, name) not in LATER}
    assert not surplus, f"{here} must not import {sorted(surplus)}"


def test_only_analyze_and_the_engine_import_pyspark() -> None:
    users = {
        str(path.relative_to(PACKAGE))
        for path in modules()
        if any(name.split(".")[0] in ("pyspark", "py4j") for name in imports(path))
    }
    others = {user for user in users if not user.startswith("analyze/")}
    names_it_for_typing = {"app/app.py", "app/declared.py", "runtime/previewing.py"}
    assert others == {*names_it_for_typing, "runtime/engine.py"}, "the engine joins tiers"


def test_only_the_storage_knows_its_files() -> None:
    """Everything else has a `Storage`, which one function opens for all processes."""
    users: dict[str, set[str]] = {}
    for path in modules():
        for name in imports(path):
            if name.startswith("penstock.runtime.embedded."):
                users.setdefault(name.split(".")[3], set()).add(str(path.relative_to(PACKAGE)))
    outside = {name: {user for user in files if "embedded" not in user} for name, files in users.items()}
    assert {name: files for name, files in outside.items() if files} == {"storage": {"runtime/opening.py"}}


def test_only_its_opener_makes_a_log() -> None:
    """Everything else is given one by the storage."""
    makers = {
        str(path.relative_to(PACKAGE))
        for path in modules()
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "EmbeddedLog"
    }
    assert makers == {"queue/embedded.py"}


def over_storage() -> Iterator[tuple[str, Path]]:
    for path in modules():
        name = str(path.relative_to(PACKAGE))
        if part(path) in OVER_STORAGE and not name.startswith("runtime/embedded/"):
            yield name, path


def test_paths_are_for_storages_only() -> None:
    """A path in any other module has one of few reasons, none of which is to find what is stored."""
    users = {name for name, path in over_storage() if any(name in FILE_MODULES for name in imports(path))}
    assert users == set().union(*MAY_USE_PATHS.values())


def test_names_of_stored_files_are_for_storages_only() -> None:
    users = {
        (name, node.value)
        for name, path in over_storage()
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and STORED_NAME.fullmatch(node.value)
    }
    assert users == set()


def test_only_storages_use_sqlite() -> None:
    users = {path.relative_to(PACKAGE) for path in modules() if "sqlite3" in imports(path)}
    assert {str(path) for path in users if path.parts[0] not in ("queue", "store", "client")} == {
        "core/files.py",
        "runtime/embedded/webhooks.py",
    }


def test_importing_the_package_starts_and_loads_nothing_heavy() -> None:
    heavy = ("pyspark", "pyarrow", "starlette", "uvicorn", "sqlglot", "websockets", "sqlite3", "numpy", "datasketches")
    code = f"import penstock, penstock.collect, sys; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_sketches_do_not_load_spark_until_a_column_function_is_used() -> None:
    code = "from penstock.sketches import Hll, columns; import sys; print('pyspark' in sys.modules); columns.bloom; "
    code += "print('pyspark' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]


def test_the_gateway_does_not_load_spark() -> None:
    code = "import penstock.runtime.gateway, sys; print('pyspark' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_channels_know_nothing_of_transports() -> None:
    imported = {name for path in (PACKAGE / "serve" / "channels").glob("*.py") for name in imports(path)}
    served = {name for name in imported if name.startswith("penstock.serve")}
    assert "penstock.serve.channels.row_filter" in served
    assert [name for name in served if not name.startswith("penstock.serve.channels.")] == []


def test_the_client_needs_nothing_of_the_server() -> None:
    heavy = "('pyspark', 'pyarrow', 'starlette', 'uvicorn', 'sqlglot')"
    code = f"import penstock.client, sys; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
