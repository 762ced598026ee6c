"""What a report holds: the figures that there are data for, and everything that the page draws, as one document."""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import grace
from grace.bench.report.groups import Group, Spread, grouped
from grace.bench.report.read import Found, Run
from grace.bench.report.style import COLOURS, COLOURS_ON_DARK, MARKERS, Sign, sign

_MEASURES = (
    "final", "best", "throughput", "step_ms", "compute_ms", "codec_ms", "exchange_ms", "exposed_ms", "sent", "relative",
    "nic_sent", "peak_bytes", "total_seconds", "target_seconds", "predicted_ms", "prediction_error",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of the report. ``command`` makes the data without which it is left out."""

    name: str
    title: str
    survey: str
    needs: str
    command: str
    has_data: Callable[[Report], bool]


@dataclass(frozen=True, slots=True)
class Report:
    """All that is reported of a directory."""

    found: Found
    groups: list[Group]
    skipped: list[tuple[str, str]]
    signs: dict[str, Sign]

    @property
    def failed(self) -> list[Run]:
        """The runs that ended with an error."""
        return [run for run in self.found.runs if run.error is not None]

    @property
    def figures(self) -> list[Figure]:
        """Those with data, in the order of the survey."""
        return [figure for figure in FIGURES if figure.has_data(self)]

    @property
    def missing(self) -> list[Figure]:
        """Those without."""
        return [figure for figure in FIGURES if not figure.has_data(self)]

    @property
    def tasks(self) -> list[str]:
        """With results, by name."""
        return sorted({group.first.task for group in self.groups})


def _trained(report: Report) -> list[Group]:
    return [group for group in report.groups if not group.reference]


Network = tuple[str, float, str]  # a link, its latency in seconds, a transport


def network(run: Run) -> Network:
    """What a run was sent over."""
    return run.link, run.latency_seconds or 0.0, run.transport


def networks(groups: Sequence[Group]) -> list[Network]:
    """From the slowest to the fastest; a link without a limit is the fastest."""
    speeds = {network(group.first): group.first.bits_per_second or math.inf for group in groups}
    return sorted(speeds, key=lambda one: (speeds[one], -one[1], one))


def network_name(one: Network, among: Sequence[Network]) -> str:
    """Its link, with latency and transport where others differ in them."""
    link, latency, transport = one
    parts = ["no limit" if link == "none" else link]
    if len({other[1] for other in among}) > 1 and latency:
        parts.append(f"{1000 * latency:g} ms")
    if len({other[2] for other in among}) > 1:
        parts.append(transport)
    return ", ".join(parts)


def is_share(metric: str) -> bool:
    """Whether this metric is a part of one, to be told in per cent: accuracies, hit rates, overlaps."""
    return re.search(r"accuracy|^top\d|^hr\d|iou|dice|recall", metric) is not None


FIGURES = (
    Figure(
        "quality-epoch-time", "Quality against epochs and against time", "1",
        "runs that evaluate the model more than once",
        "grace bench train --task digits --methods none,topk --out {directory}",
        lambda report: any(
            sum(value.median is not None for value in group.curve.quality) > 1 for group in _trained(report)
        ),
    ),
    Figure(
        "quality-throughput", "Quality against throughput", "6",
        "runs with a final quality and a throughput",
        "grace bench train --task digits --methods none,topk --out {directory}",
        lambda report: any(
            group.final.median is not None and group.throughput.median is not None for group in _trained(report)
        ),
    ),
    Figure(
        "quality-bytes", "Quality against bytes sent", "7",
        "runs of two workers or more with a final quality",
        "grace bench train --task digits --methods none,topk --workers 2 --out {directory}",
        lambda report: any(group.final.median is not None and group.sent.median for group in _trained(report)),
    ),
    Figure(
        "codec-latency", "Codec latency", "8",
        "timings of the codecs, codecs*.json",
        "grace bench codecs --json > {directory}/codecs.json",
        lambda report: bool(report.found.codecs),
    ),
    Figure(
        "step-time", "Where the time of a step goes", "",
        "runs with a step time",
        "grace bench train --task digits --methods none,topk --out {directory}",
        lambda report: any(group.step_ms.median is not None for group in report.groups),
    ),
    Figure(
        "links", "Transports and links", "9 and 10",
        "runs of one task over two links or transports",
        "grace bench train --task digits --methods none,topk --link 1gbit,10gbit --out {directory}",
        lambda report: any(
            len(networks([g for g in report.groups if g.first.task == task and g.throughput.median is not None])) > 1
            for task in report.tasks
        ),
    ),
    Figure(
        "prediction", "What the link model predicts", "",
        "runs with a prediction, as over a shaped link",
        "grace bench train --task digits --methods none,topk --link 1gbit --out {directory}",
        lambda report: any(group.prediction_error.median is not None for group in report.groups),
    ),
)  # fmt: skip


def report_of(found: Found) -> Report:
    """Groups the runs and gives every method its sign."""
    groups, older = grouped(found.runs)
    names = sorted({group.first.method for group in groups} | {row["method"] for row in found.codecs if row["method"]})
    baselines = {group.first.method for group in groups if group.first.baseline}
    ordinary = [name for name in names if name not in baselines]
    signs = {name: sign(k, baseline=True) for k, name in enumerate(sorted(baselines, key=_fp32_first))}
    signs |= {name: sign(k) for k, name in enumerate(ordinary)}
    return Report(found, groups, [*found.skipped, *older], signs)


def _fp32_first(name: str) -> tuple[int, str]:
    order = ("none", "ddp-fp32", "ddp-bf16", "ddp-powersgd", "no-communication")
    return (order.index(name) if name in order else len(order), name)


def page_document(report: Report, directory: str) -> dict[str, Any]:
    """The report as the page reads it: indices instead of repeated names, four significant digits of each number."""
    firsts = [group.first for group in report.groups]
    links = networks(report.groups)
    families = sorted({first.family for first in firsts}, key=lambda name: (name != "baseline", name))
    methods = list(report.signs)
    tasks = report.tasks
    return {
        "grace": grace.__version__,
        "directory": directory,
        "written": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="minutes"),
        "runs": sum(len(group.runs) for group in report.groups),
        "palette": {"light": COLOURS, "dark": COLOURS_ON_DARK, "markers": MARKERS},
        "tasks": [_task(name, report) for name in tasks],
        "links": [network_name(one, links) for one in links],
        "families": families,
        "methods": [
            {"name": name, "colour": own.colour, "dash": own.dash, "marker": own.marker}
            for name, own in report.signs.items()
        ],
        "groups": [
            {
                "task": tasks.index(first.task),
                "link": links.index(network(first)),
                "family": families.index(first.family),
                "method": methods.index(first.method),
                **_group(group),
            }
            for group, first in zip(report.groups, firsts, strict=True)
        ],
        "codecs": [
            {key: _short(value) if isinstance(value, float) else value for key, value in row.items()}
            for row in report.found.codecs
        ],
        "failed": [
            {"file": run.file, "task": run.task, "method": run.method, "link": run.link, "workers": run.workers,
             "seed": run.seed, "error": run.error, "command": run.command}
            for run in report.failed
        ],
        "skipped": [{"file": file, "why": why} for file, why in report.skipped],
        "figures": [{"name": one.name, "title": one.title, "survey": one.survey} for one in report.figures],
        "missing": [
            {"title": one.title, "survey": one.survey, "needs": one.needs, "command": command_for(one, directory)}
            for one in report.missing
        ],
        "machines": sorted({f"{first.machine}; {first.versions}" for first in firsts}),
    }  # fmt: skip


def command_for(figure: Figure, directory: str) -> str:
    """The command that makes the figure's data."""
    return figure.command.format(directory=directory)


def _task(name: str, report: Report) -> dict[str, Any]:
    runs = [run for group in report.groups for run in group.runs if run.task == name]
    targets = {run.target for run in runs if run.target is not None}
    return {
        "name": name,
        "metric": runs[0].metric,
        "higher": runs[0].higher,
        "share": is_share(runs[0].metric),
        "target": targets.pop() if len(targets) == 1 else None,
        "data": ", ".join(sorted({run.data for run in runs if run.data})),
        "procedural": any(run.procedural for run in runs),
        "row": ", ".join(sorted({run.paper_row for run in runs if run.paper_row})),
        "parameters": sorted({run.parameters for run in runs}),
    }


def _group(group: Group) -> dict[str, Any]:
    first, curve = group.first, group.curve
    spread_out = len(group.runs) > 1
    out: dict[str, Any] = {
        "label": group.label,
        "reference": group.reference,
        "baseline": first.baseline,
        "workers": first.workers,
        "transport": first.transport,
        "seeds": [run.seed for run in group.runs],
        "steps": first.steps,
        "procedural": first.procedural,
        "adjusted": first.adjusted,
        "reached": group.reached,
        "disagree": sum(run.agree is False for run in group.runs),
        "front": {"throughput": group.front_throughput, "sent": group.front_sent},
        "evaluations": curve.evaluations,
        "files": [run.file for run in group.runs],
        "curve": {
            "epoch": [_short(x) for x in curve.epoch],
            "seconds": [_short(x) for x in curve.seconds],
            "quality": [_short(value.median) for value in curve.quality],
        },
    }
    if spread_out:
        out["curve"] |= {
            "low": [_short(value.low) for value in curve.quality],
            "high": [_short(value.high) for value in curve.quality],
        }
    for name in _MEASURES:
        value: Spread = getattr(group, name)
        out[name] = (
            [_short(value.median), _short(value.low), _short(value.high)] if spread_out else [_short(value.median)]
        )
    return out


def _short(value: float | None) -> float | None:
    """Four significant digits, and integers as such: what a figure can show."""
    if value is None or value == 0:
        return value
    rounded = float(f"{value:.4g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded
