"""Sources: ways in which data arrives that an app declares with `app.source`, one package or module each.

    server, broker, file, socket --> source --> Intake.put(raw, mark) --> the stream's intake

A source is a frozen value that is checked when it is declared, and opens nothing before its `run`. Where the other side
has positions, the source's mark is committed in one transaction with the event. `reconnect` is what all have alike.
"""
