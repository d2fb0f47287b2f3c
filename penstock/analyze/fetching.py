"""The rows of a DataFrame, fetched from Java without the wait that PySpark's `toArrow` may never end.

Spark opens a socket for each fetch, computes the rows for the first who connects, and closes it. If that is not us, or
we cannot connect, `toArrow` waits for a result that nothing will give. Here that is an error: the batch is not in the
ledger, and the query starts again.
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
    """All rows. `ConnectionError` if Spark did not serve them to us. If the columns are known, Spark is not asked for
    them: each question to it takes some milliseconds when the machine is busy."""
    columns = columns or to_arrow_schema(frame.schema, error_on_duplicated_field_names_in_struct=True, timezone="UTC")
    served = frame._jdf.collectAsArrowToPython()
    address, secret, serving = served[0], served[1], served[2]
    try:
        stream, connection = _create_local_socket((address, secret))
    except (PySparkRuntimeError, EOFError) as error:
        raise ConnectionError(
            "Spark did not hand its rows over: another program connected first, or Spark took too long"
        ) from error
    with connection, stream:
        try:
            batches = list(ArrowCollectSerializer().load_stream(cast("IO[bytes]", stream)))
        finally:
            with unwrap_spark_exception():
                serving.getResult()  # ends in any case, now that we are the one who is served
    return pa.Table.from_batches(batches).cast(columns) if batches else columns.empty_table()
