"""Readers that convert NDJSON, JSON, CSV and Parquet files to events, in pieces of bounded size. Plain blocking code.

The same file always gives the same events in the same order, valid or not, so the number of events read is a position.
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
from penstock.core.schema import Event

PARQUET_ROWS = 1_000
PARQUET_BUFFER_BYTES = 1024 * 1024
"""Number of rows converted to events at a time, and number of bytes read ahead for each column."""
NEAR_END_CHARS = 16
"""A decoding error this close to the end of the text may only mean that more text is needed: `tru`, `1.5e`,
`"\\u00`."""
SUFFIXES = {".ndjson": "ndjson", ".jsonl": "ndjson", ".json": "json", ".csv": "csv", ".parquet": "parquet"}
FORMATS = tuple(dict.fromkeys(SUFFIXES.values()))
_BOM = b"\xef\xbb\xbf"
_json = json.JSONDecoder(parse_int=str, parse_float=str)  # only the text is used, so numbers need no conversion


class BadFile(Exception):
    """The rest of a file cannot be read; the message is the reason."""


def format_of(name: str) -> str | None:
    """Return a file's format based on the suffix of its name, or None for an unknown suffix."""
    plain = name.lower().removesuffix(".gz")
    return next((kind for suffix, kind in SUFFIXES.items() if plain.endswith(suffix)), None)


def rows(file: BinaryIO, name: str, kind: str, event: type[Event] | None, bytes_max: int, skip: int) -> Iterator[bytes]:
    """Yield the events of a file after the first `skip`. Raises `BadFile`, and `OSError` if the disk fails."""
    try:
        if kind not in FORMATS:
            raise BadFile("its name has no known suffix; set `format`, or a `pattern` that excludes it")
        if kind == "parquet":
            yield from _parquet_rows(file, skip)
            return
        plain = cast(BinaryIO, gzip.GzipFile(fileobj=file)) if name.lower().endswith(".gz") else file
        yield from itertools.islice(_text_rows(plain, kind, event, bytes_max), skip, None)
    except OSError as error:
        if error.errno is not None:
            raise
        raise BadFile(str(error)) from None  # raised by gzip and Arrow because of the file's contents
    except BadFile:
        raise
    except Exception as error:  # whatever this file does to a parser, the next file must be read
        raise BadFile(f"{type(error).__name__}: {error}"[:500]) from None


def _text_rows(file: BinaryIO, kind: str, event: type[Event] | None, bytes_max: int) -> Iterator[bytes]:
    if file.read(len(_BOM)) != _BOM:
        file.seek(0)
    if kind == "csv":
        return _csv_rows(_Lines(file, bytes_max), event)
    if kind == "json":
        return _json_rows(file, bytes_max)
    return filter(bytes.strip, lines(file, bytes_max))


def _json_rows(file: BinaryIO, bytes_max: int) -> Iterator[bytes]:
    """Yield the items of an array, the values of a file with one value per line, or a single value."""
    start = file.tell()
    head = file.read(bytes_max + 1)
    file.seek(start)
    if head.lstrip()[:1] == b"[":
        return _json_array_items(_Text(file), bytes_max)
    first = next(filter(bytes.strip, head.split(b"\n")), b"")
    with suppress(ValueError, RecursionError):
        msgspec.json.decode(first, type=msgspec.Raw)
        return filter(bytes.strip, lines(file, bytes_max))
    return iter([head.strip()] if head.strip() else [])


class _Text:
    """The text of a file from some offset, read on demand. Invalid UTF-8 passes through."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._left = b""
        self.text = ""
        self.at = 0
        self.more()

    def more(self) -> bool:
        """Read more of the file's text; False at the end of the file."""
        part = self._file.read(READ_BYTES)
        data = self._left + part
        keep = _unfinished_bytes(data) if part else 0
        self._left = data[len(data) - keep :]
        self.text = self.text[self.at :] + data[: len(data) - keep].decode("utf-8", "surrogateescape")
        self.at = 0
        return bool(part)

    def next_char(self) -> str:
        """Skip white space and return the character after it, or "" at the end of the file."""
        while True:
            while self.at < len(self.text):
                if self.text[self.at] not in " \t\r\n":
                    return self.text[self.at]
                self.at += 1
            if not self.more():
                return ""


def _unfinished_bytes(data: bytes) -> int:
    """Return how many bytes at the end of a file's text belong to an incomplete character."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte >= 0xC0:
            return back if back < (2 if byte < 0xE0 else 3 if byte < 0xF0 else 4) else 0
        if byte < 0x80:
            return 0
    return 0


def _json_array_items(source: _Text, bytes_max: int) -> Iterator[bytes]:
    """Yield the items of a JSON file's array, which is never in memory as a whole."""
    source.next_char()
    source.at += 1
    if source.next_char() != "]":
        while True:
            yield _json_array_item(source, bytes_max)
            following = source.next_char()
            if following == "]":
                break
            if following != ",":
                raise BadFile("the array ends too early" if not following else "a comma is missing in the array")
            source.at += 1
            source.next_char()
    source.at += 1
    if source.next_char():
        raise BadFile("unexpected data after the array")


def _json_array_item(source: _Text, bytes_max: int) -> bytes:
    there_is_more = True
    while there_is_more:
        try:
            _, end = _json.raw_decode(source.text, source.at)
        except json.JSONDecodeError as error:
            inside = error.pos < len(source.text) - NEAR_END_CHARS and not error.msg.startswith("Unterminated")
            if inside:
                raise BadFile(f"not JSON: {error.msg}") from None
        else:
            if end < len(source.text):
                raw = source.text[source.at : end].encode("utf-8", "surrogateescape")
                source.at = end
                return raw
        if len(source.text) - source.at > bytes_max:
            raise BadFile(f"an item is larger than {bytes_max} bytes")
        there_is_more = source.more()
    raise BadFile("the array ends too early")


class _Lines:
    """The lines of a CSV file, and the text read since the last call to `taken`, because a row can span multiple
    lines."""

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


def _csv_rows(source: _Lines, event: type[Event] | None) -> Iterator[bytes]:
    """Yield the rows of a CSV file as JSON.

    An invalid row, or one that does not match the header, is yielded as is, for the decoder.
    """
    reader = csv.reader(source, strict=True)
    header = [name.strip() for name in next(filter(None, reader), [])]
    if len(set(header)) < len(header) or "" in header[:-1]:
        raise BadFile("the first row must contain a different name for each column")
    source.taken()
    build = _csv_row_builder(header, cells(header, event))
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


def _csv_row_builder(header: list[str], columns: list[Cell]) -> Callable[[list[str]], bytes | None]:
    encode = msgspec.json.Encoder().encode

    def build(row: list[str]) -> bytes | None:
        if len(row) > len(header):
            return None
        values = {name: cell(text) for name, cell, text in zip(header, columns, row, strict=False)}
        return encode({name: value for name, value in values.items() if value is not LEFT_OUT})

    return build


def _parquet_rows(file: BinaryIO, skip: int) -> Iterator[bytes]:
    import pyarrow.parquet as pq

    from penstock.core.columns import json_rows

    table = pq.ParquetFile(file, buffer_size=PARQUET_BUFFER_BYTES, pre_buffer=False)
    for group in range(table.num_row_groups):
        count = table.metadata.row_group(group).num_rows
        if skip >= count:
            skip -= count
            continue
        for batch in table.iter_batches(PARQUET_ROWS, row_groups=[group], use_threads=False):
            yield from itertools.islice(json_rows(batch), skip, None)
            skip = max(0, skip - batch.num_rows)
