from penstock import App, Event


class Fix(Event):
    vehicle: str
    speed: float


app = App("fleet")
fixes = app.stream("fixes", Fix, key="vehicle")
app.webhook("speeding", of=fixes, url="https://you.example/hook", where="speed > 130", secret="HOOK_SECRET")
