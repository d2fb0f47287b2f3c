"""An app's declarations as frozen values, and the checks that need neither Spark nor data.

`app` contains the class `App`, whose methods create the values in `declared`: streams, views, handlers, feeds, sources
and webhooks, each with its file and line. Importing an app's file checks nothing; `graph` checks the whole app, so that
`penstock check` can report every problem at once. `sql`, `shed` and `view_time` check parts of declarations. Patterns,
windows, rollups and joins are declared here, and compiled into handlers in separate packages.

`loading` imports an app's file and finds the app in it; `hints` adds a suggestion to an error that the file raises.

`fingerprints` computes digests of declarations, which show at the next start whether the code has changed.

Nothing here runs a declaration, and pyspark is imported only for type annotations.
"""
