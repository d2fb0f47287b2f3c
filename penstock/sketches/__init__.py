"""Sketches: summaries of a stream in bounded memory, for distinct counts, frequencies, top items, quantiles and
samples.

You can add items to a sketch, merge sketches, and serialize them, in the format of Apache DataSketches if it has one.
Results come with bounds. Sketches are deterministic: the same items in the same order produce the same bytes, at any
time and in any process, no matter how often the sketch was serialized in between. Therefore a sketch can be a field of
a `State`. A sketch is a `StateValue`, which encodes itself; if it is the default of a field, each key gets a copy.

`Hll`, `Theta`, `CountMin` and the core of `TDigest` come from the `datasketches` package. That package trusts the bytes
that it reads, so `images` checks them first. The other sketches are plain Python, because the package does not have
them or uses random numbers for them.

`penstock.sketches.columns` provides sketches for views. That module loads `penstock.analyze.summaries` on first use.
`spark` reads two formats that only Spark uses.
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
