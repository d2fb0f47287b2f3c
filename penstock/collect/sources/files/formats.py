"""Files of rows to events: NDJSON, JSON, CSV and Parquet, each a bounded piece at a time. Plain blocking code.

The same file always gives the same events in the same order, good or bad, so that a number of them is a position.
"""

from __future__ import annotations

import csv
import gzip
import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import BinaryIO, cast

import msgspec

from penstock.collect.sources.files.cells import LEFT_OUT, Cell, cells
from penstock.collect.sources.files.lines import READ_BYTES, lines
from penstock.schema import Event

PARQUET_ROWS = 1_000
PARQUET_BUFFER_BYTES = 1024 * 1024
"""Rows made into events at a time, and what is read ahead of each column."""
NEAR_END_CHARS = 16
"""An error this near to the end of what was read may be for want of the rest: `tru`, `1.5e`, `"\\u00`."""
SUFFIXES = {".ndjson": "ndjson", ".jsonl": "ndjson", ".json": "json", ".csv": "csv", ".parquet": "parquet"}
FORMATS = tuple(dict.fromkeys(SUFFIXES.values()))
_BOM = b"\xef\xbb\xbf"
_json = json.JSONDecoder(parse_int=str, parse_float=str)  # the text is kept; numbers need no value


class BadFile(Exception):
    """What is left of a file cannot be read; says why."""


def format_of(name: str) -> str | None:
    """The format that the name of a file tells."""
    plain = name.lower().removesuffix(".gz")
    return next((kind for suffix, kind in SUFFIXES.items() if plain.endswith(suffix)), None)


def rows(file: BinaryIO, name: str, kind: str, event: type[Event] | None, bytes_max: int, skip: int) -> Iterator[bytes]:
    """The events of a file after the first `skip`. Raises `BadFile`; and `OSError` if the disk does not give it."""
    try:
        if kind not in FORMATS:
            raise BadFile("its name tells no format; give one, or a pattern that leaves it out")
        if kind == "parquet":
            yield from _parquet(file, skip)
            return
        plain = cast(BinaryIO, gzip.GzipFile(fileobj=file)) if name.lower().endswith(".gz") else file
        yield from itertools.islice(_text_rows(plain, kind, event, bytes_max), skip, None)
    except OSError as error:
        if error.errno is not None:
            raise
        raise BadFile(str(error)) from None  # of gzip and of Arrow, about what the file holds
    except BadFile:
        raise
    except Exception as error:  # whatever it is that this file does to a parser, the next file must have its turn
        raise BadFile(f"{type(error).__name__}: {error}"[:500]) from None


def _text_rows(file: BinaryIO, kind: str, event: type[Event] | None, bytes_max: int) -> Iterator[bytes]:
    if file.read(len(_BOM)) != _BOM:
        file.seek(0)
    if kind == "csv":
        return _csv(_Lines(file, bytes_max), event)
    if kind == "json":
        return _json_rows(file, bytes_max)
    return filter(bytes.strip, lines(file, bytes_max))


def _json_rows(file: BinaryIO, bytes_max: int) -> Iterator[bytes]:
    """An array; or one value a line, if the first line is one by itself; or else a single value."""
    start = file.tell()
    head = file.read(bytes_max + 1)
    file.seek(start)
    if head.lstrip()[:1] == b"[":
        return _items(_Text(file), bytes_max)
    first = next(filter(bytes.strip, head.split(b"\n")), b"")
    with suppress(ValueError, RecursionError):
        msgspec.json.decode(first, type=msgspec.Raw)
        return filter(bytes.strip, lines(file, bytes_max))
    return iter([head.strip()] if head.strip() else [])


class _Text:
    """The text of a file from some place on, more of it when asked. Bytes that are no UTF-8 pass through."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._left = b""
        self.text = ""
        self.at = 0
        self.more()

    def more(self) -> bool:
        """Read on; False at the end of the file."""
        part = self._file.read(READ_BYTES)
        data = self._left + part
        keep = _unfinished(data) if part else 0
        self._left = data[len(data) - keep :]
        self.text = self.text[self.at :] + data[: len(data) - keep].decode("utf-8", "surrogateescape")
        self.at = 0
        return bool(part)

    def next_char(self) -> str:
        """Pass white space; the character after it, and "" at the end of the file."""
        while True:
            while self.at < len(self.text):
                if self.text[self.at] not in " \t\r\n":
                    return self.text[self.at]
                self.at += 1
            if not self.more():
                return ""


def _unfinished(data: bytes) -> int:
    """How many bytes at the end are the beginning of a character."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte >= 0xC0:
            return back if back < (2 if byte < 0xE0 else 3 if byte < 0xF0 else 4) else 0
        if byte < 0x80:
            return 0
    return 0


def _items(source: _Text, bytes_max: int) -> Iterator[bytes]:
    """The items of an array, which is never in memory as a whole."""
    source.next_char()
    source.at += 1
    if source.next_char() != "]":
        while True:
            yield _item(source, bytes_max)
            following = source.next_char()
            if following == "]":
                break
            if following != ",":
                raise BadFile("the array ends too early" if not following else "a comma is missing in the array")
            source.at += 1
            source.next_char()
    source.at += 1
    if source.next_char():
        raise BadFile("something follows the array")


def _item(source: _Text, bytes_max: int) -> bytes:
    there_is_more = True
    while there_is_more:
        try:
            _, end = _json.raw_decode(source.text, source.at)
        except json.JSONDecodeError as error:
            inside = error.pos < len(source.text) - NEAR_END_CHARS and not error.msg.startswith("Unterminated")
            if inside:
                raise BadFile(f"no JSON: {error.msg}") from None
        else:
            if end < len(source.text):
                found = source.text[source.at : end].encode("utf-8", "surrogateescape")
                source.at = end
                return found
        if len(source.text) - source.at > bytes_max:
            raise BadFile(f"an item has more than {bytes_max} bytes")
        there_is_more = source.more()
    raise BadFile("the array ends too early")


class _Lines:
    """The lines of a CSV file, and what was read since it was last asked: a row may have several."""

    def __init__(self, file: BinaryIO, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._lines = lines(file, bytes_max)
        self._read = bytearray()

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        line = next(self._lines) + b"\n"
        self._read += line[: self.bytes_max + 2 - len(self._read)]
        return line.decode("utf-8", "surrogateescape")

    def taken(self) -> bytes:
        read = bytes(self._read).rstrip(b"\n")[: self.bytes_max + 1]
        self._read.clear()
        return read


def _csv(source: _Lines, event: type[Event] | None) -> Iterator[bytes]:
    """A row that is none, or does not fit the header, is given as it stands, for the decoder to refuse."""
    reader = csv.reader(source, strict=True)
    header = [name.strip() for name in next(filter(None, reader), [])]
    if len(set(header)) < len(header) or "" in header[:-1]:
        raise BadFile("the first row does not name each column once")
    source.taken()
    build = _row_builder(header, cells(header, event))
    while True:
        try:
            row = next(reader)
            whole = build(row)
        except StopIteration:
            return
        except (csv.Error, UnicodeEncodeError):
            row, whole = ["?"], None
        raw = source.taken()
        if row:
            yield raw if whole is None or len(raw) > source.bytes_max else whole


def _row_builder(header: list[str], columns: list[Cell]) -> Callable[[list[str]], bytes | None]:
    encode = msgspec.json.Encoder().encode

    def build(row: list[str]) -> bytes | None:
        if len(row) > len(header):
            return None
        values = {name: cell(text) for name, cell, text in zip(header, columns, row, strict=False)}
        return encode({name: value for name, value in values.items() if value is not LEFT_OUT})

    return build


def _parquet(file: BinaryIO, skip: int) -> Iterator[bytes]:
    import pyarrow.parquet as pq

    from penstock.columns import json_rows

    table = pq.ParquetFile(file, buffer_size=PARQUET_BUFFER_BYTES, pre_buffer=False)
    for group in range(table.num_row_groups):
        count = table.metadata.row_group(group).num_rows
        if skip >= count:
            skip -= count
            continue
        for batch in table.iter_batches(PARQUET_ROWS, row_groups=[group], use_threads=False):
            yield from itertools.islice(json_rows(batch), skip, None)
            skip = max(0, skip - batch.num_rows)
