"""Fetch the rows of a DataFrame from Java, without the endless wait that PySpark's `toArrow` can fall into.

Spark opens a socket for each fetch, computes the rows for the first client that connects, and closes the socket. If
another program connects first, or connecting fails, `toArrow` waits for a result that never arrives. `fetch` raises an
error instead: the batch is not added to the ledger, and the query is restarted.
"""

from __future__ import annotations

from typing import IO, cast

import pyarrow as pa
from pyspark.errors import PySparkRuntimeError
from pyspark.errors.exceptions.captured import unwrap_spark_exception
from pyspark.sql import DataFrame
from pyspark.sql.pandas.serializers import ArrowCollectSerializer
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.util import _create_local_socket


def fetch(frame: DataFrame, columns: pa.Schema | None = None) -> pa.Table:
    """Return all rows of a Spark DataFrame. Raises `ConnectionError` if Spark did not send them to this process. Pass
    `columns` if they are known: asking Spark for them takes a few milliseconds per call on a busy machine."""
    columns = columns or to_arrow_schema(frame.schema, error_on_duplicated_field_names_in_struct=True, timezone="UTC")
    served = frame._jdf.collectAsArrowToPython()
    address, secret, serving = served[0], served[1], served[2]
    try:
        stream, connection = _create_local_socket((address, secret))
    except (PySparkRuntimeError, EOFError) as error:
        raise ConnectionError(
            "Spark did not send its rows: another program connected first, or Spark took too long"
        ) from error
    with connection, stream:
        try:
            batches = list(ArrowCollectSerializer().load_stream(cast("IO[bytes]", stream)))
        finally:
            with unwrap_spark_exception():
                serving.getResult()  # always returns, because Spark serves this process
    return pa.Table.from_batches(batches).cast(columns) if batches else columns.empty_table()
