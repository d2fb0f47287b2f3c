"""Fingerprints of functions: equal if they do the same, different if they may not."""

from __future__ import annotations

import ast
import copy
import itertools
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import Event, gone
from penstock.app.fingerprints.code import file_name, module_name
from penstock.app.fingerprints.functions import EARLIER, Fingerprint, fingerprint, fingerprint_of
from penstock.cep.recognize.compiling import Unread
from penstock.joins import Missed
from penstock.joins.declaring import Interval

numbers = itertools.count()


@pytest.fixture
def print_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Fingerprint]:
    """Return the fingerprint of `f` in a file, which may have neighbours."""

    def make(text: str, **neighbours: str) -> Fingerprint:
        folder = tmp_path / str(next(numbers))
        folder.mkdir()
        for name, content in neighbours.items():
            (folder / f"{name}.py").write_text(textwrap.dedent(content))
            monkeypatch.delitem(sys.modules, name, raising=False)
        file = folder / "app.py"
        file.write_text(textwrap.dedent(text))
        module = ModuleType("app")
        module.__file__ = str(file)
        monkeypatch.setitem(sys.modules, "app", module)
        monkeypatch.syspath_prepend(str(folder))
        exec(compile(file.read_text(), str(file), "exec", dont_inherit=True), vars(module))
        return fingerprint(module.f)

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
    "the name of a rule that nothing reads": (
        "def big(x): return x > 3\nRULES = [big]\ndef f(x): return [r(x) for r in RULES]",
        "def large(x): return x > 3\nRULES = [large]\ndef f(x): return [r(x) for r in RULES]",
    ),
    "the docstring of a helper that nothing reads": (
        "def g(x):\n 'One.'\n return x\ndef f(x): return g(x).__name__",
        "def g(x):\n 'Two.'\n return x\ndef f(x): return g(x).__name__",
    ),
    "the annotations of a helper that nothing reads": (
        "def g(x: int): return x\ndef f(x): return str(g(x))",
        "def g(x: float): return x\ndef f(x): return str(g(x))",
    ),
    "the docstring of a kind of property": (
        "class P(property): pass\nclass A:\n @P\n def m(self):\n  'One.'\n  return 1\ndef f(): return A().m",
        "class P(property): pass\nclass A:\n @P\n def m(self):\n  'Two.'\n  return 1\ndef f(): return A().m",
    ),
    "the name of a class that nothing reads": (
        "from dataclasses import dataclass\n@dataclass\nclass A:\n x: int\ndef f(): return A(1).x",
        "from dataclasses import dataclass\n@dataclass\nclass B:\n x: int\ndef f(): return B(1).x",
    ),
    "the name of the module": (
        "def g(x): return __name__\ndef f(x): return g(x)",
        "def h(x): return __name__\ndef f(x): return h(x)",
    ),
    "hints as text": (
        "import msgspec\nclass A(msgspec.Struct):\n x: int\n y: list[int]\ndef f(x): return msgspec.convert(x, A)",
        "from __future__ import annotations\nimport msgspec\nclass A(msgspec.Struct):\n x: int\n y: list[int]\n"
        "def f(x): return msgspec.convert(x, A)",
    ),
    "another lambda on the line": (
        "a, f = (lambda x: x + 1), (lambda x: x + 2)",
        "a, f = (lambda x: x - 1), (lambda x: x + 2)",
    ),
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
    "one of two globals that it uses already": (
        "A = 1\nB = 2\ndef f(x): return A if A < x < B else A",
        "A = 1\nB = 2\ndef f(x): return A if A < x < B else B",
    ),
    "one of two built-in functions that it uses already": (
        "def f(x): return max(x) + min(x) + max(x)",
        "def f(x): return max(x) + min(x) + min(x)",
    ),
    "one of two globals, in a function within": (
        "A = 1\nB = 2\ndef f(x): return A + B + sum(y * A for y in x)",
        "A = 1\nB = 2\ndef f(x): return A + B + sum(y * B for y in x)",
    ),
    "the name of an argument in a call": ("def f(x): return x.replace(hour=0)", "def f(x): return x.replace(day=0)"),
    "the order of the names of arguments in a call": (
        "def g(a, b): return a - b\ndef f(x, y): return g(a=x, b=y)",
        "def g(a, b): return a - b\ndef f(x, y): return g(b=x, a=y)",
    ),
    "a bound method of a dict": ("g = {'a': 1}.get\ndef f(x): return g(x)", "g = {'a': 2}.get\ndef f(x): return g(x)"),
    "a bound method of a text": ("g = ','.join\ndef f(x): return g(x)", "g = ';'.join\ndef f(x): return g(x)"),
    "a bound method of a regular expression": (
        "import re\ng = re.compile('a').findall\ndef f(x): return g(x)",
        "import re\ng = re.compile('b').findall\ndef f(x): return g(x)",
    ),
    "the end of a long regular expression": (
        "import re\nr = re.compile('a' * 250 + 'b')\ndef f(x): return r.match(x)",
        "import re\nr = re.compile('a' * 250 + 'c')\ndef f(x): return r.match(x)",
    ),
    "an attribute of a function": (
        "def f(x): return x * f.rate\nf.rate = 1",
        "def f(x): return x * f.rate\nf.rate = 2",
    ),
    "an attribute of a wrapper": (
        "from functools import update_wrapper\nclass W:\n def __init__(self, g, n):\n  self.n = n\n"
        "  update_wrapper(self, g)\n def __call__(self, x): return x * self.n\ng = W(len, 1)\ndef f(x): return g(x)",
        "from functools import update_wrapper\nclass W:\n def __init__(self, g, n):\n  self.n = n\n"
        "  update_wrapper(self, g)\n def __call__(self, x): return x * self.n\ng = W(len, 2)\ndef f(x): return g(x)",
    ),
    "a value that an enum gives to what it does not know": (
        "from enum import Enum\nclass C(Enum):\n a = 1\n @classmethod\n def _missing_(cls, v): return cls.a\n"
        "def f(x): return C(x)",
        "from enum import Enum\nclass C(Enum):\n a = 1\n @classmethod\n def _missing_(cls, v): return None\n"
        "def f(x): return C(x)",
    ),
    "a private static method of an enum": (
        "from enum import Enum\nclass C(Enum):\n a = 1\n @staticmethod\n def _m(): return 1\ndef f(): return C._m()",
        "from enum import Enum\nclass C(Enum):\n a = 1\n @staticmethod\n def _m(): return 2\ndef f(): return C._m()",
    ),
    "a private slot": (
        "class A:\n __slots__ = ('__x',)\n def __init__(self, x): self.__x = x\n def m(self): return self.__x\n"
        "a = A(1)\ndef f(): return a.m()",
        "class A:\n __slots__ = ('__x',)\n def __init__(self, x): self.__x = x\n def m(self): return self.__x\n"
        "a = A(2)\ndef f(): return a.m()",
    ),
    "a class in an alias": (
        "import msgspec\nclass A(msgspec.Struct):\n n: int = 0\nL = list[A]\ndef f(x): return msgspec.convert(x, L)",
        "import msgspec\nclass A(msgspec.Struct):\n n: int = 1\nL = list[A]\ndef f(x): return msgspec.convert(x, L)",
    ),
    "a class behind a new type": (
        "from typing import NewType\nclass A:\n n = 0\nN = NewType('N', A)\ndef f(x): return N(x)",
        "from typing import NewType\nclass A:\n n = 1\nN = NewType('N', A)\ndef f(x): return N(x)",
    ),
    "a class in a field": (
        "import msgspec\nclass A(msgspec.Struct):\n n: int = 0\nclass B(msgspec.Struct):\n a: A\n"
        "def f(x): return msgspec.convert(x, B)",
        "import msgspec\nclass A(msgspec.Struct):\n n: int = 1\nclass B(msgspec.Struct):\n a: A\n"
        "def f(x): return msgspec.convert(x, B)",
    ),
    "what a dataclass compares": (
        "from dataclasses import dataclass, field\n@dataclass\nclass A:\n x: int = field(default=0, compare=True)\n"
        "def f(): return A(1) == A(2)",
        "from dataclasses import dataclass, field\n@dataclass\nclass A:\n x: int = field(default=0, compare=False)\n"
        "def f(): return A(1) == A(2)",
    ),
    "whether a dataclass has an order": (
        "from dataclasses import dataclass\n@dataclass(eq=True)\nclass A:\n x: int = 0\ndef f(): return A(1) == A(1)",
        "from dataclasses import dataclass\n@dataclass(eq=False)\nclass A:\n x: int = 0\ndef f(): return A(1) == A(1)",
    ),
    "how the fields of a struct are named outside": (
        "import msgspec\nclass A(msgspec.Struct, rename='lower'):\n aB: int = 0\ndef f(x): return A(x)",
        "import msgspec\nclass A(msgspec.Struct, rename='upper'):\n aB: int = 0\ndef f(x): return A(x)",
    ),
    "what a decoder decodes": (
        "import msgspec\nD = msgspec.json.Decoder(int)\ndef f(x): return D.decode(x)",
        "import msgspec\nD = msgspec.json.Decoder(float)\ndef f(x): return D.decode(x)",
    ),
    "the format of a binary structure": (
        "import struct\nS = struct.Struct('<I')\ndef f(x): return S.unpack(x)",
        "import struct\nS = struct.Struct('>I')\ndef f(x): return S.unpack(x)",
    ),
    "an attribute of a kind of time zone": (
        "from datetime import tzinfo\nclass Z(tzinfo):\n def __init__(self, h): self.h = h\n"
        " def __repr__(self): return 'Z'\nz = Z(1)\ndef f(): return z.h",
        "from datetime import tzinfo\nclass Z(tzinfo):\n def __init__(self, h): self.h = h\n"
        " def __repr__(self): return 'Z'\nz = Z(2)\ndef f(): return z.h",
    ),
    "the other lambda on the line": (
        "K = True\nf = (lambda x: x / 10) if K else (lambda x: x / 100)",
        "K = False\nf = (lambda x: x / 10) if K else (lambda x: x / 100)",
    ),
    "the names of functions within": (
        "def f(x):\n def a(y): return y + 1\n def b(y): return y + 2\n return a(x)",
        "def f(x):\n def b(y): return y + 1\n def a(y): return y + 2\n return a(x)",
    ),
    "a decorator of a function within": (
        "import functools\ndef f(x):\n @functools.cache\n def a(y): return y\n return a(x)",
        "import functools\ndef f(x):\n @functools.lru_cache\n def a(y): return y\n return a(x)",
    ),
    "a field of a class within": (
        "import msgspec\ndef f(x):\n class A(msgspec.Struct):\n  n: 'int'\n return msgspec.convert(x, A)",
        "import msgspec\ndef f(x):\n class A(msgspec.Struct):\n  n: 'float'\n return msgspec.convert(x, A)",
    ),
    **{
        f"a value of {kind}": tuple(f"{text}\nK = A({values})\ndef f(): return K" for values in two)
        for kind, text, two in (
            ("a dict with attributes", "class A(dict):\n __getattr__ = dict.get", ("a=1", "a=2")),
            ("a tuple that has any attribute", "class A(tuple):\n def __getattr__(s, k): return 1", ("[1]", "[2]")),
            ("a kind of array", "import array\nclass A(array.array): pass", ("'i', [1]", "'i', [2]")),
            ("a kind of random numbers", "import random\nclass A(random.Random): pass", ("1", "2")),
            ("a kind of file", "import io\nclass A(io.StringIO): pass", ("'a'", "'b'")),
            ("a kind of binary structure", "import struct\nclass A(struct.Struct): pass", ("'<i'", "'>i'")),
            ("a kind of exception", "class A(Exception): pass", ("1", "2")),
            ("a kind of deque", "from collections import deque\nclass A(deque): pass", ("[1], 2", "[1], 3")),
            ("a hidden decimal", "import decimal\nclass A(decimal.Decimal):\n __repr__ = lambda s: ''", ("1", "2")),
        )
    },
    "a value of a wrapper that is a dict": tuple(
        "from functools import update_wrapper\nclass W(dict):\n def __init__(self, g, d):\n"
        f"  update_wrapper(self, g)\n  self.update(d)\ng = W(len, {{1: {value}}})\ndef f(): return g[1]"
        for value in (1, 2)
    ),
    **{
        f"what is behind a name in {kind}": (text.format("int"), text.format("float"))
        for kind, text in (
            ("a hint as text", "import msgspec\nN = {}\nclass A(msgspec.Struct):\n x: 'N'\ndef f(): return A"),
            (
                "a hint of a dataclass",
                "from __future__ import annotations\nfrom dataclasses import dataclass\nN = {}\n@dataclass\n"
                "class A:\n x: list[N]\n y: Unknown = None\ndef f(): return A",
            ),
            (
                "a typed dict",
                "from __future__ import annotations\nfrom typing import TypedDict\nclass A(TypedDict):\n x: {}\n"
                "class B(TypedDict):\n a: A\ndef f(): return B",
            ),
            (
                "a new type",
                "from typing import NewType\nimport msgspec\nN = NewType('N', {})\nclass A(msgspec.Struct):\n x: N\n"
                "def f(): return A",
            ),
            ("a value that is a new type", "from typing import NewType\nN = NewType('N', {})\ndef f(): return N"),
            (
                "a type variable",
                "from typing import Generic, TypeVar\nimport msgspec\nT = TypeVar('T', bound={})\n"
                "class A(msgspec.Struct, Generic[T]):\n x: T\ndef f(): return A",
            ),
        )
    },
    **{
        f"a value in {kind}": (text.format(1), text.format(2))
        for kind, text in (
            (
                "a literal behind a name",
                "from __future__ import annotations\nfrom typing import Literal\nimport msgspec\nN = Literal[{}]\n"
                "class A(msgspec.Struct):\n x: N\ndef f(): return A",
            ),
            (
                "an annotated hint",
                "from __future__ import annotations\nfrom typing import Annotated\nimport msgspec\nN = {}\n"
                "class A(msgspec.Struct):\n x: Annotated[int, msgspec.Meta(le=N)]\ndef f(): return A",
            ),
            (
                "the metadata of a field",
                "from dataclasses import dataclass, field, fields\n@dataclass\nclass A:\n"
                " x: int = field(default=0, metadata={{'n': {}}})\ndef f(): return fields(A)[0].metadata",
            ),
            (
                "a special name of an enum",
                "from enum import Enum\nclass C(Enum):\n a = 1\n __n__ = {{1: {}}}\ndef f(): return C.__n__",
            ),
            (
                "a private name of an enum",
                "from enum import Enum\nclass C(Enum):\n a = 1\n __n = {}\n def m(self): return self.__n\n"
                "def f(): return C.a.m()",
            ),
            (
                "a factory of a struct",
                "import msgspec\nclass A(msgspec.Struct):\n x: int = msgspec.field(default_factory=lambda: {})\n"
                "def f(): return A()",
            ),
            (
                "a kind of property",
                "class P(property):\n def __get__(self, one, owner=None): return {}\nclass A:\n @P\n"
                " def m(self): return 0\ndef f(): return A.m",
            ),
            (
                "a kind of static method",
                "class P(staticmethod):\n def __get__(self, one, owner=None): return {}\nclass A:\n @P\n"
                " def m(): return 0\ndef f(): return A.m",
            ),
            (
                "a kind of partial",
                "from functools import partial\nclass P(partial):\n def __call__(self): return {}\ng = P(int)\n"
                "def f(): return g()",
            ),
        )
    },
    "the order of the arguments that a pattern matches": (
        "class A:\n __match_args__ = ('x', 'y')\ndef f(a):\n match a:\n  case A(b, _): return b",
        "class A:\n __match_args__ = ('y', 'x')\ndef f(a):\n match a:\n  case A(b, _): return b",
    ),
    "the name of a rule that is read": (
        "def big(x): return x > 3\nRULES = [big]\ndef f(x): return [r.__name__ for r in RULES if r(x)]",
        "def large(x): return x > 3\nRULES = [large]\ndef f(x): return [r.__name__ for r in RULES if r(x)]",
    ),
    "the name of a rule that is read by name": (
        "def big(x): return x > 3\nRULES = [big]\ndef f(x): return [getattr(r, '__name__') for r in RULES]",
        "def large(x): return x > 3\nRULES = [large]\ndef f(x): return [getattr(r, '__name__') for r in RULES]",
    ),
    "the name of a class that is read": (
        "class A: pass\ndef g(x): return type(x).__name__\ndef f(x): return g(A())",
        "class B: pass\ndef g(x): return type(x).__name__\ndef f(x): return g(B())",
    ),
    "a docstring that is read": (
        "def g():\n 'One.'\ndef f(): return g.__doc__",
        "def g():\n 'Two.'\ndef f(): return g.__doc__",
    ),
    "annotations that are read": (
        "def g(x: int): return x\ndef f(x): return g.__annotations__['x'](x)",
        "def g(x: float): return x\ndef f(x): return g.__annotations__['x'](x)",
    ),
    "the name of a class whose instance is shown": (
        "from typing import NamedTuple\nclass A(NamedTuple):\n x: int\ndef f(): return f'{A(1)}'",
        "from typing import NamedTuple\nclass B(NamedTuple):\n x: int\ndef f(): return f'{B(1)}'",
    ),
    "whether a field is shown": (
        "from dataclasses import dataclass, field\n@dataclass\nclass A:\n x: int = field(default=0, repr=True)\n"
        "def f(): return str(A(1))",
        "from dataclasses import dataclass, field\n@dataclass\nclass A:\n x: int = field(default=0, repr=False)\n"
        "def f(): return str(A(1))",
    ),
    "a branch": ("def f(x):\n if x: return 1\n return 2", "def f(x):\n if not x: return 1\n return 2"),
    "what is caught": (
        "def f(x):\n try: return x()\n except ValueError: return 1",
        "def f(x):\n try: return x()\n except TypeError: return 1",
    ),
}


NAMES = ("A", "B", "C", "max", "min", "g", "x")
RENAMED_TO = {"A": "P", "B": "Q", "C": "R", "g": "h"}
"""Global names of the generated functions, whose values all differ, and other names for those that an app defines."""


@st.composite
def calculations(draw: st.DrawFn) -> ast.expr:
    """Draw an expression of globals, built-in functions, calls with names and functions within. Only names are called,
    because Python warns about calls of tuples."""
    leaves = st.sampled_from(NAMES).map(lambda name: ast.Name(name, ast.Load()))

    def extend(parts: st.SearchStrategy[ast.expr]) -> st.SearchStrategy[ast.expr]:
        names = st.permutations(["a", "b"])
        return st.one_of(
            st.tuples(parts, parts).map(lambda two: ast.Tuple([*two], ast.Load())),
            st.tuples(parts, parts, parts).map(lambda three: ast.IfExp(*three)),
            st.tuples(leaves, names, parts, parts).map(
                lambda call: ast.Call(call[0], [], [ast.keyword(*pair) for pair in zip(call[1], call[2:], strict=True)])
            ),
            parts.map(lambda part: ast.Lambda(_no_arguments(), part)),
        )

    return draw(st.recursive(leaves, extend, max_leaves=8))


def _no_arguments() -> ast.arguments:
    return ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])


def digest_of(expression: ast.expr, names: Mapping[str, str]) -> str:
    """Return the digest of a function that returns this expression, with globals of other names."""
    named = copy.deepcopy(expression)
    for node in ast.walk(named):
        if isinstance(node, ast.Name):
            node.id = names.get(node.id, node.id)
    a, b, c, g = (names.get(name, name) for name in "ABCg")
    text = f"{a}, {b}, {c} = 1, 2, 3\ndef {g}(a, b): return a\ndef f(x): return {ast.unparse(named)}"
    space: dict[str, Any] = {"__name__": "app"}
    exec(compile(text, "<app>", "exec", dont_inherit=True), space)
    return fingerprint(space["f"]).code


@given(calculations(), calculations(), st.data())
def test_functions_have_equal_fingerprints_only_if_they_are_equal_but_for_names(
    one: ast.expr, other: ast.expr, data: st.DataObject
) -> None:
    edited = copy.deepcopy(one)
    leaf = data.draw(st.sampled_from([node for node in ast.walk(edited) if isinstance(node, ast.Name)]))
    leaf.id = data.draw(st.sampled_from(NAMES))
    digest = digest_of(one, {})
    assert digest_of(one, RENAMED_TO) == digest
    for changed in (other, edited):
        assert (digest_of(changed, {}) == digest) == (ast.unparse(changed) == ast.unparse(one))


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
    name: str, print_of: Callable[..., Fingerprint]
) -> None:
    one, same, other = (print_of(f"{HELD[name].format(number)}\ndef f(): return a") for number in (1, 1, 2))
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
def test_what_a_function_imports_when_it_runs_counts_if_it_is_used(
    name: str, print_of: Callable[..., Fingerprint]
) -> None:
    rates = "TOLL = 1\nVAT = {}\nDUTY = {}\ndef of():\n from rates import VAT\n return VAT"
    one, same, other = (print_of(IMPORTS[name], rates=rates.format(*values)) for values in ((2, 1), (2, 7), (3, 1)))
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
    use: str, print_of: Callable[..., Fingerprint], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
        prints.append(print_of(use))
    assert prints[0] == prints[1]
    assert prints[0].code != prints[2].code
    assert prints[0].source != prints[2].source


def test_an_installed_package_that_a_function_imports_is_not_loaded(print_of: Callable[..., Fingerprint]) -> None:
    before = "this" in sys.modules
    assert print_of("def f():\n import this\n return this").source is not None
    assert ("this" in sys.modules) == before


def test_a_neighbour_that_cannot_be_imported_leaves_the_function_comparable(
    print_of: Callable[..., Fingerprint],
) -> None:
    use = "def f():\n import rates\n return rates.VAT"
    assert print_of(use, rates="1 / 0").code != print_of(use, rates="VAT = 1").code


def test_the_text_is_compared_with_what_the_first_form_of_fingerprints_saw_of_it(
    print_of: Callable[..., Fingerprint],
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
    text_print = print_of(text)
    assert text_print.earlier[1] == "0487033f30003cada5b267be75a6944d", "as it was stored"
    assert text_print.source != text_print.earlier[1]
    plain = print_of("def f(x): return x * 2")
    assert plain.earlier == dict.fromkeys(EARLIER, plain.source)


def test_the_text_is_compared_with_what_the_third_form_of_fingerprints_saw_of_it(
    print_of: Callable[..., Fingerprint],
) -> None:
    text = """
        from __future__ import annotations

        import io
        from collections import defaultdict, deque
        from dataclasses import dataclass, field
        from enum import Enum
        from typing import NewType


        class Attributes(dict):
            __getattr__ = dict.get


        class Tree(defaultdict):
            def __getattr__(self, name): return self[name]


        class Text(io.StringIO): pass


        class Last(deque): pass


        class Colour(Enum):
            red = 1
            __names__ = {1: "RED"}


        Cents = NewType("Cents", int)


        @dataclass
        class Price:
            cents: Cents = field(default=0, metadata={"unit": 1})


        A, B, C, D = Attributes(rate=2), Tree(lambda: 0, rate=2), Text("x"), Last([1], 3)
        one, other = (lambda x: x + 1), (lambda x: x + 2)


        def f(x):
            @int
            def inner(y): return y
            return A, B, C, D, Colour.red, Price(x), other, f"{inner(f.__name__)}"
        """
    text_print = print_of(text)
    assert text_print.earlier[3] == "d476d67c56e02dfd4bca2beb4a574eea", "as it was stored"
    assert text_print.source != text_print.earlier[3]


def test_a_fingerprint_leaves_the_values_of_the_app_as_they_are(print_of: Callable[..., Fingerprint]) -> None:
    text = """
        from collections import defaultdict
        class Tree(defaultdict):
            def __getattr__(self, name): return self[name]
        def f(): return TREE
        TREE = Tree(lambda: 0, rate=2)
        """
    print_of(text)
    assert dict(sys.modules["app"].TREE) == {"rate": 2}


@pytest.mark.parametrize(
    "line", ["{}, f = (lambda x: x + {}), (lambda x: x + 2)", "{} = lambda: {}; f = lambda y=lambda z: z: y"]
)
def test_the_text_of_a_lambda_is_only_its_own_part_of_the_line(line: str, print_of: Callable[..., Fingerprint]) -> None:
    assert print_of(line.format("a", 1)).source == print_of(line.format("a", 2)).source


@pytest.mark.parametrize("name", SAME)
def test_what_does_the_same_has_the_same_fingerprint(name: str, print_of: Callable[..., Fingerprint]) -> None:
    one, other = map(print_of, SAME[name])
    assert one.code == other.code


@pytest.mark.parametrize("name", DIFFERENT)
def test_what_may_do_something_else_has_another(name: str, print_of: Callable[..., Fingerprint]) -> None:
    one, other = map(print_of, DIFFERENT[name])
    assert one.code != other.code
    assert one.source != other.source, "between versions of Python, too"


@pytest.mark.parametrize(
    "use", ["import rates\ndef f(x): return x * rates.VAT", "from rates import VAT\ndef f(x): return x * VAT"]
)
def test_a_constant_of_a_neighbour_counts_if_it_is_used(use: str, print_of: Callable[..., Fingerprint]) -> None:
    first = print_of(use, rates="VAT = 2\nDUTY = 1")
    assert print_of(use, rates="VAT = 2\nDUTY = 7").code == first.code
    assert print_of(use, rates="VAT = 3\nDUTY = 1").code != first.code


def test_a_function_of_a_neighbour_counts_with_all_that_it_uses(print_of: Callable[..., Fingerprint]) -> None:
    use, rates = "import rates\ndef f(x): return rates.of(x)", "import deep\ndef of(x): return x * deep.K"
    assert print_of(use, rates=rates, deep="K = 1").code != print_of(use, rates=rates, deep="K = 2").code


def test_functions_that_call_each_other_end(print_of: Callable[..., Fingerprint]) -> None:
    text = "def f(x): return g(x - 1) if x else {}\ndef g(x): return f(x - {})"
    assert print_of(text.format(1, 1)).code != print_of(text.format(1, 2)).code


def test_values_that_hold_themselves_end() -> None:
    loop: list[Any] = [1]
    loop.append(loop)
    assert fingerprint_of(loop) == fingerprint_of(loop)


def test_modules_of_ours_keep_the_name_they_had_when_the_first_fingerprints_were_stored() -> None:
    """An app that reads its events through `Event` or `gone` must be unchanged after Penstock's modules are
    reorganised."""
    assert (Event.__module__, gone.__module__) == ("penstock.core.schema", "penstock.core.deletes")
    assert module_name(Event.__module__) == "penstock.schema"
    assert [module_name(kind.__module__) for kind in (Missed, Interval, Unread)] == [
        "penstock.joins.telling",
        "penstock.joins.spec",
        "penstock.cep.recognize.reading",
    ]
    assert [module_name(module) for module in ("penstock.app.app", "penstock.cep.pattern", "shop.core")] == [
        "penstock.app",
        "penstock.cep.pattern",
        "shop.core",
    ]
    assert file_name(gone.__code__.co_filename) == "site-packages/penstock/kept.py"
    assert file_name("/usr/lib/python3/site-packages/numpy/core.py") == "site-packages/numpy/core.py"


def test_what_cannot_be_compared_is_named() -> None:
    lock = threading.Lock()
    lock_print = fingerprint(lambda: lock)
    assert lock_print.opaque == ("lock (_thread.lock)",)
    assert lock_print.code == fingerprint(lambda: lock).code


def test_a_fingerprint_is_the_same_in_every_process(tmp_path: Path) -> None:
    (tmp_path / "it.py").write_text("K = {'a', 'b', 'c', 'd'}\nclass A:\n x = {1, 2}\ndef f(x): return x in K or A()\n")
    code = "import it; from penstock.app.fingerprints.functions import fingerprint as p; print(p(it.f))"
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
    """A value that equals another only if the types are equal too, and dicts have the same order."""
    if isinstance(value, dict):
        return ("dict", [(exact(key), exact(entry)) for key, entry in value.items()])
    if isinstance(value, list | tuple):
        return (type(value).__name__, [exact(element) for element in value])
    return (type(value).__name__, repr(value))


@given(plain, plain)
def test_plain_values_have_equal_fingerprints_only_if_they_are_equal(one: Any, other: Any) -> None:
    assert (fingerprint_of(one).code == fingerprint_of(other).code) == (exact(one) == exact(other))


@given(st.sets(st.text() | st.integers()))
def test_sets_have_a_fingerprint_of_their_elements(elements: set[Any]) -> None:
    again = {*sorted(elements, key=repr)}
    assert fingerprint_of(elements).code == fingerprint_of(again).code
    assert fingerprint_of(elements).code != fingerprint_of(elements | {"one more " * 9}).code
