"""Rollups: aggregates of a key's events by calendar units of several sizes, each kept for a time of its own.

`rolled` makes the parts of a handler of a declaration. Pure Python: no Spark, no files.
"""

from penstock.rollups.calendar import UNITS
from penstock.rollups.declaring import Declared, Rolled, rolled
from penstock.rollups.handling import TIMER, Missed

__all__ = ["TIMER", "UNITS", "Declared", "Missed", "Rolled", "rolled"]
