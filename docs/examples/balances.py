from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock import App, Event


class Transfer(Event, id="transfer_id"):
    transfer_id: str
    account: str
    amount: int


app = App("bank")
transfers = app.stream("transfers", Transfer, key="account")


@app.view("balances", reads=transfers, key="account")
def balances(transfers: DataFrame) -> DataFrame:
    return transfers.groupBy("account").agg(F.sum("amount").alias("balance"))


app.sql("rich", "SELECT account, balance FROM balances WHERE balance >= 100", key="account")
app.sql("totals", "SELECT 'all' AS bank, sum(balance) AS total FROM balances", key="bank")


@app.view("shares", reads=["balances", "totals"], key="account")
def shares(balances: DataFrame, totals: DataFrame) -> DataFrame:
    return balances.crossJoin(totals).selectExpr("account", "balance / total AS share")


app.sql(
    "moves",
    "SELECT account, count_if(_change = 'upsert') AS updates FROM `rich.changes` GROUP BY account",
    key="account",
)
