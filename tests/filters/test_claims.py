"""`claim('name')`: claims of a reader are compared, and never parsed as text of the language."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import BadExpression
from penstock.core.filters import compiled

SCHEMA = pa.schema([("owner", pa.string()), ("n", pa.int64()), ("open", pa.bool_()), ("hidden", pa.list_(pa.string()))])
ROWS = pa.RecordBatch.from_pylist(
    [
        {"owner": "ann", "n": 1, "open": True, "hidden": ["eu"]},
        {"owner": "bob", "n": 2, "open": False, "hidden": []},
        {"owner": None, "n": None, "open": None, "hidden": None},
    ],
    schema=SCHEMA,
)


def seen(where: str, claims: dict[str, Any]) -> list[int]:
    """Return the numbers of the visible rows."""
    mask = compiled(SCHEMA, where, None, claims=claims).mask(ROWS).to_pylist()
    return [row for row, shown in enumerate(mask) if shown]


@pytest.mark.parametrize(
    ("where", "claims", "expected"),
    [
        ("owner = claim('sub')", {"sub": "ann"}, [0]),
        ("owner = claim('sub')", {}, []),
        ("owner <> claim('sub')", {}, []),
        ("NOT owner = claim('sub')", {}, []),
        ("owner = claim('sub')", {"sub": None}, []),
        ("owner = claim('sub')", {"sub": {"a": 1}}, []),
        ("owner = claim('sub') OR open", {}, [0]),
        ("owner IN (claim('team'))", {"team": ["ann", "bob"]}, [0, 1]),
        ("owner IN ('ann', claim('team'))", {"team": ["bob"]}, [0, 1]),
        ("owner IN (claim('team'))", {"team": []}, []),
        ("owner NOT IN (claim('team'))", {"team": []}, []),
        ("owner IN (claim('team'))", {"team": "bob"}, [1]),
        ("owner IN (claim('team'))", {"team": ["ann"] * 101}, []),
        ("owner = claim('team')", {"team": ["ann"]}, []),
        ("n = claim('n')", {"n": 2}, [1]),
        ("n > claim('n')", {"n": 1.5}, [1]),
        ("n > claim('n')", {"n": float("nan")}, []),
        ("n > claim('n')", {"n": float("-inf")}, []),
        ("n < claim('n')", {"n": 10**300}, [0, 1]),
        ("n < claim('n')", {"n": 10**800}, []),
        ("open = claim('open')", {"open": False}, [1]),
        ("lower(claim('sub')) = owner", {"sub": "ANN"}, [0]),
        ("claim('sub') IS NULL", {}, [0, 1, 2]),
        ("contains(hidden, claim('region'))", {"region": "eu"}, [0]),
        ("NOT contains(hidden, claim('region'))", {"region": "eu"}, [1]),
        ("NOT contains(hidden, claim('region'))", {}, []),
        ("NOT contains(hidden, claim('region'))", {"region": ["eu"]}, []),
    ],
)
def test_a_claim_stands_for_its_value(where: str, claims: dict[str, Any], expected: list[int]) -> None:
    """A claim that is missing or has no plain value is NULL, and nothing equals it; a list is allowed after IN."""
    assert seen(where, claims) == expected


@given(st.text())
def test_whatever_a_claim_says_it_is_only_compared(text: str) -> None:
    """No value changes what the condition means."""
    assert seen("owner = claim('sub')", {"sub": text}) == [
        row for row, owner in enumerate(("ann", "bob")) if owner == text
    ]


@pytest.mark.parametrize("where", ["owner = claim('sub')", "owner IN (claim('team'))"])
def test_a_reader_cannot_ask_for_claims(where: str) -> None:
    """Without claims there is no such function."""
    with pytest.raises(BadExpression, match="no function 'claim'"):
        compiled(SCHEMA, where, None)


@pytest.mark.parametrize(
    "where", ["owner = claim()", "owner = claim(owner)", "owner = claim('a', 'b')", "n = claim(1)"]
)
def test_a_claim_is_named_by_a_text(where: str) -> None:
    with pytest.raises(BadExpression, match="one argument"):
        compiled(SCHEMA, where, None, claims={})


def test_filters_with_other_claims_are_others() -> None:
    """They are shared by readers with the same claims, and by no one else."""
    ann, bob = ({"sub": name, "more": [1, 2]} for name in ("ann", "bob"))
    assert compiled(SCHEMA, "owner = claim('sub')", None, claims=ann) is compiled(
        SCHEMA, "owner = claim('sub')", None, claims=dict(reversed(ann.items()))
    )
    assert seen("owner = claim('sub')", ann) == [0]
    assert seen("owner = claim('sub')", bob) == [1]
