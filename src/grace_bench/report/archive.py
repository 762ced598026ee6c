"""The page of the survey's archive: the report's page, fed with its rows.

A task by another protocol, on official data or on a GPU is a task of its own there. Without a table of steps there are no
times, and no figure of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from grace.errors import GraceError
from grace.predict.links import link
from grace.registry import from_file, recipe
from grace.registry.text import parse
from grace_bench.report import charts
from grace_bench.report.contents import command_for, page_document, report_of
from grace_bench.report.marks import BYTES
from grace_bench.report.read import LoadedRuns, Run
from grace_bench.runs.results import (
    Data,
    Environment,
    LinkSetting,
    ModelSize,
    Optimizer,
    Point,
    Quartiles,
    Result,
    StepTraffic,
    Target,
    Times,
)
from grace_bench.survey.goals import goal_of, steps_to
from grace_bench.survey.row import TRIAL, SurveyRow
from grace_bench.survey.steps import LINKS, StepTable

FIGURE = {"name": "quality-epoch-bytes", "title": "Quality against epochs and against bytes", "survey": "1 and 7"}
_TIMED = ("quality-epoch-time", "quality-throughput", "step-time", "links")
_TIMES = ("step_ms", "compute_ms", "exposed_ms", "throughput", "total_seconds", "target_seconds", "over_limit")
STEPS = "grace survey steps {directory} --out steps.json, and then grace survey report --steps steps.json"


def archive_document(rows: Iterable[SurveyRow], name: str, steps: StepTable | None = None) -> dict[str, Any]:
    """The document that the page draws for an archive: as :func:`grace_bench.report.contents.page_document`, for its rows.

    Args:
        rows: of the archive. Trials of a learning rate are left out.
        name: of the archive, as the page gives it.
        steps: the table of steps, whose links become those of the page; None, or measured on a busy machine: no times.
    """
    kept = [row for row in rows if not row.protocol.endswith(TRIAL)]
    table = None if steps is None or steps.busy else steps
    results = _results(kept, table)
    timed = {str(at): result.time.samples_per_second is not None for at, result in enumerate(results)}
    report = report_of(LoadedRuns([Run(str(at), result) for at, result in enumerate(results)]))
    document = page_document(report, name)
    for task in document["tasks"]:
        plots = [charts.curves(task, "epoch", "epochs", clock=table is not None)]
        plots += [charts.curves(task, "sent", "bytes sent by each worker, so far", text=BYTES, clock=table is not None)]
        task["charts"] = {FIGURE["name"]: plots, **task["charts"]}
    document["runs"] = document["measured"] = len(kept)
    clocked = [figure for figure in document["figures"] if figure["name"] in _TIMED]
    untimed = [figure for figure in document["figures"] if figure["name"] == "quality-bytes"]
    document["figures"] = [FIGURE, *untimed, *(clocked if table is not None else ())]
    document["missing"] = []
    if table is None:
        needs = "a table of steps, which an idle machine measures in a few minutes"
        document["missing"] = [
            {"title": figure.title, "survey": figure.survey, "needs": needs, "command": STEPS.format(directory=name)}
            for figure in report.missing + report.figures
            if figure.name in _TIMED and command_for(figure, report, name)
        ]
    for row, group in zip(document["groups"], report.groups, strict=True):
        known = timed[group.runs[0].file]
        names = {"quality-bytes", *(_TIMED if known else ())}
        row["figures"] = [FIGURE["name"], *(name for name in row["figures"] if name in names)]
        row["curve"]["sent"] = [(row["sent"] or 0) * step for step in group.curve.step]
        if not known:
            row["curve"]["seconds"] = [None] * len(row["curve"]["epoch"])
            for key in [key for key in row if key.startswith(_TIMES)]:
                del row[key]
    document["machines"] = sorted({f"workers in one process; {_versions(row)}" for row in kept})
    document["groups"] = [{**row, "machine": 0} for row in document["groups"]]
    if len(document["machines"]) > 1:
        document["machines"] = ["workers in one process; " + "; or ".join(sorted(set(map(_versions, kept))))]
    return document


def _versions(row: SurveyRow) -> str:
    return f"grace {row.grace}, python {row.python}, torch {row.torch}"


def _results(rows: Sequence[SurveyRow], table: StepTable | None) -> list[Result]:
    """A result for each run, and for each link where there is a table of steps; what it does not know has no times."""
    tasks: dict[tuple[str, int], dict[str, list[SurveyRow]]] = {}
    for row in rows:
        tasks.setdefault((_task(row), row.steps), {}).setdefault(row.method, []).append(row)
    out = []
    for of in tasks.values():
        goal = goal_of(of) if table is not None else None
        for row in (row for runs in of.values() for row in runs):
            over: Mapping[str, str | None] = {"": None} if table is None else LINKS
            for link_name, spec in over.items():
                seconds = None if table is None else table.seconds(row, link_name)
                compute = None if table is None or seconds is None else table.tasks[row.task].step_ms
                out.append(_result(row, spec, seconds, compute, goal))
    return out


def _result(
    row: SurveyRow, spec: str | None, seconds: float | None, compute: float | None, goal: float | None
) -> Result:
    """A run over a link, with the seconds of its step, and the milliseconds of one without communication; without them, where
    they are not known.
    """
    there = LinkSetting() if spec is None else LinkSetting(spec, link(spec).bits_per_second)
    sent, epoch = row.sent[-1] / max(1, row.at[-1]), max(1, row.steps_per_epoch)
    dense = row.fp32_bytes / row.steps
    ms = 1000 * (seconds or 0.001)
    target = None
    if goal is not None and seconds is not None:
        at = steps_to(row, goal)
        known = math.isfinite(at)
        target = Target(
            float(f"{goal:.4g}"),
            at * seconds if known else None,
            at / epoch if known else None,
            int(at) if known else None,
        )
    return Result(
        task=_task(row), method=row.method, family=_family(row.method), recipe=row.recipe, kind="method",
        workers=row.workers, seed=row.seed, link=there, transport="one process", steps=row.steps,
        batch_per_worker=row.batch, metric=row.metric, better=row.better, final=row.final, best=row.best,
        model=ModelSize(row.parameters, 1, row.parameters, 1),
        optimizer=Optimizer(row.optimizer, row.peak_lr, 1.0, row.momentum, row.why),
        traffic=StepTraffic(row.rounds / row.steps, sent, sent, dense, sent / dense if dense else None),
        time=Times(
            Quartiles(ms, ms, ms), compute_ms=compute,
            exposed_ms=None if compute is None else max(0.0, ms - compute),
            samples_per_second=None if seconds is None else row.workers * row.batch / seconds,
            total_seconds=None if seconds is None else row.steps * seconds,
        ),
        curve=[
            Point(at, at / epoch, at * (seconds or 0.0), bytes_, None, {row.metric: value})
            for at, value, bytes_ in zip(row.at, row.values, row.sent, strict=True)
        ],
        environment=Environment(row.python, row.torch, row.grace, row.numpy, row.device, 1, 1),
        steps_per_epoch=row.steps_per_epoch, data=Data(row.data, row.procedural, row.digest, row.source), target=target,
    )  # fmt: skip


def _task(row: SurveyRow) -> str:
    """The name of a row's task on the page, with its protocol and, where unusual, its source and device."""
    own = [
        row.protocol,
        *([] if row.source == "embedded" else [row.source]),
        *([] if row.device == "cpu" else [row.device]),
    ]
    return f"{row.task}: {', '.join(own)}"


def _family(method: str) -> str:
    try:
        with from_file():
            return recipe(parse(method)[0]).family
    except GraceError:
        return "other"


def write_page(rows: Iterable[SurveyRow], name: str, out: Path, steps: StepTable | None = None) -> int:
    """Writes the page; its bytes.

    Raises:
        MissingExtraError: vl-convert is not installed.
        OSError: the file cannot be written.
    """
    from grace_bench.files import write_atomically
    from grace_bench.report.write import page

    text = page(archive_document(rows, name, steps))
    write_atomically(out, text)
    return len(text.encode())
