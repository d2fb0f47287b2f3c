"""Status messages of the engine for tests."""

from __future__ import annotations

from typing import Any

from penstock.control import EngineState, EngineStatus, HandlerFigures


def engine_status(state: EngineState = "ready", **fields: Any) -> EngineStatus:
    return EngineStatus(epoch=1, state=state, **fields)


def figures(**fields: Any) -> HandlerFigures:
    """Return the figures of a handler that has done nothing, except for the given ones."""
    known: dict[str, Any] = dict.fromkeys(HandlerFigures.__struct_fields__, 0)
    return HandlerFigures(**{**known, "digest": "", "next_timer_us": None, "rebuilt": (), **fields})
