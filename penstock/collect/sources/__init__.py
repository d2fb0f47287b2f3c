"""Sources: inputs that an app declares with `app.source`, each in its own package or module.

    server, broker, file, socket --> source --> SourceWriter.put(raw, mark) --> the stream's group commit

A source is a frozen value that is validated when it is declared and opens nothing until `run` is called. If the remote
side has positions, the source's mark is committed in one transaction with the event. All sources share `reconnect`.
"""
