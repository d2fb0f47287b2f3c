from datetime import timedelta

from ads import Click, Impression
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock import App

app = App("ads-view")
impressions = app.stream("impressions", Impression, key="ad", late_after=timedelta(seconds=30))
clicks = app.stream("clicks", Click, key="ad_id", late_after=timedelta(minutes=2))


@app.view("clicked", reads=[impressions, clicks], key=["impression_id", "click_id"], emit="close")
def clicked(impressions: DataFrame, clicks: DataFrame) -> DataFrame:
    shown, click = impressions.alias("shown"), clicks.alias("made")
    soon = F.expr("ad = ad_id AND made.at BETWEEN shown.at AND shown.at + INTERVAL 10 MINUTES")
    return shown.join(click, soon).select("impression_id", "click_id", "ad", F.col("made.at").alias("at"))
