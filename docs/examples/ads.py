from datetime import datetime, timedelta

from penstock import App, Event


class Impression(Event, id="impression_id", time="at"):
    impression_id: str
    at: datetime
    ad: str
    price: float


class Click(Event, id="click_id", time="at"):
    click_id: str
    at: datetime
    ad_id: str


class Clicked(Event):
    ad: str
    price: float
    after_s: float | None


app = App("ads")
impressions = app.stream("impressions", Impression, key="ad", late_after=timedelta(seconds=30))
clicks = app.stream("clicks", Click, key="ad_id", late_after=timedelta(minutes=2))


@app.join(
    "clicked",
    left=impressions,
    right=clicks,
    key=("ad", "ad_id"),
    within=(timedelta(0), timedelta(minutes=10)),
    how="left",
    emits=Clicked,
)
def clicked(impression: Impression, click: Click | None) -> Clicked:
    """Emit every impression, with a click on it in the next ten minutes if there was one."""
    after_s = (click.at - impression.at).total_seconds() if click is not None else None
    return Clicked(ad=impression.ad, price=impression.price, after_s=after_s)
