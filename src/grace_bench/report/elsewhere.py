"""What a training that was measured on one machine would take over a network: the end of ``grace compare``."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from grace_bench.network.links import link
from grace_bench.report.groups import Group as Experiment
from grace_bench.report.groups import result_of
from grace_bench.report.ranking import experiments
from grace_bench.report.tables import plain_table, range_text, share
from grace_bench.results import Document, Result

_NEAR = 0.02  # of a quality: nearer than this, one run tells nothing apart
LINKS = {"100 Mbit/s": "100mbit", "1 Gbit/s": "1gbit", "10 Gbit/s": "10gbit"}


def step_seconds(result: Result, bits_per_second: float) -> float:
    """Seconds of a step over a link of this speed: as it was measured within one machine, and after it the time that its bytes
    take on the line. Nothing overlaps, so the result is an upper bound.
    """
    return result.time.step_ms.median / 1000 + 8 * result.traffic.sent_bytes_per_step / bits_per_second


def links_of(groups: Sequence[Experiment]) -> dict[str, float]:
    """The links over which these experiments are predicted, and their bits per second; none where the network was shaped, or
    ``none`` is not among them: then there is nothing to compare with.
    """
    if all(one.first.link.bits_per_second is None for one in groups) and _plain(groups) is not None:
        return {name: float(link(spec).bits_per_second or math.inf) for name, spec in LINKS.items()}
    return {}


def _plain(groups: Sequence[Experiment]) -> Experiment | None:
    return next((one for one in groups if one.first.method == "none"), None)


def elsewhere(documents: Sequence[Document]) -> RenderableType | None:
    """A line for each method: its quality, its bytes, seconds over slower links, as predicted, with the ratio to ``none``, and
    seconds here, as measured; then which is the fastest over each link. None where there is nothing to compare with.
    """
    groups = experiments(documents)[0]
    over, plain = links_of(groups), _plain(groups)
    if plain is None or not over:
        return None
    measured = any(one.measured for one in groups)
    quality = [f"test {plain.first.metric}"] if measured else []
    headings = ("method", *quality, "bytes sent", *(f"at {name}" for name in over), "measured here")
    table = plain_table(f"{plain.first.task}: the same training in seconds over a network, predicted", headings)
    for one in groups:
        cells = [f"{seconds:.1f} ({_median(plain, bits) / seconds:.1f}x)"
                 for bits in over.values() for seconds in [_median(one, bits)]]  # fmt: skip
        final = [range_text(one.measures["final"], 4, missing="diverged")] if measured else []
        table.add_row(one.label, *final, share(one.median("relative")), *cells, f"{_median(one, math.inf):.1f}")
    legend = (
        "predicted: the measured step plus the time that one worker's bytes take on the line; x: times as fast as none; bytes "
        "sent: of a ring all-reduce of all gradients. --link 1gbit measures it over a network of that speed, where the "
        "machine permits; grace advise asks for your model."
    )
    return Group(table, Text(_name_fastest(groups, plain, over)), Text(legend, style="dim"), Text())


def _name_fastest(groups: Sequence[Experiment], plain: Experiment, over: Mapping[str, float]) -> str:
    """Which of those that learn about as much as ``none`` is predicted to be the fastest over each link; ``none`` where it is,
    or where nothing gains a tenth.
    """
    among = [one for one in groups if _keeps(one, plain)]
    told = []
    for name, bits in over.items():
        best = min(among, key=lambda one: _median(one, bits))
        gain = _median(plain, bits) / _median(best, bits)
        told.append(f"at {name} {best.label}, {gain:.1f} times as fast as none" if gain >= 1.1 else
                    f"at {name} compression gains less than a tenth: take none")  # fmt: skip
    of = f" of those that end within {100 * _NEAR:g} % of none's {plain.first.metric}" if plain.measured else ""
    return f"Fastest{of}: {'; '.join(told)}."


def _keeps(one: Experiment, plain: Experiment) -> bool:
    """Whether a quality is not worse than that of ``none`` by more than a little; where none was measured, any."""
    end, other = one.median("final"), plain.median("final")
    if not plain.measured or other is None or one is plain:
        return True
    sign = 1 if plain.first.better == "higher" else -1
    return end is not None and sign * (end - other) >= -_NEAR * abs(other)


def _median(group: Experiment, bits_per_second: float) -> float:
    """Seconds of the whole training, over seeds."""
    seconds = (result_of(run) for run in group.runs)
    return statistics.median(one.steps * step_seconds(one, bits_per_second) for one in seconds)
