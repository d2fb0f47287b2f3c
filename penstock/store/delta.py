"""A change of what a view serves: as stored, as clients get it, and as the difference of two rankings."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

Rank = int | float | str | None
Ranked = dict[str, tuple[Rank, bytes]]
"""The served rows of a ranked view, in order: key to rank and row."""


class Delta(msgspec.Struct, frozen=True, array_like=True):
    """Rows that came or changed, and keys of rows that went.

    `keys`, `rows` and, in a ranked view, `ranks` go together by position. A key is the JSON object of the key columns
    as text, so the keys in `deletes` are what clients get and what memory is looked up by. `exact` has the bytes of
    rows whose JSON does not say everything, by position; clients do not see them.
    """

    keys: list[str]
    rows: list[bytes]
    ranks: list[Rank]
    deletes: list[str]
    exact: dict[int, bytes] = {}

    def __bool__(self) -> bool:
        return bool(self.keys or self.deletes)

    def as_json(self) -> bytes:
        """The `{"upserts": [...], "deletes": [...]}` that clients get."""
        return b'{"upserts":[%b],"deletes":[%b]}' % (b",".join(self.rows), ",".join(self.deletes).encode())


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Delta)


def encode(delta: Delta) -> bytes:
    return _encoder.encode(delta)


def decode(data: bytes) -> Delta:
    """The inverse of `encode`. The bytes have passed their checksum."""
    return _decoder.decode(data)


def difference(before: Ranked, after: Ranked, also: Collection[str] = ()) -> Delta:
    """What turns one ranking into another: small when few of the ranked rows have changed. Those that `also` names have
    changed in what JSON does not say."""
    changed = {key: after[key] for key in after if before.get(key) != after[key] or key in also}
    return Delta(
        keys=list(changed),
        rows=[row for _, row in changed.values()],
        ranks=[rank for rank, _ in changed.values()],
        deletes=[key for key in before if key not in after],
    )
