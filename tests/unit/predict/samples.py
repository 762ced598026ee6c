"""Networks whose costs are given."""

from __future__ import annotations

from grace.predict.links import link
from grace.predict.probe import Timing, Timings


def make_timings(rate: str = "1gbit", world: int = 4, efficiency: float = 1.0) -> Timings:
    """A network of 1 ms per all-reduce of nothing, and the line's own time otherwise."""
    timings = Timings(link(rate), world, world)
    each = timings.link.seconds_per_byte * 1.5 / efficiency
    timings.kinds["AllReduce"] = Timing([4, 1_000_000], [1e-3, 1e-3 + 1e6 * each], 1e-9)
    return timings
