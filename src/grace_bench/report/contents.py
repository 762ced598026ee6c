"""The contents of a report: the figures that have data, and everything that the page draws, as one document."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grace
from grace_bench import machine
from grace_bench.report import charts, marks
from grace_bench.report.groups import OVER_LIMIT, Experiment, group_runs, place, result_of
from grace_bench.report.read import LoadedRuns
from grace_bench.report.theme import LIMIT, TONES, Sign, config, sign
from grace_bench.runs.baselines import NO_COMMUNICATION
from grace_bench.runs.results import Failure, Result
from grace_command.text import plural


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of the report. ``shows``: whether a group is in it; ``command``: makes the data without which it is missing."""

    name: str
    title: str
    survey: str
    needs: str
    command: str
    shows: Callable[[Experiment], bool]

    def has_data(self, report: ReportContents) -> bool:
        """True if there is anything to draw."""
        if self.name == "codec-latency":
            return bool(report.loaded.codecs)
        members = [group for group in report.groups if self.shows(group)]
        if self.name == "links":
            return any(len(networks([g for g in members if g.first.task == task])) > 1 for task in report.tasks)
        return bool(members)


@dataclass(frozen=True, slots=True)
class ReportContents:
    """All that is reported of a directory."""

    loaded: LoadedRuns
    groups: list[Experiment]
    skipped: list[tuple[str, str]]
    signs: dict[str, Sign]

    @property
    def failed(self) -> list[tuple[str, Failure]]:
        """The runs that ended with an error, by their files."""
        return [(run.file, run.document) for run in self.loaded.runs if isinstance(run.document, Failure)]

    @property
    def figures(self) -> list[Figure]:
        """Sections with data, in the order of the survey."""
        return [figure for figure in FIGURES if figure.has_data(self)]

    @property
    def missing(self) -> list[Figure]:
        """Sections without data."""
        return [figure for figure in FIGURES if not figure.has_data(self)]

    @property
    def tasks(self) -> list[str]:
        """With results, by name."""
        return sorted({group.first.task for group in self.groups})


Network = tuple[str, float, str]  # a link, its latency in seconds, a transport


def network(run: Result) -> Network:
    """The network that a run used."""
    return run.link.name, run.link.latency_seconds or 0.0, run.transport


def networks(groups: Sequence[Experiment]) -> list[Network]:
    """From the slowest to the fastest; a link without a limit is the fastest."""
    speeds = {network(group.first): group.first.link.bits_per_second or math.inf for group in groups}
    return sorted(speeds, key=lambda network: (speeds[network], -network[1], network))


def network_name(network: Network, among: Sequence[Network]) -> str:
    """Its link, with latency and transport where others differ in them."""
    link, latency, transport = network
    parts = ["no limit" if link == "none" else link]
    if len({other[1] for other in among}) > 1 and latency:
        parts.append(f"{1000 * latency:g} ms")
    if len({other[2] for other in among}) > 1:
        parts.append(transport)
    return ", ".join(parts)


def is_baseline(run: Result) -> bool:
    """True if it is not a method of the survey but what one would use otherwise; uncompressed training counts too."""
    return run.family == "baseline"


def describe_machine(run: Result) -> str:
    """The machine that it ran on, in words."""
    where = run.environment
    return f"{where.system}, {where.cores} cores, {plural(where.threads_per_worker, 'thread')} per worker"


def _describe(run: Result) -> str:
    where = run.environment
    return f"{describe_machine(run)}; grace {where.grace}, python {where.python}, torch {where.torch}"


def _line(group: Experiment) -> str | None:
    """The label of the line through this group's step, if it has one: others are compared with it."""
    names = {NO_COMMUNICATION: "no communication", "ddp-bf16": "bf16"}
    return "fp32" if group.fp32 else names.get(group.first.method)


def is_share(metric: str) -> bool:
    """True if this metric is a part of one, shown in percent: accuracies, hit rates, overlaps."""
    return re.search(r"accuracy|^top\d|^hr\d|iou|dice|recall", metric) is not None


_TRAIN = "grace bench train --task {{task}} --methods none,topk {more}--out {{directory}}".format
FIGURES = (
    Figure(
        "quality-epoch-time", "Quality against epochs and against time", "1",
        "runs that evaluate the model more than once", _TRAIN(more=""),
        lambda group: not group.reference and sum(value.median is not None for value in group.curve.quality) > 1,
    ),
    Figure(
        "quality-throughput", "Quality against throughput", "6",
        "runs with a final quality and a throughput", _TRAIN(more=""),
        lambda group: not group.reference and None not in (group.median("final"), group.median("throughput")),
    ),
    Figure(
        "quality-bytes", "Quality against bytes sent", "7",
        "runs of two workers or more with a final quality", _TRAIN(more="--workers 2 "),
        lambda group: not group.reference and group.median("final") is not None and bool(group.median("sent")),
    ),
    Figure(
        "codec-latency", "Codec latency", "8",
        "timings of the codecs, codecs*.json", "grace bench codecs --json > {directory}/codecs.json",
        lambda group: False,
    ),
    Figure(
        "step-time", "Where the time of a step goes", "",
        "runs with a step time", _TRAIN(more=""),
        lambda group: group.median("step_ms") is not None,
    ),
    Figure(
        "links", "Transports and links", "9 and 10",
        "runs of one task over two links or transports", _TRAIN(more="--link 1gbit,10gbit "),
        lambda group: group.median("throughput") is not None,
    ),
    Figure(
        "prediction", "What the link model predicts", "",
        "runs with a prediction, as over a shaped link", _TRAIN(more="--link 1gbit "),
        lambda group: group.median("prediction_error") is not None,
    ),
)  # fmt: skip


def report_of(loaded: LoadedRuns) -> ReportContents:
    """Groups the runs and gives every method its sign."""
    groups, older = group_runs(loaded.runs)
    names = sorted({group.first.method for group in groups} | {row["method"] for row in loaded.codecs if row["method"]})
    baselines = {group.first.method for group in groups if is_baseline(group.first)}
    ordinary = [name for name in names if name not in baselines]
    limit = {name: LIMIT for name in baselines if name == NO_COMMUNICATION}
    inked = sorted(baselines - set(limit), key=_fp32_first)
    signs = {name: sign(k, baseline=True) for k, name in enumerate(inked)} | limit
    signs |= {name: sign(k) for k, name in enumerate(ordinary)}
    return ReportContents(loaded, groups, [*loaded.skipped, *older], signs)


def _fp32_first(name: str) -> tuple[int, str]:
    order = ("ddp-fp32", "ddp-bf16", "ddp-powersgd", "none")
    return (order.index(name) if name in order else len(order), name)


def page_document(report: ReportContents, directory: str) -> dict[str, Any]:
    """All that is drawn, by the page and by :mod:`grace_bench.report.files`: rows, and the figures without them.

    Indices stand for repeated names, and numbers have four significant digits. A row is described in
    :mod:`grace_bench.report.charts`.
    """
    firsts = [group.first for group in report.groups]
    links = networks(report.groups)
    families = sorted({first.family for first in firsts}, key=lambda name: (name != "baseline", name))
    methods = list(report.signs)
    tasks = report.tasks
    machines = sorted({_describe(first) for first in firsts})
    return {
        "grace": grace.__version__,
        "directory": Path(directory).name or directory,
        "written": machine.now("minutes"),
        "runs": sum(len(group.runs) for group in report.groups),
        "measured": sum(result_of(run).measured for group in report.groups for run in group.runs),
        "config": {tone: config(tone) for tone in TONES},
        "tasks": [_task(name, report) for name in tasks],
        "links": [network_name(network, links) for network in links],
        "families": families,
        "methods": [
            {"name": name, **own.shape, **{tone: own.paint(tone) for tone in TONES}} for name, own in report.signs.items()
        ],
        "groups": [
            {
                "task": tasks.index(first.task),
                "link": links.index(network(first)),
                "family": families.index(first.family),
                "method": methods.index(first.method),
                "machine": machines.index(_describe(first)),
                **_row(group),
            }
            for group, first in zip(report.groups, firsts, strict=True)
        ],
        "codecs": [codec_row(row) for row in report.loaded.codecs],
        "codec_charts": {unit: [charts.codecs(unit)] for unit in ("time", "ratio")},
        "failed": [
            {"file": file, "task": run.task, "method": run.method, "link": run.link.name, "workers": run.workers,
             "seed": run.seed, "error": run.error, "command": " ".join(run.command)}
            for file, run in report.failed
        ],
        "skipped": [{"file": file, "why": why} for file, why in report.skipped],
        "figures": [{"name": figure.name, "title": figure.title, "survey": figure.survey} for figure in report.figures],
        "missing": [
            {
                "title": figure.title, "survey": figure.survey, "needs": figure.needs,
                "command": command_for(figure, report, directory),
            }
            for figure in report.missing
        ],
        "machines": machines,
    }  # fmt: skip


def command_for(figure: Figure, report: ReportContents, directory: str) -> str:
    """The command that makes the figure's data, with a task of this report if it has one."""
    return figure.command.format(task=report.tasks[0] if report.tasks else "digits", directory=directory)


def _task(name: str, report: ReportContents) -> dict[str, Any]:
    runs = [result_of(run) for group in report.groups for run in group.runs if run.document.task == name]
    targets = {run.target.value for run in runs if run.target is not None}
    data = [run.data for run in runs if run.data is not None]
    task = {
        "name": name,
        "metric": runs[0].metric,
        "higher": runs[0].better == "higher",
        "share": is_share(runs[0].metric),
        "target": targets.pop() if len(targets) == 1 else None,
        "data": ", ".join(sorted({info.name for info in data if info.name})),
        "procedural": any(info.procedural for info in data),
        "row": ", ".join(sorted({run.paper_row for run in runs if run.paper_row})),
        "parameters": sorted({run.model.parameters for run in runs}),
    }
    groups = [group for group in report.groups if group.first.task == name and not group.reference]
    share = is_share(runs[0].metric)
    places: dict[object, list[float | None]] = {}
    durations: dict[object, list[float | None]] = {}
    for group in groups:
        places.setdefault(place(group.runs[0]), []).append(group.median("step_ms"))
        durations.setdefault(place(group.runs[0]), []).append(max(group.curve.seconds, default=None))
    ends = [group.median("final") for group in groups]
    ways = [value.median for group in groups for value in group.curve.quality]
    task |= {
        "ends": marks.stretch(ends, share=share), "ways": marks.stretch(ways, share=share),
        "speeds": marks.stretch([group.median("throughput") for group in groups]),
        "steps": any(marks.has_outlier(steps) for steps in places.values()),
        "durations": any(marks.has_outlier(seconds) for seconds in durations.values()),
    }  # fmt: skip
    return {**task, "charts": charts.of_task(task)}


def _row(group: Experiment) -> dict[str, Any]:
    first, curve = group.first, group.curve
    several = len(group.runs) > 1
    out: dict[str, Any] = {
        "label": group.label,
        "reference": group.reference,
        "measured": group.measured,
        "baseline": is_baseline(first),
        "workers": first.workers,
        "transport": first.transport,
        "seeds": group.seeds,
        "steps": first.steps,
        "batch": first.batch_per_worker,
        "toolkit": first.toolkit,
        "procedural": first.data is not None and first.data.procedural,
        "adjusted": first.optimizer.why or "",
        "reached": group.reached,
        "disagree": sum(result_of(run).replicas_agree is False for run in group.runs),
        "front_throughput": group.front_throughput,
        "front_sent": group.front_sent,
        "evaluations": curve.evaluations,
        "figures": [figure.name for figure in FIGURES if figure.shows(group)],
        "curve": {
            "epoch": [_short(x) for x in curve.epoch],
            "seconds": [_short(x) for x in curve.seconds],
            "quality": [_short(value.median) for value in curve.quality],
        },
    }
    if line := _line(group):
        out |= {"fp32": group.fp32, "line": line}
    if group.rounds > 1:
        out["rounds"] = group.rounds
    if group.seeds == 1:
        out["seed"] = first.seed
    if several:
        out["curve"] |= {end: [_short(getattr(value, end)) for value in curve.quality] for end in ("low", "high")}
    for name, value in group.measures.items():
        if name in ("cpu_ms", OVER_LIMIT) and group.rounds == 1:
            continue  # of one round they say no more than the step does
        out[name] = _short(value.median)
        if name == "final" or {value.low, value.high} != {
            value.median
        }:  # axes begin and end at the ranges of qualities
            out |= {f"{name}_low": _short(value.low), f"{name}_high": _short(value.high)}
    return out


def codec_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """A timing's row: its median and quartiles as multiples of an addition, and in microseconds."""
    ratio, low, high, time = (row[key] for key in ("ratio", "low", "high", "microseconds"))
    edges = [ratio if edge is None else edge for edge in (low, high)]
    scale = time / ratio if time is not None and ratio else None
    out = {key: row[key] for key in ("operation", "method", "size", "threads", "goal")}
    out |= {"name": row["method"] or row["operation"], "kind": row["operation"] if row["method"] else "kernel"}
    times = [time, *(time if scale is None or edge is None else scale * edge for edge in edges)]
    for unit, values in (("ratio", [ratio, *edges]), ("time", times)):
        out |= dict(zip((unit, f"{unit}_low", f"{unit}_high"), map(_short, values), strict=True))
    return out


def _short(value: float | None) -> float | None:
    """Four significant digits, and integers as such: what a figure can show."""
    if value is None or value == 0:
        return value
    rounded = float(f"{value:.4g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded
