"""How the state of a handler follows its class: what shape state is of, and how it is carried over to a new one.

State at rest has one shape: that of the class it was last written with. When the class has changed, all of it is
carried over at the next start, or none: records stay canonical, and a digest says the same as if every key had been
written with the new class.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from penstock.errors import DeclarationError
from penstock.packed import pack, unpack
from penstock.schema import State, fields, migrate_of, type_name
from penstock.shard import HASH_BYTES, Changes, Codec, Entry, Shard

NULLABLE = " | null"
DECLARED = "declared"
"""The field of a state that is made of a declaration: its type is a mark of that, one value."""
_VALUES = re.compile(r"('[^']*'|-?\d+)( \| ('[^']*'|-?\d+))*")


class Shape(msgspec.Struct, frozen=True):
    """The version of a state class, and its fields with their types as text."""

    version: int
    fields: dict[str, str]


def shape_of(state: type[State]) -> Shape:
    return Shape(state.__state_version__, {each.name: type_name(each.hint) for each in fields(state)})


def misfit(old: Shape, state: type[State]) -> str | None:
    """Why state of the old shape cannot be carried over to the class, and what to say there; None if it can."""
    new, name = shape_of(state), state.__name__
    if old.version > new.version:
        return f"its state is of version {old.version} and {name} is version {new.version}: run the newer code"
    if old.version < new.version and migrate_of(state) is not None:
        return None
    taken: dict[str, str] = {}
    for field, kind in old.fields.items():
        if field in state.__dropped__:
            continue
        called = state.__renamed__.get(field, field)
        if called in taken:
            return f"its state has both {taken[called]!r} and {field!r}, and {name}.{called} can be one of them only"
        taken[called] = field
        if called not in new.fields:
            return (
                f"its state has a field {field!r} and {name} has not: say what became of it, with "
                f"dropped=[{field!r}] or renamed={{{field!r}: NEW_NAME}} in the statement `class {name}(...)`"
            )
        if called == DECLARED and kind != new.fields[called]:
            return "its state was made by another declaration: keep that one under this name, and this under another"
        if not widens(kind, new.fields[called]):
            if state.__module__.startswith("penstock."):  # made of a declaration: of a pattern, or a join
                return (
                    "its state holds events as their class was before, and they cannot be carried over: keep the class"
                )
            return (
                f"{name}.{called} was {kind} and is {new.fields[called]}: raise the version, "
                f"version={old.version + 1} in the statement `class {name}(...)`, and give it a static method "
                "migrate(version, fields)"
            )
    return None


def widens(old: str, new: str) -> bool:
    """Whether every value of the old type is one of the new type, and stays itself. Not so for int and float."""
    if old.endswith(NULLABLE) and not new.endswith(NULLABLE):
        return False
    before, after = old.removesuffix(NULLABLE), new.removesuffix(NULLABLE)
    listed = _VALUES.fullmatch(before) and _VALUES.fullmatch(after)
    return before == after or (listed is not None and set(before.split(" | ")) <= set(after.split(" | ")))


class Carrier:
    """Carries state of an old shape over to a class that it fits."""

    def __init__(self, state: type[State], old: Shape) -> None:
        self._state, self._old = state, old
        self._codec = Codec(state)
        self._decode: Any = msgspec.msgpack.Decoder(tuple[dict[str, Any], dict[str, int] | None]).decode
        self._typed: Any = msgspec.msgpack.Decoder(Entry[state], dec_hook=unpack).decode  # type: ignore[valid-type]
        self._encode = msgspec.msgpack.Encoder(enc_hook=pack).encode

    def shard(self, old: Shard) -> Shard:
        """The shard with every record carried over. Keys whose state is now that of a new one are no longer kept."""
        made = Shard()
        records = {key: self.record(key, record) for key, record in old.records.items()}
        made.apply(Changes(records, old.due, old.time))
        return made

    def record(self, key: str, record: bytes) -> bytes | None:
        found, timers = self._decode(record[HASH_BYTES:])
        try:
            entry = self._typed(self._encode((self._fields(found), timers)))
            return self._codec.seal(key, entry, None)
        except Exception as error:
            raise DeclarationError(
                f"the state of {key!r} cannot be carried over from version {self._old.version} to "
                f"{self._state.__name__}, version {self._state.__state_version__}: {type(error).__name__}: {error}. "
                "Nothing was changed"
            ) from error

    def _fields(self, found: dict[str, Any]) -> dict[str, Any]:
        migrate = migrate_of(self._state)
        if migrate is not None:
            for version in range(self._old.version, self._state.__state_version__):
                found = migrate(version, found)
        kept = {name: value for name, value in found.items() if name not in self._state.__dropped__}
        made = {self._state.__renamed__.get(name, name): value for name, value in kept.items()}
        unknown = made.keys() - set(self._state.__struct_fields__)
        if unknown:
            raise TypeError(f"there is no field {min(unknown)!r} any more")
        return made
