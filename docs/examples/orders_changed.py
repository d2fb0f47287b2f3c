from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from penstock import App, Context, Event, State


class Order(Event, id="order_id", version=2, renamed={"text": "body"}, dropped=["note"]):
    order_id: str
    customer: str
    body: str
    amount: Decimal
    currency: str = "EUR"

    @staticmethod
    def migrate(version: int, fields: dict[str, Any]) -> dict[str, Any]:
        """Convert fields of `version` to fields of the next version."""
        cents = fields.pop("cents")
        return {**fields, "amount": Decimal(cents) / 100}


class Milestone(Event):
    customer: str
    orders: int


class Customer(State):
    orders: int = 0


class Account(State):
    spent: Decimal = Decimal(0)
    last: str = ""


app = App("orders")
orders = app.stream("orders", Order, key="customer")
app.sql("busiest", "SELECT customer, count(*) AS n FROM orders GROUP BY customer", key="customer")
app.sql("revenue", "SELECT currency, sum(amount) AS total FROM orders GROUP BY currency", key="currency")


@app.handler("milestones", reads=orders, key="customer", state=Customer, emits=Milestone)
def milestones(customer: Customer, order: Order, ctx: Context) -> Iterator[Milestone]:
    customer.orders += 1
    if customer.orders % 10 == 0:
        yield Milestone(customer=order.customer, orders=customer.orders)


@app.handler("accounts", reads=orders, key="customer", state=Account)
def accounts(account: Account, order: Order, ctx: Context) -> None:
    account.spent += order.amount
    account.last = f"{order.body}, {order.currency}"
