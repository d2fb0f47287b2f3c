"""Who may import whom, read from the source."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "penstock"
FOUNDATIONS = {
    "errors", "settings", "schema", "columns", "rows", "cursor", "files", "failpoints", "shard", "evolution",
    "contracts", "access", "filters", "signing", "kept", "lossless", "making", "packed", "sketches", "event_shape",
    "encodings", "suggestions", "notebook", "sql",
}  # fmt: skip
DECLARATIONS = {
    "app", "declared", "graph", "machine", "testing", "samples", "suspects", "purity", "shed", "times", "cep",
    "windows", "rollups", "joins", "fingerprints",
}  # fmt: skip
TIERS = {"collect", "queue", "analyze", "store", "serve", "client", "dashboard"}
ABOVE = {"runtime", "cli", "__init__"}
ALLOWED_ONCE = {("app", "analyze"), ("sketches", "analyze")}
"""`App.preview` reaches the analyze tier when it is called, `sketches.columns` when one of its functions is; nothing
else of what is below does."""


def modules() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py"))


def part(path: Path) -> str:
    """The tier, or the module at the top level, that a file belongs to."""
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module or ""
            if node.module == "penstock":
                yield from (f"penstock.{alias.name}" for alias in node.names)


def own_parts(path: Path) -> set[str]:
    found = {name.split(".")[1] for name in imports(path) if name.startswith("penstock.")}
    return {each for each in found if (PACKAGE / each).is_dir() or (PACKAGE / f"{each}.py").exists()}


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_imports_only_what_its_layer_may(path: Path) -> None:
    here = part(path)
    if here in FOUNDATIONS:
        allowed = FOUNDATIONS
    elif here in DECLARATIONS:
        allowed = FOUNDATIONS | DECLARATIONS
    elif here in TIERS:
        allowed = FOUNDATIONS | DECLARATIONS | {here}
    elif here == "__init__":
        allowed = FOUNDATIONS | DECLARATIONS | {"collect"}
    else:
        assert here in ABOVE, f"{here} is in no layer: add it to one"
        allowed = FOUNDATIONS | DECLARATIONS | TIERS | {"runtime"}
    surplus = {each for each in own_parts(path) - allowed if (here, each) not in ALLOWED_ONCE}
    assert not surplus, f"{here} must not import {sorted(surplus)}"


def test_only_analyze_and_the_engine_import_pyspark() -> None:
    users = {
        str(path.relative_to(PACKAGE))
        for path in modules()
        if any(name.split(".")[0] in ("pyspark", "py4j") for name in imports(path))
    }
    others = {each for each in users if not each.startswith("analyze/")}
    names_it_for_typing = {"app.py", "declared.py"}
    assert others == {*names_it_for_typing, "runtime/engine.py"}, "the engine joins tiers"


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
    found = {name for path in (PACKAGE / "serve" / "channels").glob("*.py") for name in imports(path)}
    served = {name for name in found if name.startswith("penstock.serve")}
    assert "penstock.serve.channels.lens" in served
    assert [name for name in served if not name.startswith("penstock.serve.channels.")] == []


def test_the_client_needs_nothing_of_the_server() -> None:
    heavy = "('pyspark', 'pyarrow', 'starlette', 'uvicorn', 'sqlglot')"
    code = f"import penstock.client, sys; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
