"""Edits of the shop, and the effect of each on the existing data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from penstock.app.fingerprints.verdicts import VerdictKind
from tests.fingerprints.shop import Edit

SAME: Mapping[str, tuple[VerdictKind, str]] = {}
BEST = '"SELECT shop, max(amount) AS best, count(*) AS n FROM orders GROUP BY shop"'
HOURS = 'rows.groupBy("shop", F.window("at", "1 hour")).agg(F.sum("amount").alias("total"))'
LARGE = 'rows.where(F.col("amount") > LIMIT * rates.FACTOR).select("oid", "amount")'


@dataclass(frozen=True)
class Row:
    """An edit. `expected` has the verdict of each changed declaration, with a part of its reason. `watch` is a
    view that continues, whose rows must be those of a fresh run of the new code."""

    name: str
    edits: Sequence[Edit]
    expected: Mapping[str, tuple[VerdictKind, str]] = field(default_factory=dict)
    watch: str | None = None
    rates: Sequence[Edit] = ()

    @property
    def refused(self) -> bool:
        return any(kind is VerdictKind.incompatible for kind, _ in self.expected.values())

    @property
    def rebuilt(self) -> tuple[str, ...]:
        """The views that `penstock rebuild` rebuilds: the refused ones, unless their stream is refused too."""
        refused = [name for name, (kind, _) in self.expected.items() if kind is VerdictKind.incompatible]
        return () if "orders" in refused else tuple(name for name in refused if name != "tell")

    @property
    def watched(self) -> tuple[str, ...]:
        """The watched views; of an app that starts, always at least one: the cheapest, unless another is
        given."""
        return (self.watch,) if self.watch is not None else () if self.refused else ("large",)


def no(name: str, reason: str) -> Mapping[str, tuple[VerdictKind, str]]:
    return {name: (VerdictKind.incompatible, reason)}


def yes(name: str, reason: str) -> Mapping[str, tuple[VerdictKind, str]]:
    return {name: (VerdictKind.compatible, reason)}


def new_sql(text: str) -> Edit:
    return (BEST, f'"""{text}"""')


HARMLESS = [
    Row("nothing", [], watch="best"),
    Row("a comment", [("LIMIT = 10", "# the least\nLIMIT = 10  # of all")], watch="large"),
    Row("blank lines", [("\n\n\n", "\n\n\n\n\n")], watch="hours"),
    Row("a docstring of the file", [('"""A shop."""', '"""A shop of all sorts."""')]),
    Row("a docstring of a view", [("def hours(rows):\n", 'def hours(rows):\n    """By the hour."""\n')], watch="hours"),
    Row(
        "a docstring of a UDF",
        [("def gross_of(amount):\n", 'def gross_of(amount):\n        """Gross."""\n')],
        watch="gross",
    ),
    Row(
        "annotations",
        [
            ("def hours(rows):", "def hours(rows: object) -> object:"),
            ("gross_of(amount)", "gross_of(amount: int) -> int"),
        ],
    ),
    Row("the name of a view's function", [("def hours(", "def by_the_hour(")]),
    Row(
        "the name of a parameter",
        [("def large(rows):\n    return rows.", "def large(orders_):\n    return orders_.")],
        watch="large",
    ),
    Row("the name of a helper", [("gross_by", "grossed")], watch="gross"),
    Row("the name of a UDF", [("gross_of", "of_gross")], watch="gross"),
    Row("the name of a constant", [("LIMIT", "LEAST")]),
    Row("another way to write a constant", [("LIMIT = 10", "LIMIT = 5 + 5")]),
    Row(
        "the name of an import",
        [("import rates\n", "import rates as tax\n"), ("rates.FACTOR", "tax.FACTOR")],
        watch="large",
    ),
    Row("a constant that nothing uses", [], rates=[("VAT = 2", "VAT = 2\nDUTY = 7")]),
    Row(
        "reformatted SQL",
        [new_sql("SELECT shop,\n  max(amount) AS best,\n  count(*) AS n\nFROM orders\nGROUP BY shop")],
        watch="best",
    ),
    Row(
        "a comment in SQL",
        [new_sql("SELECT shop, max(amount) AS best, count(*) AS n -- all\nFROM orders GROUP BY shop")],
    ),
    Row(
        "SQL in small letters",
        [new_sql("select shop, max(amount) as best, count(*) as n from orders group by shop")],
        watch="best",
    ),
    Row(
        "an alias of a table",
        [new_sql("SELECT o.shop, max(o.amount) AS best, count(*) AS n FROM orders AS o GROUP BY o.shop")],
        watch="best",
    ),
    Row(
        "SQL as a function",
        [
            (
                f'app.sql("best", {BEST}, key="shop")',
                '@app.view("best", reads=orders, key="shop")\ndef best(rows):\n'
                '    return rows.groupBy("shop").agg(F.max("amount").alias("best"), F.count("*").alias("n"))',
            )
        ],
        watch="best",
    ),
    Row(
        "a step of a function in a variable",
        [
            (
                f"return {HOURS}",
                'grouped = rows.groupBy("shop", F.window("at", "1 hour"))\n'
                '    return grouped.agg(F.sum("amount").alias("total"))',
            )
        ],
        watch="hours",
    ),
    Row(
        "reordered declarations",
        [
            (f'app.sql("best", {BEST}, key="shop")\n', ""),
            ('app.feed("small"', f'app.sql("best", {BEST}, key="shop")\napp.feed("small"'),
        ],
        watch="best",
    ),
    Row(
        "reordered streams",
        [
            ('refunds = app.stream("refunds", Refund, key="shop")\n', ""),
            ("orders = app.stream", 'refunds = app.stream("refunds", Refund, key="shop")\norders = app.stream'),
        ],
    ),
    Row("an unused field", [('note: str = ""', 'note: str = ""\n    source: str = "web"')], watch="gross"),
    Row("the name of a class that a handler emits", [("Told", "Said")]),
    Row("the docstring of a method", [("def told(self):\n", 'def told(self):\n        """Return it."""\n')]),
    Row("a default of a field", [('note: str = ""', 'note: str = "none"')], watch="gross"),
    Row("keep of a stream", [('Refund, key="shop")', 'Refund, key="shop", keep=timedelta(days=7))')]),
    Row("a filter of a feed", [("best < 20", "best < 30")]),
]

COMPATIBLE = [
    Row(
        "keep of a view",
        [('key=["shop", "window"])', 'key=["shop", "window"], keep=timedelta(days=1))')],
        yes("hours", "keep was not given"),
        watch="hours",
    ),
    Row("top of a view", [("top=2", "top=3")], yes("large", "top was 2 and is now 3"), watch="large"),
    Row(
        "the body of a handler",
        [("state.count += STEP", "state.count += 2 * STEP")],
        yes("tell", "its code has changed"),
    ),
    Row("a constant of a handler", [("STEP = 1", "STEP = 5")], yes("tell", "its code has changed")),
    Row(
        "a method of a state",
        [("return self.count", "return 2 * self.count")],
        yes("tell", "the code in the class Seen has changed"),
    ),
    Row("a value of a dict with attributes", [("least=0", "least=5")], yes("tell", "its code has changed")),
    Row("a default of a state", [("count: int = 0", "count: int = 7")], yes("tell", "a different default for count")),
    Row("a field of a state", [("count: int = 0", "count: int = 0\n    last: str = ''")], yes("tell", "carried over")),
    Row(
        "a class that a handler emits",
        [("class Told(Event):\n", "class Told(Event):\n    why: str = ''\n")],
        yes("tell", "from now on, it emits different events"),
    ),
    Row(
        "a key that is renamed",
        [
            ('time="at"):\n', 'time="at", renamed={"shop": "store"}):\n'),
            ("    shop: str\n    amount: int\n    note", "    store: str\n    amount: int\n    note"),
            ('Order, key="shop"', 'Order, key="store"'),
            (BEST, '"SELECT store AS shop, max(amount) AS best, count(*) AS n FROM orders GROUP BY store"'),
            (HOURS, HOURS.replace('"shop"', 'F.col("store").alias("shop")')),
            ('"tell", reads=orders, key="shop"', '"tell", reads=orders, key="store"'),
            ("order.shop", "order.store"),
        ],
        {
            **yes("orders", "its field shop is now store"),
            **yes("tell", "its code has changed"),
            **dict.fromkeys(("best", "hours"), (VerdictKind.incompatible, "its query has changed")),
        },
        watch="large",
    ),
    Row(
        "the id of a stream",
        [('Event, id="oid", time', "Event, time")],
        yes("orders", "its id was 'oid', and it now has no id"),
    ),
    Row("the id of a stream without events", [('Event, id="rid"', "Event")], SAME),
    Row(
        "a new view",
        [
            (
                'app.feed("small"',
                'app.sql("all", "SELECT shop, count(*) AS n FROM orders GROUP BY shop", key="shop")\napp.feed("small"',
            )
        ],
        {"all": (VerdictKind.new, "")},
        watch="best",
    ),
    Row(
        "a new stream",
        [("LIMIT = 10", 'more = app.stream("more", Refund)\nLIMIT = 10')],
        {"more": (VerdictKind.new, "")},
    ),
    Row(
        "a removed view",
        [(f'app.sql("best", {BEST}, key="shop")\n', ""), ('app.feed("small", of="best", where="best < 20")\n', "")],
        {"best": (VerdictKind.removed, "no longer declared")},
        watch="hours",
    ),
    Row(
        "a removed handler",
        [("@app.handler(", "app2 = App('other')\n\n\n@app2.handler(")],
        {"tell": (VerdictKind.removed, "no longer declared")},
    ),
    Row(
        "a removed stream",
        [('refunds = app.stream("refunds", Refund, key="shop")\n', "")],
        {"refunds": (VerdictKind.removed, "no longer declared")},
    ),
]

INCOMPATIBLE = [
    Row("max to min", [("max(amount)", "min(amount)")], no("best", "its query has changed")),
    Row(
        "a subquery that adds a step",
        [
            new_sql(
                "SELECT shop, max(a) AS best, count(*) AS n FROM (SELECT shop, amount AS a FROM orders) GROUP BY shop"
            )
        ],
        no("best", "its query has changed"),
    ),
    Row("another aggregate", [("count(*) AS n", "sum(amount) AS n")], no("best", "its query has changed")),
    Row(
        "one more aggregate", [("count(*) AS n", "count(*) AS n, sum(amount) AS total")], no("best", "its columns were")
    ),
    Row(
        "reordered aggregates",
        [("max(amount) AS best, count(*) AS n", "count(*) AS n, max(amount) AS best")],
        no("best", "in a different order"),
    ),
    Row("an alias of a column", [("AS n FROM", "AS number FROM")], no("best", "its columns were")),
    Row(
        "a condition in SQL",
        [("FROM orders GROUP", "FROM orders WHERE amount > 3 GROUP")],
        no("best", "its query has changed"),
    ),
    Row(
        "a literal that reads alike",
        [("count(*) AS n", "size(array('a, b')) AS n")],
        no("best", "its query has changed"),
    ),
    Row(
        "the key of a view",
        [('reads=orders, key="oid")\ndef gross', 'reads=orders, key="gross")\ndef gross')],
        no("gross", "its key was oid and is now gross"),
    ),
    Row("the rank of a view", [('by="amount"', 'by="oid"')], no("large", "by was amount and is now oid")),
    Row(
        "emit",
        [('key=["shop", "window"])', 'key=["shop", "window"], emit="close")')],
        no("hours", "emit was change and is now close"),
    ),
    Row(
        "time",
        [('reads=orders, key="oid")\ndef gross', 'reads=orders, key="oid", time="ingest")\ndef gross')],
        no("gross", "time was event"),
    ),
    Row(
        "the input of a view",
        [("count(*) AS n FROM orders", "count(*) AS n FROM refunds")],
        no("best", "it read orders and now reads refunds"),
    ),
    Row("the length of a window", [('"1 hour"', '"2 hours"')], no("hours", "its query has changed")),
    Row(
        "late_after",
        [("late_after=timedelta(minutes=2)", "late_after=timedelta(minutes=5)")],
        no("hours", "late_after of orders, which was 120 s on the field at and is now 300 s"),
        watch="best",
    ),
    Row("the body of a UDF", [("int(amount * factor", "int(2 * amount * factor")], no("gross", "a Python function")),
    Row("a closure constant", [("gross_by(3)", "gross_by(4)")], no("gross", "a Python function")),
    Row(
        "one of two constants that a UDF uses already",
        [("else HIGH", "else LOW")],
        no("gross", "a Python function"),
    ),
    Row("a default of a helper", [("extra=1", "extra=2")], no("gross", "a Python function")),
    Row("an imported constant", [], no("gross", "a Python function"), rates=[("VAT = 2", "VAT = 3")]),
    Row(
        "an attribute of an imported module",
        [],
        no("large", "its query has changed"),
        rates=[("FACTOR = 2", "FACTOR = 3")],
    ),
    Row("the type that a UDF returns", [('gross_of, "long"', 'gross_of, "int"')], no("gross", "its columns were")),
    Row("a constant of a view", [("LIMIT = 10", "LIMIT = 11")], no("large", "its query has changed")),
    Row(
        "the type of a used field",
        [("shop: str\n    amount: int\n    note", "shop: str\n    amount: float\n    note")],
        {
            "orders": (VerdictKind.incompatible, "raise the version"),
            "best": (VerdictKind.incompatible, "orders.amount was long and is now double"),
            "hours": (VerdictKind.incompatible, "orders.amount"),
            "gross": (VerdictKind.incompatible, "orders.amount"),
            "large": (VerdictKind.incompatible, "orders.amount"),
        },
    ),
    Row(
        "a renamed field",
        [
            ('time="at"):\n', 'time="at", renamed={"amount": "price"}):\n'),
            ("amount: int\n    note", "price: int\n    note"),
            ("max(amount)", "max(price)"),
            ('F.sum("amount")', 'F.sum("price")'),
            ('gross_by(3)("amount")', 'gross_by(3)("price")'),
            (LARGE, 'rows.where(F.col("price") > LIMIT * rates.FACTOR).select("oid", F.col("price").alias("amount"))'),
        ],
        {**yes("orders", "its field amount is now price"), **no("large", "its query has changed")},
        watch="best",
    ),
    Row(
        "another type of a field, and migrate",
        [
            ('time="at"):\n', 'time="at", version=2):\n'),
            (
                'amount: int\n    note: str = ""\n',
                """amount: float
    note: str = ""

    @staticmethod
    def migrate(version, fields):
        return fields | {"amount": float(fields["amount"])}
""",
            ),
        ],
        {
            **yes("orders", "its events now have version 2"),
            **yes("tell", "the stored events of orders are read differently"),
            **dict.fromkeys(("best", "hours", "gross", "large"), (VerdictKind.incompatible, "a different version")),
        },
    ),
    Row(
        "a field that is renamed without saying so",
        [
            ("amount: int\n    note", "price: int\n    note"),
            ("max(amount)", "max(price)"),
            ('F.sum("amount")', 'F.sum("price")'),
            ('gross_by(3)("amount")', 'gross_by(3)("price")'),
            (LARGE, LARGE.replace("amount", "price")),
            ('top=2, by="amount"', 'top=2, by="price"'),
        ],
        {
            **no("orders", "renamed={'amount': 'price'}"),
            **dict.fromkeys(
                ("best", "hours", "gross"), (VerdictKind.undecided, "its query will be compared once the events of")
            ),
            **no("large", "by was amount and is now price"),
        },
    ),
    Row(
        "a version of an event that is migrated",
        [
            ('time="at"):\n', 'time="at", version=2):\n'),
            (
                'note: str = ""\n',
                """note: str = ""

    @staticmethod
    def migrate(version, fields):
        return fields
""",
            ),
        ],
        {
            **yes("orders", "its events now have version 2"),
            **yes("tell", "the stored events of orders are read differently"),
            **dict.fromkeys(("best", "hours", "gross", "large"), (VerdictKind.incompatible, "a different version")),
        },
    ),
    Row(
        "the key of a stream",
        [('Order, key="shop"', 'Order, key="oid"')],
        no("orders", "its key was 'shop' and is now 'oid', but stored events use the old key"),
    ),
    Row(
        "the partitions of a stream",
        [('Order, key="shop"', 'Order, key="shop", partitions=4')],
        no("orders", "its number of partitions was 2 and is now 4, but stored events use the old number of partitions"),
    ),
    Row(
        "the key of a handler",
        [('"tell", reads=orders, key="shop"', '"tell", reads=orders, key="oid"')],
        no("tell", "its key was shop and is now oid"),
    ),
    Row(
        "the input of a handler",
        [('"tell", reads=orders', '"tell", reads=refunds')],
        no("tell", "it read orders and now reads refunds"),
    ),
    Row(
        "the type of a field of a state",
        [
            ("count: int = 0", "count: str = ''"),
            ("state.count += STEP", "state.count += 'x'"),
            ("count=state.told()", "count=len(state.count)"),
        ],
        no("tell", "raise the version"),
    ),
]

TOGETHER = [
    Row(
        "two that are refused",
        [("max(amount)", "min(amount)"), ('"1 hour"', '"2 hours"')],
        {**no("best", "its query has changed"), **no("hours", "its query has changed")},
    ),
    Row(
        "one refused, one that goes on",
        [("max(amount)", "min(amount)"), ("STEP = 1", "STEP = 5")],
        {**no("best", "its query has changed"), **yes("tell", "its code has changed")},
    ),
    Row(
        "harmless and compatible",
        [("LIMIT = 10", "# least\nLIMIT = 10"), ("top=2", "top=3")],
        yes("large", "top was 2"),
        watch="large",
    ),
    Row(
        "two in one view",
        [("gross_by(3)", "gross_by(4)"), ('.alias("gross")', '.alias("brutto")')],
        no("gross", "its columns were"),
    ),
]

ROWS = [*HARMLESS, *COMPATIBLE, *INCOMPATIBLE, *TOGETHER]
