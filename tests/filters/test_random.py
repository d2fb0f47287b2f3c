"""Random expressions on random rows: the compiled filter and a plain evaluation of the same agree."""

from __future__ import annotations

import math
import operator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from penstock.core.errors import BadExpression
from penstock.core.filters import Filter, compiled
from tests.filters import naive
from tests.filters.naive import Expr, column, literal, null, real, strict

PLACE = pa.struct([("lat", pa.float64()), ("inner", pa.struct([("name", pa.string()), ("n", pa.int32())]))])
STOPS = pa.list_(pa.struct([("name", pa.string()), ("at", pa.timestamp("us", "UTC"))]))
SCHEMA = pa.schema(
    [("a", pa.int64()), ("b", pa.int64()), ("small", pa.int8()), ("x", pa.float64()), ("y", pa.float64()),
     ("single", pa.float32()), ("d", pa.decimal128(38, 18)), ("e", pa.decimal128(10, 2)), ("s", pa.string()),
     ("t", pa.large_string()), ("f", pa.bool_()), ("g", pa.bool_()), ("at", pa.timestamp("us", "UTC")),
     ("seen", pa.timestamp("ms", "America/Chicago")), ("day", pa.date32()), ("tags", pa.list_(pa.string())),
     ("nums", pa.large_list(pa.int32())), ("attrs", pa.map_(pa.string(), pa.float64())), ("place", PLACE),
     ("stops", STOPS), ("none", pa.null())]
)  # fmt: skip

_letters = st.text("aAbBzé É%_\\'\n\U0001f600ж中", max_size=6)
_texts = _letters | st.sampled_from(["", "ab", "a%b", "x" * 3_000])
_wholes = st.integers(-4, 4) | st.sampled_from([naive.INT_MIN, naive.INT_MAX, 2**53 + 1, 3_037_000_500])
_floats = st.floats(width=64) | st.sampled_from([0.0, -0.0, 0.5, -2.5, 1e308, 5e-324, math.inf, math.nan])
_decimals = st.decimals(-(10**19), 10**19, places=18) | st.sampled_from([Decimal("0.1"), Decimal(2)])
_cents = st.decimals(-(10**7), 10**7, places=2)
_times = st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59), timezones=st.just(UTC))
_near = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=st.just(UTC))
"""Python has no datetime for the first hours in a zone west of Greenwich."""
_days = st.dates()


def _maybe(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


_rows = st.fixed_dictionaries(
    {
        "a": _maybe(_wholes), "b": _maybe(_wholes), "small": _maybe(st.integers(-128, 127)), "x": _maybe(_floats),
        "y": _maybe(_floats), "single": _maybe(st.floats(width=32)), "d": _maybe(_decimals), "e": _maybe(_cents),
        "s": _maybe(_texts), "t": _maybe(_texts), "f": _maybe(st.booleans()), "g": _maybe(st.booleans()),
        "at": _maybe(_times), "seen": _maybe(_near.map(lambda moment: moment.replace(microsecond=5_000))),
        "day": _maybe(_days), "tags": _maybe(st.lists(_maybe(_letters), max_size=3)),
        "nums": _maybe(st.lists(_maybe(st.integers(-3, 3)), max_size=3)),
        "attrs": _maybe(st.dictionaries(st.sampled_from(["k", "é", ""]), _maybe(_floats), max_size=3)),
        "place": _maybe(st.fixed_dictionaries(
            {"lat": _maybe(st.floats(-90, 90)),
             "inner": _maybe(st.fixed_dictionaries({"name": _maybe(_letters), "n": _maybe(st.integers(-3, 3))}))})),
        "stops": _maybe(st.lists(_maybe(st.fixed_dictionaries({"name": _maybe(_letters), "at": _maybe(_times)})),
                                 max_size=2)),
        "none": st.none(),
    }
)  # fmt: skip


def _element(kind: str, of: str, index: int) -> Expr:
    def value(row: dict[str, Any]) -> Any:
        values = row[of]
        place = index - 1 if index > 0 else index
        return values[place] if values is not None and abs(index) <= len(values) else None

    return Expr(kind, f"{of}[{index}]", value)


def _stop(index: int) -> Expr:
    element = _element("struct", "stops", index)
    return Expr("text", f"{element.sql}.name", lambda row: (element.value(row) or {}).get("name"))


def _attribute(name: str) -> Expr:
    return Expr("real", f"attrs['{name}']", lambda row: (row["attrs"] or {}).get(name))


_indexes = st.sampled_from([1, 2, 3, -1, -2])
_leaf_wholes = st.one_of(
    st.sampled_from([column("whole", name) for name in ("a", "b", "small", "place.inner.n")]),
    _wholes.map(lambda number: literal("whole", number)),
    _indexes.map(lambda index: _element("whole", "nums", index)),
    st.just(null("whole")),
    st.just(column("whole", "none")),
)
_leaf_reals = st.one_of(
    st.sampled_from([column("real", name) for name in ("x", "y", "single", "place.lat")]),
    st.sampled_from(["k", "é", "q"]).map(_attribute),
    st.sampled_from([0.0, 0.5, -2.5, 1e300]).map(lambda number: literal("real", number)),
)
_leaf_texts = st.one_of(
    st.sampled_from([column("text", name) for name in ("s", "t", "place.inner.name")]),
    _letters.map(lambda text: literal("text", text)),
    _indexes.map(lambda index: _element("text", "tags", index)),
    _indexes.map(_stop),
    st.just(null("text")),
)
_leaf_times = st.sampled_from([column("time", "at"), column("time", "seen")])
_leaf_days = st.just(column("date", "day"))


def _same(function: str, pick: Any) -> Any:
    """Return coalesce, least and greatest of values of one kind."""

    def build(parts: list[Expr]) -> Expr:
        sql = f"{function}({', '.join(part.sql for part in parts)})"
        return Expr(parts[0].kind, sql, lambda row: pick([part.value(row) for part in parts]))

    return build


def _first(values: list[Any]) -> Any:
    return next((value for value in values if value is not None), None)


def _null_if(one: Expr, other: Expr) -> Expr:
    def value(row: dict[str, Any]) -> Any:
        this = one.value(row)
        return None if naive.compared("=", this, other.value(row)) else this

    return Expr(one.kind, f"nullif({one.sql}, {other.sql})", value)


def _chosen(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    several = st.lists(inner, min_size=1, max_size=3)
    return st.one_of(
        several.map(_same("coalesce", _first)),
        several.map(_same("least", naive.least)),
        several.map(_same("greatest", naive.greatest)),
        st.builds(_null_if, inner, inner),
    )


def _more_wholes(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    signs = {"+": operator.add, "-": operator.sub, "*": operator.mul}
    return st.one_of(
        *(
            st.builds(
                lambda x, y, s=s, f=f: strict("whole", f"{{}} {s} {{}}", lambda p, q: naive.fit(f(p, q)), x, y),
                inner,
                inner,
            )
            for s, f in signs.items()
        ),
        st.builds(lambda x, y: strict("whole", "{} % {}", naive.rest_whole, x, y), inner, inner),
        inner.filter(lambda x: x.written is None).map(lambda x: strict("whole", "-{}", lambda p: naive.fit(-p), x)),
        inner.map(lambda x: strict("whole", "abs({})", lambda p: naive.fit(abs(p)), x)),
        _chosen(inner),
        _leaf_texts.map(lambda x: strict("whole", "length({})", len, x)),
        st.sampled_from(["tags", "nums", "attrs"]).map(lambda x: strict("whole", "len({})", len, column("list", x))),
        *(
            st.builds(lambda x, n=n: strict("whole", f"{n}({{}})", operator.attrgetter(n), x), _leaf_times | _leaf_days)
            for n in ("year", "month", "day")
        ),
        *(
            st.builds(lambda x, n=n: strict("whole", f"{n}({{}})", operator.attrgetter(n), x), _leaf_times)
            for n in ("hour", "minute", "second")
        ),
        (_leaf_times | _leaf_days).map(lambda x: strict("whole", "dayofweek({})", naive.day_of_week, x)),
    )


wholes = st.recursive(_leaf_wholes, _more_wholes, max_leaves=4)


def _more_reals(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    signs = {"+": operator.add, "-": operator.sub, "*": operator.mul}
    mixed = inner | wholes.map(real)
    return st.one_of(
        *(
            st.builds(
                lambda x, y, s=s, f=f: strict("real", f"{{}} {s} {{}}", lambda p, q: naive.finite(f(p, q)), x, y),
                inner,
                mixed,
            )
            for s, f in signs.items()
        ),
        st.builds(lambda x, y: strict("real", "{} / {}", naive.divided, x, y), mixed, mixed),
        st.builds(lambda x, y: strict("real", "{} % {}", naive.rest_real, x, y), inner, mixed),
        inner.map(lambda x: strict("real", "round({})", naive.rounded, x)),
        inner.map(lambda x: strict("real", "floor({})", _floor, x)),
        inner.map(lambda x: strict("real", "ceil({})", _ceil, x)),
        _chosen(inner),
    )


def _floor(value: float) -> float | None:
    return float(math.floor(value)) if math.isfinite(value) else None


def _ceil(value: float) -> float | None:
    return float(math.ceil(value)) if math.isfinite(value) else None


reals = st.recursive(_leaf_reals, _more_reals, max_leaves=4)


def _more_texts(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    old = st.text("ab%é", min_size=1, max_size=2)
    return st.one_of(
        inner.map(lambda x: strict("text", "lower({})", str.lower, x)),
        inner.map(lambda x: strict("text", "upper({})", str.upper, x)),
        inner.map(lambda x: strict("text", "trim({})", lambda p: p.strip(" "), x)),
        st.builds(_substr, inner, st.integers(1, 4), _maybe(st.integers(0, 4))),
        st.builds(lambda x, y: strict("text", "{} || {}", naive.concatenated, x, y), inner, inner),
        st.builds(lambda x, y: strict("text", "concat({}, {}, {})", naive.concatenated, x, y, x), inner, inner),
        st.builds(_replaced, inner, old, _letters),
        _chosen(inner),
    )


def _substr(text: Expr, start: int, count: int | None) -> Expr:
    more = "" if count is None else f", {count}"
    stop = None if count is None else start - 1 + count
    return strict("text", f"substr({{}}, {start}{more})", lambda p: p[start - 1 : stop], text)


def _replaced(text: Expr, old: str, new: str) -> Expr:
    def function(value: str) -> str | None:
        text = value.replace(old, new)
        return text if len(text.encode()) <= max(naive.TEXT_BYTES_MAX, len(value.encode())) else None

    return strict("text", f"replace({{}}, {literal('text', old).sql}, {literal('text', new).sql})", function, text)


texts = st.recursive(_leaf_texts, _more_texts, max_leaves=4)
_units = st.sampled_from(["second", "minute", "hour", "day", "month", "quarter", "year"])
_spans = st.sampled_from(
    [("1 hour", timedelta(hours=1)), ("90 minutes", timedelta(minutes=90)), ("1 day 2 hours", timedelta(hours=26)),
     ("3000000 days", timedelta(days=3_000_000)), ("0.5 seconds", timedelta(seconds=0.5))]
)  # fmt: skip


def _moved(time: Expr, span: tuple[str, timedelta], sign: int) -> Expr:
    sql = f"{{}} {'+' if sign > 0 else '-'} INTERVAL '{span[0]}'"
    return strict("time", sql, lambda p: naive.moved(p, span[1] * sign), time)


def _more_times(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    return st.one_of(
        st.builds(_moved, inner, _spans, st.sampled_from([1, -1])),
        st.builds(
            lambda x, u: strict("time", f"date_trunc('{u}', {{}})", lambda p: naive.truncated(u, p), x), inner, _units
        ),
        _chosen(inner),
    )


times = st.recursive(_leaf_times, _more_times, max_leaves=3)
decimals = st.sampled_from([column("decimal", "d"), column("decimal", "e")])
_written_times = _times.map(
    lambda moment: Expr("time", f"'{moment.isoformat().replace('+00:00', 'Z')}'", lambda row: moment, moment)
)
_signs = st.sampled_from(list(naive.COMPARE))


def _compared(sign: str, one: Expr, other: Expr) -> Expr:
    sql = f"({one.sql}) {sign} ({other.sql})"
    return Expr("truth", sql, lambda row: naive.compared(sign, one.value(row), other.value(row)))


def _among(one: Expr, others: list[Expr], negate: bool) -> Expr:
    def value(row: dict[str, Any]) -> Any:
        truth = naive.any_of([naive.compared("=", one.value(row), expression.value(row)) for expression in others])
        return naive.negated(truth) if negate else truth

    return Expr(
        "truth", f"({one.sql}) {'NOT ' * negate}IN ({', '.join(expression.sql for expression in others)})", value
    )


def _between(one: Expr, low: Expr, high: Expr, negate: bool) -> Expr:
    def value(row: dict[str, Any]) -> Any:
        this = one.value(row)
        truth = naive.all_of([naive.compared(">=", this, low.value(row)), naive.compared("<=", this, high.value(row))])
        return naive.negated(truth) if negate else truth

    return Expr("truth", f"({one.sql}) {'NOT ' * negate}BETWEEN ({low.sql}) AND ({high.sql})", value)


def _is_null(one: Expr, negate: bool) -> Expr:
    return Expr("truth", f"({one.sql}) IS {'NOT ' * negate}NULL", lambda row: (one.value(row) is None) != negate)


def _comparisons(one: st.SearchStrategy[Expr], other: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    return st.one_of(
        st.builds(_compared, _signs, one, other),
        st.builds(_compared, _signs, other, one),
        st.builds(_among, one, st.lists(other, min_size=1, max_size=5), st.booleans()),
        st.builds(_between, one, other, other, st.booleans()),
        st.builds(_is_null, one, st.booleans()),
    )


_patterns = st.text("aAb%_é\n", max_size=6) | st.sampled_from(["a%", "%b", "%a%", "", "%", "a\\%b", "_%_", "%\\_%"])
_exact = st.sampled_from(["0.5", "-2.5", "2", "1e18", "-1e19", "1e40", "0.1"]).map(
    lambda digits: Expr("decimal", digits, lambda row: Decimal(digits), Decimal(digits))
)


def _liked(text: Expr, pattern: str, word: str) -> Expr:
    fold = str.lower if word == "ILIKE" else str
    sql = f"{{}} {word} {literal('text', pattern).sql}"
    return strict("truth", sql, lambda p: naive.like(fold(p), fold(pattern)), text)


def _tested(name: str, function: Any) -> st.SearchStrategy[Expr]:
    def build(text: Expr, what: str) -> Expr:
        return strict("truth", f"{name}({{}}, {literal('text', what).sql})", lambda p: function(p, what), text)

    return st.builds(build, texts, st.text("ab%é", max_size=2))


def _has(what: str | None) -> Expr:
    sql = "contains({}, NULL)" if what is None else f"contains({{}}, {literal('text', what).sql})"
    return strict("truth", sql, lambda p: None if what is None else what in p, column("list", "tags"))


_leaf_truths = st.one_of(
    st.sampled_from([column("truth", "f"), column("truth", "g"), literal("truth", True), null("truth")]),
    _comparisons(wholes, wholes),
    _comparisons(wholes.filter(lambda expression: expression.written is None), _exact),
    _comparisons(wholes.map(real), reals.filter(lambda expression: expression.written is None)),
    _comparisons(reals, reals),
    _comparisons(decimals, decimals | _exact | _leaf_wholes),
    _comparisons(decimals.map(real), st.sampled_from([column("real", "x"), column("real", "single")])),
    _comparisons(texts, texts),
    _comparisons(times, times | _written_times),
    st.builds(_liked, texts, _patterns, st.sampled_from(["LIKE", "ILIKE"])),
    _tested("starts_with", str.startswith),
    _tested("ends_with", str.endswith),
    _tested("contains", operator.contains),
    (st.none() | _letters.filter(lambda text: "{" not in text)).map(_has),
)


def _joined(word: str, join: Any) -> Any:
    def build(parts: list[Expr]) -> Expr:
        sql = f" {word} ".join(f"({part.sql})" for part in parts)
        return Expr("truth", sql, lambda row: join([part.value(row) for part in parts]))

    return build


def _more_truths(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    several = st.lists(inner, min_size=2, max_size=3)
    return st.one_of(
        several.map(_joined("AND", naive.all_of)),
        several.map(_joined("OR", naive.any_of)),
        inner.map(lambda x: Expr("truth", f"NOT ({x.sql})", lambda row: naive.negated(x.value(row)))),
    )


conditions = st.recursive(_leaf_truths, _more_truths, max_leaves=5)


def filtered(where: str | None, select: str | None) -> Filter:
    """Return the filter. Expressions above the size limits are skipped; any other refusal is a failure."""
    try:
        return compiled(SCHEMA, where, select)
    except BadExpression as refusal:
        if "more than" in refusal.message or "at most" in refusal.message:
            reject()
        raise


def batch_of(rows: list[dict[str, Any]], before: int) -> pa.RecordBatch:
    """Return the rows as a slice of a larger batch: code that forgets about offsets reads the rows of others."""
    batch = pa.RecordBatch.from_pylist([*rows[:before], *rows, *rows[:1]], SCHEMA)
    return batch.slice(before, len(rows))


@settings(max_examples=150, deadline=None)
@given(condition=conditions, rows=st.lists(_rows, max_size=5), before=st.integers(0, 3))
def test_a_condition_holds_where_a_plain_evaluation_says_so(
    condition: Expr, rows: list[dict[str, Any]], before: int
) -> None:
    batch = batch_of(rows, min(before, len(rows)))
    wanted = [condition.value(row) is True for row in rows]
    mask = filtered(condition.sql, None).mask(batch)
    assert mask.null_count == 0
    assert mask.to_pylist() == wanted


@settings(max_examples=150, deadline=None)
@given(
    expression=wholes | reals | texts | times | conditions,
    rows=st.lists(_rows, max_size=5),
    before=st.integers(0, 3),
)
def test_a_column_is_what_a_plain_evaluation_says(expression: Expr, rows: list[dict[str, Any]], before: int) -> None:
    batch = batch_of(rows, min(before, len(rows)))
    chosen = filtered(None, f"{expression.sql} AS made")
    projection = chosen.project(batch)
    assert projection.schema == chosen.schema
    for value, row in zip(projection.column(0).to_pylist(), rows, strict=True):
        wanted = expression.value(row)
        assert _equal(value, wanted), f"{value!r} is not {wanted!r}"


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one):
        return math.isnan(other)
    return bool(one == other)


_degrees = st.floats(-90, 90)


@given(_degrees, _degrees, _degrees, _degrees)
def test_a_distance_is_that_of_the_formula(lat: float, lon: float, other_lat: float, other_lon: float) -> None:
    schema = pa.schema([(name, pa.float64()) for name in "abcd"])
    batch = pa.RecordBatch.from_arrays(
        [pa.array([degrees]) for degrees in (lat, lon, other_lat, other_lon)], schema=schema
    )
    distance = compiled(schema, None, "distance(a, b, c, d) AS m").project(batch).column(0)[0].as_py()
    wanted = naive.metres(lat, lon, other_lat, other_lon)
    assert wanted is not None
    assert math.isclose(distance, wanted, rel_tol=1e-9, abs_tol=1e-3)


@settings(max_examples=100, deadline=None)
@given(_maybe(_days), st.sampled_from(["day", "week", "month", "quarter", "year"]), st.integers(-3000, 3000))
def test_dates_are_truncated_and_moved(day: date | None, unit: str, days: int) -> None:
    schema = pa.schema([("day", pa.date32())])
    batch = pa.RecordBatch.from_pylist([{"day": day}], schema)
    text = f"date_trunc('{unit}', day) AS cut, day + INTERVAL '{days}' DAY AS moved"
    row = compiled(schema, None, text).project(batch).to_pylist()[0]
    moved = None if day is None else day.toordinal() + days
    inside = moved is not None and date.min.toordinal() <= moved <= date.max.toordinal()
    assert row["cut"] == (None if day is None else naive.truncated(unit, day))
    assert row["moved"] == (date.fromordinal(moved) if inside and moved is not None else None)
