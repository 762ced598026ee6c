"""The time over a network of a training that was measured on one machine: the end of ``grace compare``."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from grace.predict.links import Link, link
from grace.predict.timeline import play
from grace_bench.report.groups import Experiment, result_of
from grace_bench.report.ranking import experiments
from grace_bench.report.tables import range_text
from grace_bench.runs.forecast import forecast
from grace_bench.runs.results import Document, Result
from grace_bench.survey.steps import LINKS
from grace_command.text import plain_table, share

_NEAR = 0.02  # of a quality: nearer than this, one run tells nothing apart
MODELED = "by the link model, with as many workers and cores"
BOUND = "the measured step, and after it the time that one worker's bytes take on the line"


def step_seconds(result: Result, there: Link | None, *, modeled: bool = True) -> float:
    """Seconds of a step over another link, with the workers and cores that it had.

    Args:
        result: measured within one machine.
        there: None: where it ran, as it was measured.
        modeled: whether the link model says it, as in ``grace bench predict``. Otherwise, or where a run does not have what
            the model needs: the measured step, and after it the time that its bytes take on the line, an upper bound.
    """
    measured = result.time.step_ms.median / 1000
    if there is None:
        return measured
    seconds = forecast(result) if modeled else None
    if seconds is not None:
        return seconds(there, result.workers)
    sent = result.traffic.sent_bytes_per_step * there.seconds_per_byte
    return play(measured, 1, 1, (1.0,), [[(0.0, 0.0), (0.0, sent), (0.0, 0.0)]])


def are_modeled(groups: Sequence[Experiment]) -> bool:
    """True if the link model can predict all of them; otherwise none is, as a bound is not compared with a prediction."""
    return all(forecast(result_of(run)) is not None for group in groups for run in group.runs)


def links_of(groups: Sequence[Experiment]) -> dict[str, Link]:
    """The links over which these experiments are predicted; none where the network was shaped, or ``none`` is not among
    them: then there is nothing to compare with.
    """
    if all(group.first.link.bits_per_second is None for group in groups) and _plain(groups) is not None:
        return {name: link(spec) for name, spec in LINKS.items()}
    return {}


def _plain(groups: Sequence[Experiment]) -> Experiment | None:
    return next((group for group in groups if group.first.method == "none"), None)


def over_slower_links(documents: Sequence[Document]) -> RenderableType | None:
    """A line for each method: its quality, its bytes, seconds over slower links, as predicted, with the ratio to ``none``, and
    seconds here, as measured; then which is the fastest over each link. None where there is nothing to compare with.
    """
    groups = experiments(documents)[0]
    over, plain = links_of(groups), _plain(groups)
    if plain is None or not over:
        return None
    measured, modeled = any(group.measured for group in groups), are_modeled(groups)
    quality = [f"test {plain.first.metric}"] if measured else []
    headings = ("method", *quality, "bytes sent", *(f"at {name}" for name in over), "measured here")
    table = plain_table(f"{plain.first.task}: the same training in seconds over a network, predicted", headings)
    for group in groups:
        cells = [f"{seconds:.1f} ({_median(plain, there, modeled) / seconds:.1f}x)"
                 for there in over.values() for seconds in [_median(group, there, modeled)]]  # fmt: skip
        final = [range_text(group.measures["final"], 4, missing="diverged")] if measured else []
        table.add_row(
            group.label, *final, share(group.median("relative")), *cells, f"{_median(group, None, modeled):.1f}"
        )
    legend = (
        f"predicted: {MODELED if modeled else BOUND}; x: times as fast as none; bytes sent: of a ring all-reduce of all "
        "gradients. --link 1gbit measures it over a network of that speed, where the machine permits; grace advise asks for "
        "your model."
    )
    return Group(table, Text(_name_fastest(groups, plain, over, modeled)), Text(legend, style="dim"), Text())


def _name_fastest(groups: Sequence[Experiment], plain: Experiment, over: Mapping[str, Link], modeled: bool) -> str:
    """The fastest, as predicted, over each link of those that learn about as much as ``none``; ``none`` where it is,
    or where nothing gains a tenth.
    """
    among = [group for group in groups if _keeps(group, plain)]
    told = []
    for name, there in over.items():
        times = {group.label: _median(group, there, modeled) for group in among}
        best = min(among, key=lambda group: times[group.label])
        gain = times[plain.label] / times[best.label]
        told.append(f"at {name} {best.label}, {gain:.1f} times as fast as none" if gain >= 1.1 else
                    f"at {name} compression gains less than a tenth: take none")  # fmt: skip
    of = f" of those that end within {100 * _NEAR:g} % of none's {plain.first.metric}" if plain.measured else ""
    return f"Fastest{of}: {'; '.join(told)}."


def _keeps(group: Experiment, plain: Experiment) -> bool:
    """True if a quality is not worse than that of ``none`` by more than a little; where none was measured, any."""
    end, other = group.median("final"), plain.median("final")
    if not plain.measured or other is None or group is plain:
        return True
    sign = 1 if plain.first.better == "higher" else -1
    return end is not None and sign * (end - other) >= -_NEAR * abs(other)


def _median(group: Experiment, there: Link | None, modeled: bool) -> float:
    """Seconds of the whole training, over seeds."""
    results = (result_of(run) for run in group.runs)
    return statistics.median(result.steps * step_seconds(result, there, modeled=modeled) for result in results)
