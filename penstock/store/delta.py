"""A change to a view's served rows: as stored, as sent to clients, and as the difference between two rankings."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

Rank = int | float | str | None
Ranked = dict[str, tuple[Rank, bytes]]
"""A ranked view's served rows, in order. Maps each key to the rank and the row."""


class Delta(msgspec.Struct, frozen=True, array_like=True):
    """A view's new and changed rows, and keys of removed rows.

    Items of `keys`, `rows` and, in a ranked view, `ranks` with the same index belong together. A key is the JSON text
    of an object with the key columns, so the keys in `deletes` are sent to clients as they are, and are also the lookup
    keys in memory. `exact` contains the bytes of rows whose JSON loses information, by index; clients do not see them.
    """

    keys: list[str]
    rows: list[bytes]
    ranks: list[Rank]
    deletes: list[str]
    exact: dict[int, bytes] = {}

    def __bool__(self) -> bool:
        return bool(self.keys or self.deletes)

    def as_json(self) -> bytes:
        """Return the JSON object `{"upserts": [...], "deletes": [...]}` for clients."""
        return b'{"upserts":[%b],"deletes":[%b]}' % (b",".join(self.rows), ",".join(self.deletes).encode())


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Delta)


def encode(delta: Delta) -> bytes:
    return _encoder.encode(delta)


def decode(data: bytes) -> Delta:
    """Decode the result of `encode`. The caller must have verified the checksum."""
    return _decoder.decode(data)


def difference(before: Ranked, after: Ranked, also: Collection[str] = ()) -> Delta:
    """Return the change from one ranking of a view to another. The change is small if few of the ranked rows have
    changed.

    The rows with the keys in `also` have changed in a way that JSON does not show.
    """
    changed = {key: after[key] for key in after if before.get(key) != after[key] or key in also}
    return Delta(
        keys=list(changed),
        rows=[row for _, row in changed.values()],
        ranks=[rank for rank, _ in changed.values()],
        deletes=[key for key in before if key not in after],
    )
