"""Summaries of a stream in bounded memory: how many different, how often, which most, how large, a fair sample.

Each can be added to, merged, and written as bytes, in the formats of Apache DataSketches where there is one; each
answer comes with its bounds. They are deterministic: the same items in the same order give the same bytes, on any day
and in any process, wherever they were written and read in between. So a field of a `State` may be one.

`penstock.sketches.columns` has them for views.
"""

from penstock.sketches.base import Estimate, Sketch
from penstock.sketches.distinct import Hll, Theta
from penstock.sketches.frequency import CountMin, RangeCounts
from penstock.sketches.kll import Kll
from penstock.sketches.membership import Bloom
from penstock.sketches.sampling import REST, Reservoir, Stratified
from penstock.sketches.tdigest import TDigest
from penstock.sketches.top import TopK

__all__ = [
    "REST", "Bloom", "CountMin", "Estimate", "Hll", "Kll", "RangeCounts", "Reservoir", "Sketch", "Stratified",
    "TDigest", "Theta", "TopK",
]  # fmt: skip
