"""Penstock: event streams, from the device that sends to the person who acts. Nothing lost, nothing twice."""

from penstock import cep, joins, windows
from penstock.app.app import App
from penstock.app.shed import Shed
from penstock.core.contracts import Context
from penstock.core.deletes import gone
from penstock.core.schema import EpochMillis, Event, Record, State
from penstock.runtime.previewing import preview

__all__ = ["App", "Context", "EpochMillis", "Event", "Record", "Shed", "State", "cep", "gone", "joins", "windows"]
__version__ = "0.1.0"

App._previewer = preview
