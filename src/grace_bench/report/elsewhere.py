"""What a training that was measured on one machine would take over a network: the end of ``grace compare``."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from grace_bench.network.links import link
from grace_bench.report.groups import Group as Experiment
from grace_bench.report.groups import result_of
from grace_bench.report.ranking import experiments
from grace_bench.report.tables import plain_table
from grace_bench.results import Document, Result

LINKS = {"100 Mbit/s": "100mbit", "1 Gbit/s": "1gbit", "10 Gbit/s": "10gbit"}


def predict_seconds(result: Result, bits_per_second: float) -> float:
    """Seconds of the whole training over a link of this speed: its steps as they were measured within one machine, and
    after each of them the time that its bytes take on the line. Nothing overlaps, so the result is an upper bound.
    """
    line = 8 * result.traffic.sent_bytes_per_step / bits_per_second
    return result.steps * (result.time.step_ms.median / 1000 + line)


def elsewhere(documents: Sequence[Document]) -> RenderableType | None:
    """A line for each method: seconds here, as measured, and over slower links, as predicted, with the ratio to ``none``.
    None where the network was shaped, or ``none`` is not among the results: then there is nothing to compare with.
    """
    groups = [one for one in experiments(documents)[0] if one.first.link.bits_per_second is None]
    plain = next((one for one in groups if one.first.method == "none"), None)
    if plain is None:
        return None
    headings = ("method", "measured here", *(f"at {name}" for name in LINKS))
    table = plain_table("The same training in seconds; over a network it is predicted", headings)
    for one in groups:
        cells = [f"{_median(one, math.inf):.1f}"]
        for name in LINKS.values():
            bits = link(name).bits_per_second
            assert bits is not None
            seconds = _median(one, bits)
            cells.append(f"{seconds:.1f} ({_median(plain, bits) / seconds:.2f}x)")
        table.add_row(one.label, *cells)
    legend = (
        "predicted: the measured step plus the time that one worker's bytes take on the line; x: times as fast as none. "
        "--link 1gbit measures it over a network of that speed, where the machine permits; grace advise asks for your model."
    )
    return Group(Text(), table, Text(legend, style="dim"))


def _median(group: Experiment, bits_per_second: float) -> float:
    """Over seeds."""
    return statistics.median(predict_seconds(result_of(run), bits_per_second) for run in group.runs)
