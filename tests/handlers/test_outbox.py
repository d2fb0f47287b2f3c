"""The output of one batch of a handler may be more than fits through Spark, and still reaches the log once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from penstock.handlers import outbox as outbox_module
from penstock.handlers.outbox import ShardInbox, ShardOutbox
from penstock.runtime import handlers as handlers_module
from penstock.runtime.embedded.directory import DataDirectory
from penstock.runtime.embedded.handler import ShardOpener
from penstock.testing import run
from tests.handlers import echo
from tests.handlers.pipe import HandlerPipe

PAYLOADS = st.lists(st.tuples(st.integers(-1, 3), st.binary(max_size=100)), max_size=8)


@settings(deadline=None)
@given(st.lists(PAYLOADS, max_size=3), st.integers(0, 300))
def test_every_payload_arrives_in_order(tmp_path_factory: Any, shards: list[Any], inline: int) -> None:
    folder = tmp_path_factory.mktemp("outbox")
    open_shard = ShardOpener(DataDirectory(folder), "echo")
    rows = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outbox_module, "INLINE_BYTES_MAX", inline)
        for shard, payloads in enumerate(shards):
            outbox = ShardOutbox(open_shard(0, shard), 0, 7)
            for output, payload in payloads:
                outbox.add(output, payload)
            rows += [(shard, *row) for row in outbox.rows()]
    inbox = ShardInbox(rows, open_shard)
    for output in range(-1, 4):
        assert [(shard, [payload.to_pybytes() for payload in payloads]) for shard, payloads in inbox.pop(output)] == [
            (shard, mine)
            for shard, payloads in enumerate(shards)
            if (mine := [payload for number, payload in payloads if number == output])
        ]
    assert not inbox
    inbox.clear()
    assert not list(folder.rglob("*.outbox"))


@pytest.mark.spark
@pytest.mark.parametrize("appends", [1, 3])
def test_a_batch_that_emits_much_does_so_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, appends: int
) -> None:
    """This holds even if it dies after the first parts were appended."""
    monkeypatch.setattr(handlers_module, "APPEND_ROWS_MAX", 15_000)
    given = [echo.Word(text=f"{number:0100}", times=2_000) for number in range(40)]
    pipe = HandlerPipe(spark, tmp_path, echo.app, Path(echo.__file__))
    pipe.append("words", given)
    sound, left = pipe.log.append, iter(range(appends))

    def append(stream: str, *args: Any, **named: Any) -> Any:
        if stream == "echo" and next(left, None) is None:
            assert list(tmp_path.rglob("*.outbox"))
            raise OSError("the end")
        return sound(stream, *args, **named)

    monkeypatch.setattr(pipe.log, "append", append)
    with pytest.raises(StreamingQueryException, match="the end"):
        pipe.run(echo.echo)
    monkeypatch.setattr(pipe.log, "append", sound)
    figures = pipe.run(echo.echo, clean=False)
    assert figures.emitted == 80_000
    assert figures.digest == run(echo.app, {echo.words: given}).digest(echo.echo)
    copies = [msgspec.json.decode(row) for row in pipe.events("echo")]
    assert sorted((copy["text"], copy["number"]) for copy in copies) == [
        (word.text, number) for word in given for number in range(1, 2_001)
    ]
    assert not list(tmp_path.rglob("*.outbox"))
    pipe.close()
