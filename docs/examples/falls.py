from datetime import datetime, timedelta

from penstock import App, Event


class Tick(Event, time="at"):
    at: datetime
    symbol: str
    price: float


app = App("falls")
ticks = app.stream("ticks", Tick, key="symbol", late_after=timedelta(seconds=10))

falls = app.sql(
    "falls",
    """
    SELECT symbol, top, bottom, (top - bottom) / top AS share, at
    FROM ticks MATCH_RECOGNIZE (
        PARTITION BY symbol
        ORDER BY at
        MEASURES
            HIGH.price         AS top,
            LAST(DOWN.price)   AS bottom,
            COUNT(DOWN.*)      AS steps,
            MATCH_ROWTIME()    AS at
        ONE ROW PER MATCH
        AFTER MATCH SKIP TO LAST UP
        PATTERN (HIGH DOWN{2,} UP) WITHIN INTERVAL '10' MINUTE
        DEFINE
            DOWN AS DOWN.price < PREV(DOWN.price),
            UP   AS UP.price > PREV(UP.price)
    )
    WHERE top - bottom >= 5
    """,
)
