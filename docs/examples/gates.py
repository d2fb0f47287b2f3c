from datetime import datetime, timedelta

from penstock import App, Event


class Turn(Event, id="turn_id", time="at"):
    turn_id: str
    at: datetime
    gate: str


app = App("gates")
turns = app.stream("turns", Turn, key="gate", late_after=timedelta(minutes=2), ahead=timedelta(minutes=5))
