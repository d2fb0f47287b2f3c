from collections.abc import Iterator

from penstock import App, Context, Event, State


class Order(Event, id="order_id"):
    order_id: str
    customer: str
    text: str
    cents: int
    note: str | None = None


class Milestone(Event):
    customer: str
    orders: int


class Customer(State):
    orders: int = 0


app = App("orders")
orders = app.stream("orders", Order, key="customer")
app.sql("busiest", "SELECT customer, count(*) AS n FROM orders GROUP BY customer", key="customer")


@app.handler("milestones", reads=orders, key="customer", state=Customer, emits=Milestone)
def milestones(customer: Customer, order: Order, ctx: Context) -> Iterator[Milestone]:
    customer.orders += 1
    if customer.orders % 10 == 0:
        yield Milestone(customer=order.customer, orders=customer.orders)
