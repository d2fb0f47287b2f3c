"""Penstock: streams of events, from the device that sends to the person that acts. Nothing lost, nothing twice."""

from penstock import cep
from penstock.app import App
from penstock.contracts import Context
from penstock.schema import EpochMillis, Event, Record, State
from penstock.shed import Shed

__all__ = ["App", "Context", "EpochMillis", "Event", "Record", "Shed", "State", "cep"]
__version__ = "0.1.0"
