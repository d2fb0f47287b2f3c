"""Fingerprints of functions: equal for what does the same, different for what may not."""

from __future__ import annotations

import itertools
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.fingerprints.functions import Fingerprint, fingerprint, fingerprint_of

numbers = itertools.count()


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Fingerprint]:
    """The fingerprint of `f` in a file, which may have neighbours."""

    def make(text: str, **neighbours: str) -> Fingerprint:
        folder = tmp_path / str(next(numbers))
        folder.mkdir()
        for name, content in neighbours.items():
            (folder / f"{name}.py").write_text(textwrap.dedent(content))
            monkeypatch.delitem(sys.modules, name, raising=False)
        file = folder / "app.py"
        file.write_text(textwrap.dedent(text))
        space: dict[str, Any] = {"__name__": "app", "__file__": str(file)}
        monkeypatch.syspath_prepend(str(folder))
        exec(compile(file.read_text(), str(file), "exec", dont_inherit=True), space)
        return fingerprint(space["f"])

    return make


SAME = {
    "line numbers": ("def f(x): return x * 2", "\n\n# doubles\ndef f(x):\n\n    return x * 2  # so"),
    "a docstring": ("def f(x): return x * 2", 'def f(x):\n    "Double."\n    return x * 2'),
    "a docstring where None is returned": ("def f(x): print(2)", 'def f(x):\n    "Say two."\n    print(2)'),
    "annotations": ("def f(x): return x * 2", "def f(x: int) -> int: return x * 2"),
    "its name": ("def g(x): return x * 2\nf = g", "def f(x): return x * 2"),
    "a local name": ("def f(x):\n y = x\n return y", "def f(x):\n z = x\n return z"),
    "the name of a constant": ("K = 2\ndef f(x): return x * K", "L = 2\ndef f(x): return x * L"),
    "the name of a helper": ("def g(x): return x\ndef f(x): return g(x)", "def h(x): return x\ndef f(x): return h(x)"),
    "how a constant is written": ("K = 4\ndef f(): return K", "K = 2 + 2\ndef f(): return K"),
    "what it does not use": ("K = 2\ndef f(): return 1", "K = 3\ndef f(): return 1"),
    "the order of a set": ("K = {'a', 'b', 'c'}\ndef f(): return K", "K = {'c', 'b', 'a'}\ndef f(): return K"),
    "a comment in a class": ("class A:\n x = 1\ndef f(): return A", "class A:\n # one\n x = 1\ndef f(): return A"),
}
DIFFERENT = {
    "a constant in it": ("def f(x): return x * 2", "def f(x): return x * 3"),
    "an operator": ("def f(x): return x * 2", "def f(x): return x + 2"),
    "an attribute": ("def f(x): return x.a", "def f(x): return x.b"),
    "a global": ("K = 2\ndef f(x): return x * K", "K = 3\ndef f(x): return x * K"),
    "the type of a global": ("K = 2\ndef f(x): return x * K", "K = 2.0\ndef f(x): return x * K"),
    "True for 1": ("K = 1\ndef f(x): return x * K", "K = True\ndef f(x): return x * K"),
    "a list in a global": ("K = [1, 2]\ndef f(x): return K", "K = [1, 3]\ndef f(x): return K"),
    "the order of a dict": ("K = {1: 2, 3: 4}\ndef f(): return K", "K = {3: 4, 1: 2}\ndef f(): return K"),
    "a default": ("def f(x, y=1): return x", "def f(x, y=2): return x"),
    "a keyword default": ("def f(x, *, y=1): return x", "def f(x, *, y=2): return x"),
    "a closure": (
        "def g(k):\n def f(x): return x * k\n return f\nf = g(2)",
        "def g(k):\n def f(x): return x * k\n return f\nf = g(3)",
    ),
    "a helper's helper": (
        "def h(x): return 1\ndef g(x): return h(x)\ndef f(x): return g(x)",
        "def h(x): return 2\ndef g(x): return h(x)\ndef f(x): return g(x)",
    ),
    "a function within": ("def f(xs): return [x * 2 for x in xs]", "def f(xs): return [x * 3 for x in xs]"),
    "a global of a function within": (
        "K = 2\ndef f(xs): return [x * K for x in xs]",
        "K = 3\ndef f(xs): return [x * K for x in xs]",
    ),
    "a method": (
        "class A:\n def m(self): return 1\ndef f(): return A().m()",
        "class A:\n def m(self): return 2\ndef f(): return A().m()",
    ),
    "an instance": (
        "class A:\n def __init__(self, x): self.x = x\na = A(1)\ndef f(): return a",
        "class A:\n def __init__(self, x): self.x = x\na = A(2)\ndef f(): return a",
    ),
    "a field of a dataclass": (
        "from dataclasses import dataclass\n@dataclass\nclass A:\n x: int = 1\ndef f(): return A()",
        "from dataclasses import dataclass\n@dataclass\nclass A:\n x: int = 2\ndef f(): return A()",
    ),
    "a base class": (
        "class B:\n y = 1\nclass A(B): pass\ndef f(): return A",
        "class B:\n y = 2\nclass A(B): pass\ndef f(): return A",
    ),
    "a member of an enum": (
        "from enum import Enum\nclass C(Enum):\n a = 1\ndef f(): return C.a",
        "from enum import Enum\nclass C(Enum):\n a = 2\ndef f(): return C.a",
    ),
    "a method of an enum, by a member": (
        "from enum import Enum\nclass C(Enum):\n a = 1\n def m(self): return 1\nc = C.a\ndef f(): return c.m()",
        "from enum import Enum\nclass C(Enum):\n a = 1\n def m(self): return 2\nc = C.a\ndef f(): return c.m()",
    ),
    "a property of an enum": (
        "from enum import Enum\nclass C(Enum):\n a = 1\n @property\n def m(self): return 1\ndef f(): return C.a.m",
        "from enum import Enum\nclass C(Enum):\n a = 1\n @property\n def m(self): return 2\ndef f(): return C.a.m",
    ),
    "a metaclass": (
        "class M(type):\n @property\n def k(cls): return 1\nclass A(metaclass=M): pass\ndef f(): return A.k",
        "class M(type):\n @property\n def k(cls): return 2\nclass A(metaclass=M): pass\ndef f(): return A.k",
    ),
    "a mapping that cannot be changed": (
        "from types import MappingProxyType as P\nK = P({'a': 1})\ndef f(): return K['a']",
        "from types import MappingProxyType as P\nK = P({'a': 2})\ndef f(): return K['a']",
    ),
    "a method of a kind of decimal": (
        "from decimal import Decimal\nclass A(Decimal):\n def m(self): return 1\na = A(1)\ndef f(): return a.m()",
        "from decimal import Decimal\nclass A(Decimal):\n def m(self): return 2\na = A(1)\ndef f(): return a.m()",
    ),
    "a partial": (
        "from functools import partial\ng = partial(int, base=2)\ndef f(x): return g(x)",
        "from functools import partial\ng = partial(int, base=3)\ndef f(x): return g(x)",
    ),
    "a function behind a cache": (
        "from functools import cache\n@cache\ndef g(): return 1\ndef f(): return g()",
        "from functools import cache\n@cache\ndef g(): return 2\ndef f(): return g()",
    ),
    "a regular expression": (
        "import re\nr = re.compile('a')\ndef f(x): return r.match(x)",
        "import re\nr = re.compile('b')\ndef f(x): return r.match(x)",
    ),
    "an array": (
        "import numpy\na = numpy.arange(3)\ndef f(): return a",
        "import numpy\na = numpy.arange(4)\ndef f(): return a",
    ),
    "a branch": ("def f(x):\n if x: return 1\n return 2", "def f(x):\n if not x: return 1\n return 2"),
    "what is caught": (
        "def f(x):\n try: return x()\n except ValueError: return 1",
        "def f(x):\n try: return x()\n except TypeError: return 1",
    ),
}


HELD = {
    "a named tuple": "from collections import namedtuple\nA = namedtuple('A', 'x')\na = A({})",
    "a typed named tuple": "from typing import NamedTuple\nclass A(NamedTuple):\n x: int\na = A({})",
    "a kind of list": "class A(list): pass\na = A([{}])",
    "a kind of list that shows nothing": "class A(list):\n def __iter__(self): return iter(())\na = A([{}])",
    "a kind of dict": "class A(dict): pass\na = A(x={})",
    "a kind of set": "class A(set): pass\na = A([{}])",
    "a kind of deque": "from collections import deque\nclass A(deque): pass\na = A([{}])",
    "a kind of int": "class A(int): pass\na = A({})",
    "a kind of text": "class A(str): pass\na = A('{}')",
    "a kind of defaultdict": "from collections import defaultdict as D\nclass A(D): pass\na = A(lambda: {})",
}


@pytest.mark.parametrize("name", HELD)
def test_what_an_instance_of_a_kind_of_a_built_in_class_holds_counts(
    name: str, made: Callable[..., Fingerprint]
) -> None:
    one, same, other = (made(f"{HELD[name].format(number)}\ndef f(): return a") for number in (1, 1, 2))
    assert one == same
    assert one.code != other.code
    assert one.source != other.source


IMPORTS = {
    "a module": "def f(x):\n import rates\n return x * rates.VAT",
    "a module under another name": "def f(x):\n import rates as r\n return x * r.VAT",
    "a name": "def f(x):\n from rates import VAT\n return x * VAT",
    "one name of two": "def f(x):\n from rates import TOLL, VAT as v\n return x * v + TOLL",
    "a module for a function within": "def f(xs):\n import rates\n return [x * rates.VAT for x in xs]",
    "in a function within": "def f(xs):\n def g(x):\n  import rates\n  return x * rates.VAT\n return map(g, xs)",
    "in a helper": "def g():\n import rates\n return rates.VAT\ndef f(x): return x * g()",
    "in a helper of a neighbour": "import rates\ndef f(x): return x * rates.of()",
}


@pytest.mark.parametrize("name", IMPORTS)
def test_what_a_function_imports_when_it_runs_counts_if_it_is_used(name: str, made: Callable[..., Fingerprint]) -> None:
    rates = "TOLL = 1\nVAT = {}\nDUTY = {}\ndef of():\n from rates import VAT\n return VAT"
    one, same, other = (made(IMPORTS[name], rates=rates.format(*each)) for each in ((2, 1), (2, 7), (3, 1)))
    assert one == same
    assert one.code != other.code
    assert one.source != other.source


@pytest.mark.parametrize(
    "use",
    [
        "def f(x):\n import goods.rates\n return x * goods.rates.VAT",
        "def f(x):\n import goods.rates as r\n return x * r.VAT",
        "def f(x):\n from goods import rates\n return x * rates.VAT",
        "def f(x):\n from goods.prices import of\n return of(x)",
        "def f(x):\n import goods.prices\n return goods.TAX(x)",
    ],
)
def test_what_a_function_imports_of_a_package_counts(
    use: str, made: Callable[..., Fingerprint], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prints = []
    for vat in (2, 2, 3):
        folder = tmp_path / f"packages{next(numbers)}" / "goods"
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text(f"def TAX(x): return x * {vat}")
        (folder / "rates.py").write_text(f"VAT = {vat}")
        (folder / "prices.py").write_text("def of(x):\n from .rates import VAT\n return VAT")
        monkeypatch.syspath_prepend(str(folder.parent))
        for name in ("goods", "goods.rates", "goods.prices"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        prints.append(made(use))
    assert prints[0] == prints[1]
    assert prints[0].code != prints[2].code
    assert prints[0].source != prints[2].source


def test_an_installed_package_that_a_function_imports_is_not_loaded(made: Callable[..., Fingerprint]) -> None:
    before = "this" in sys.modules
    assert made("def f():\n import this\n return this").source is not None
    assert ("this" in sys.modules) == before


def test_a_neighbour_that_cannot_be_imported_leaves_the_function_comparable(made: Callable[..., Fingerprint]) -> None:
    use = "def f():\n import rates\n return rates.VAT"
    assert made(use, rates="1 / 0").code != made(use, rates="VAT = 1").code


def test_the_text_is_compared_with_what_the_first_form_of_fingerprints_saw_of_it(
    made: Callable[..., Fingerprint],
) -> None:
    text = """
        from enum import Enum
        from types import MappingProxyType


        class Tax(Enum):
            low = 7
            high = 19

            @property
            def share(self): return self.value / 100


        class Prices(list): pass


        PRICES, TAX, NAMES = Prices([1, 2]), Tax.low, MappingProxyType({"a": 1})


        def f(x):
            import json
            return json.dumps(x * PRICES[0] * TAX.share * NAMES["a"])
        """
    found = made(text)
    assert found.earlier == "0487033f30003cada5b267be75a6944d", "as it was stored"
    assert found.source != found.earlier
    assert made("def f(x): return x * 2").source == made("def f(x): return x * 2").earlier


@pytest.mark.parametrize("name", SAME)
def test_what_does_the_same_has_the_same_fingerprint(name: str, made: Callable[..., Fingerprint]) -> None:
    one, other = map(made, SAME[name])
    assert one.code == other.code


@pytest.mark.parametrize("name", DIFFERENT)
def test_what_may_do_something_else_has_another(name: str, made: Callable[..., Fingerprint]) -> None:
    one, other = map(made, DIFFERENT[name])
    assert one.code != other.code
    assert one.source != other.source, "between versions of Python, too"


@pytest.mark.parametrize(
    "use", ["import rates\ndef f(x): return x * rates.VAT", "from rates import VAT\ndef f(x): return x * VAT"]
)
def test_a_constant_of_a_neighbour_counts_if_it_is_used(use: str, made: Callable[..., Fingerprint]) -> None:
    first = made(use, rates="VAT = 2\nDUTY = 1")
    assert made(use, rates="VAT = 2\nDUTY = 7").code == first.code
    assert made(use, rates="VAT = 3\nDUTY = 1").code != first.code


def test_a_function_of_a_neighbour_counts_with_all_that_it_uses(made: Callable[..., Fingerprint]) -> None:
    use, rates = "import rates\ndef f(x): return rates.of(x)", "import deep\ndef of(x): return x * deep.K"
    assert made(use, rates=rates, deep="K = 1").code != made(use, rates=rates, deep="K = 2").code


def test_functions_that_call_each_other_end(made: Callable[..., Fingerprint]) -> None:
    text = "def f(x): return g(x - 1) if x else {}\ndef g(x): return f(x - {})"
    assert made(text.format(1, 1)).code != made(text.format(1, 2)).code


def test_values_that_hold_themselves_end() -> None:
    loop: list[Any] = [1]
    loop.append(loop)
    assert fingerprint_of(loop) == fingerprint_of(loop)


def test_what_cannot_be_compared_is_named() -> None:
    lock = threading.Lock()
    found = fingerprint(lambda: lock)
    assert found.opaque == ("lock (_thread.lock)",)
    assert found.code == fingerprint(lambda: lock).code


def test_a_fingerprint_is_the_same_in_every_process(tmp_path: Path) -> None:
    (tmp_path / "it.py").write_text("K = {'a', 'b', 'c', 'd'}\nclass A:\n x = {1, 2}\ndef f(x): return x in K or A()\n")
    code = "import it; from penstock.fingerprints.functions import fingerprint as p; print(p(it.f))"
    outputs = set()
    for seed in ("0", "1", "2"):
        environ = {"PYTHONHASHSEED": seed, "PYTHONPATH": f"{tmp_path}:{Path(__file__).parent.parent.parent}"}
        done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
        outputs.add(done.stdout)
    assert len(outputs) == 1


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary() | st.dates(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=8,
)


def exact(value: Any) -> Any:
    """A value by which two are equal only if their types are, too, and dicts in their order."""
    if isinstance(value, dict):
        return ("dict", [(exact(key), exact(each)) for key, each in value.items()])
    if isinstance(value, list | tuple):
        return (type(value).__name__, [exact(each) for each in value])
    return (type(value).__name__, repr(value))


@given(plain, plain)
def test_plain_values_have_equal_fingerprints_only_if_they_are_equal(one: Any, other: Any) -> None:
    assert (fingerprint_of(one).code == fingerprint_of(other).code) == (exact(one) == exact(other))


@given(st.sets(st.text() | st.integers()))
def test_sets_have_a_fingerprint_of_their_elements(elements: set[Any]) -> None:
    again = {*sorted(elements, key=repr)}
    assert fingerprint_of(elements).code == fingerprint_of(again).code
    assert fingerprint_of(elements).code != fingerprint_of(elements | {"one more " * 9}).code
