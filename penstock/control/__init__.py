"""Messages between the processes of a running app, and the channel that carries them.

The supervisor, the gateway, the engine and `penstock rebuild` share only the data directory. They communicate through
several kinds of messages. Only the latest message of each kind matters, and each kind has one publisher:

| message | publisher | readers |
|---|---|---|
| `EngineStatus` | engine, every second | gateway, supervisor, `penstock rebuild` |
| `SupervisorStatus` | supervisor, on a change | gateway, `penstock rebuild` |
| `HealthStatus` | gateway, on a change | supervisor |
| `Successor` | `penstock rebuild` | supervisor |
| `RebuildFloor` | `penstock rebuild` | gateway and engine, for retention |

This package defines message classes and one interface. Within Penstock, it imports only `core`. It does not mention any
file paths.
"""

from penstock.control.channel import ControlChannel, Edition, Editions
from penstock.control.messages import (
    FORMAT,
    Death,
    DerivedViewStatus,
    EngineState,
    EngineStatus,
    HandlerFigures,
    HandlerStatus,
    HealthProblem,
    HealthStatus,
    Message,
    NodeState,
    NodeStatus,
    ProcessStatus,
    RebuildFloor,
    StatusColumn,
    Successor,
    SupervisorStatus,
    ViewStatus,
    WindowTiming,
    decode,
    encode,
)

__all__ = [
    "FORMAT",
    "ControlChannel",
    "Death",
    "DerivedViewStatus",
    "Edition",
    "Editions",
    "EngineState",
    "EngineStatus",
    "HandlerFigures",
    "HandlerStatus",
    "HealthProblem",
    "HealthStatus",
    "Message",
    "NodeState",
    "NodeStatus",
    "ProcessStatus",
    "RebuildFloor",
    "StatusColumn",
    "Successor",
    "SupervisorStatus",
    "ViewStatus",
    "WindowTiming",
    "decode",
    "encode",
]
