"""Penstock: streams of events, from the device that sends to the person that acts. Nothing lost, nothing twice."""

from penstock import cep, joins, windows
from penstock.app import App
from penstock.contracts import Context
from penstock.kept import gone
from penstock.schema import EpochMillis, Event, Record, State
from penstock.shed import Shed

__all__ = ["App", "Context", "EpochMillis", "Event", "Record", "Shed", "State", "cep", "gone", "joins", "windows"]
__version__ = "0.1.0"
