"""The migration of a handler's state when its class changes.

All stored state has the shape of the class that it was last written with. When the class has changed, the next start
migrates either all of the state or none of it. So records stay canonical, and a digest is the same as if every key had
been written with the new class.
"""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.core.errors import DeclarationError
from penstock.core.schema import State, migrate_of
from penstock.core.shapes import DECLARED, Shape, shape_of, widens
from penstock.core.state_value import pack, unpack
from penstock.handlers.shard import HASH_BYTES, Codec, KeyState, Shard, ShardChanges


def misfit(old: Shape, state: type[State]) -> str | None:
    """Return why a handler's state with the old shape cannot be migrated to the class, with the fix, or None if the
    state can be migrated."""
    new, name = shape_of(state), state.__name__
    if old.version > new.version:
        return f"its state has version {old.version}, but {name} has version {new.version}: run the newer code"
    if old.version < new.version and migrate_of(state) is not None:
        return None
    taken: dict[str, str] = {}
    for field, kind in old.fields.items():
        if field in state.__dropped__:
            continue
        called = state.__renamed__.get(field, field)
        if called in taken:
            return f"its state has both {taken[called]!r} and {field!r}, but {name}.{called} can only be one of them"
        taken[called] = field
        if called not in new.fields:
            return (
                f"its state has a field {field!r}, but {name} does not: rename or drop it, with "
                f"renamed={{{field!r}: NEW_NAME}} or dropped=[{field!r}] in the statement `class {name}(...)`"
            )
        if called == DECLARED and kind != new.fields[called]:
            return (
                "its state belongs to a different declaration: "
                "keep that declaration under this name, and rename the new declaration"
            )
        if not widens(kind, new.fields[called]):
            if state.__module__.startswith("penstock."):  # generated from a declaration, which is a pattern or a join
                return "its state holds events of the earlier class, which cannot be carried over: keep the class"
            return (
                f"{name}.{called} was {kind} and is {new.fields[called]}: raise the version "
                f"(version={old.version + 1} in the statement `class {name}(...)`) and give the class a static method "
                "migrate(version, fields)"
            )
    return None


class Carrier:
    """Migrates a handler's state from an old shape to a compatible class."""

    def __init__(self, state: type[State], old: Shape) -> None:
        self._state, self._old = state, old
        self._codec = Codec(state)
        self._decode: Any = msgspec.msgpack.Decoder(tuple[dict[str, Any], dict[str, int] | None]).decode
        self._typed: Any = msgspec.msgpack.Decoder(KeyState[state], dec_hook=unpack).decode  # type: ignore[valid-type]
        self._encode = msgspec.msgpack.Encoder(enc_hook=pack).encode

    def shard(self, old: Shard) -> Shard:
        """Return the handler's shard with every record migrated. Keys whose migrated state equals the default are
        dropped."""
        shard = Shard()
        records = {key: self.record(key, record) for key, record in old.records.items()}
        shard.apply(ShardChanges(records, old.due, old.time))
        return shard

    def record(self, key: str, record: bytes) -> bytes | None:
        values, timers = self._decode(record[HASH_BYTES:])
        try:
            entry = self._typed(self._encode((self._migrated_fields(values), timers)))
            return self._codec.seal(key, entry, None)
        except Exception as error:
            raise DeclarationError(
                f"the state of {key!r} cannot be migrated from version {self._old.version} to "
                f"{self._state.__name__}, version {self._state.__state_version__}: {type(error).__name__}: {error}. "
                "Nothing was changed"
            ) from error

    def _migrated_fields(self, values: dict[str, Any]) -> dict[str, Any]:
        migrate = migrate_of(self._state)
        if migrate is not None:
            for version in range(self._old.version, self._state.__state_version__):
                values = migrate(version, values)
        kept = {name: value for name, value in values.items() if name not in self._state.__dropped__}
        fields = {self._state.__renamed__.get(name, name): value for name, value in kept.items()}
        unknown = fields.keys() - set(self._state.__struct_fields__)
        if unknown:
            raise TypeError(f"the field {min(unknown)!r} no longer exists")
        return fields
