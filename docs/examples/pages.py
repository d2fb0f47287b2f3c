from collections.abc import Iterator

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock import App, Context, Event, State
from penstock.sketches import Hll, Kll, Reservoir, TopK
from penstock.sketches import columns as S


class Visit(Event, id="visit_id"):
    visit_id: str
    page: str
    person: str
    took_ms: float


class Slow(Event):
    page: str
    people: int
    p99_ms: float
    at_most_ms: float


class Page(State):
    people: Hll = Hll()
    regulars: TopK = TopK(192)
    took_ms: Kll = Kll(200)
    some: Reservoir = Reservoir(20)


app = App("pages")
visits = app.stream("visits", Visit, key="page")


@app.handler("slow-pages", reads=visits, key="page", state=Page, emits=Slow)
def slow_pages(page: Page, visit: Visit, ctx: Context) -> Iterator[Slow]:
    """Report a page after every thousand visits, if at least one visit in a hundred certainly took over a second."""
    page.people.add(visit.person)
    page.regulars.add(visit.person)
    page.took_ms.add(visit.took_ms)
    page.some.add(visit.visit_id)
    if page.took_ms.n % 1_000 == 0:
        p99 = page.took_ms.quantile(0.99)
        if p99.low > 1_000:
            people = round(page.people.count().value)
            yield Slow(page=visit.page, people=people, p99_ms=p99.value, at_most_ms=p99.high)


@app.view("page-figures", reads=visits, key="page")
def page_figures(visits: DataFrame) -> DataFrame:
    return (
        visits.groupBy("page")
        .agg(
            F.hll_sketch_agg("person").alias("people"),
            F.kll_sketch_agg_double("took_ms").alias("took_ms"),
            S.reservoir("visit_id", by="visit_id", k=5).alias("some"),
        )
        .select(
            "page",
            S.hll_count("people").alias("people"),
            S.kll_quantile("took_ms", 0.99, items="double").alias("p99_ms"),
            "some",
        )
    )
