"""Writes what an installed package knows of methods' quality: by the archive, and by one rule."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import msgspec

from grace.auto.classes import SCHEMA, VERSION, StepsMultiple
from grace_bench.runs.results import LR_ASKED
from grace_bench.survey.evidence import (
    TASKS,
    Quality,
    Table,
    Task,
    TaskQualities,
    judge,
    judged_of,
    limit_of,
    loss_of,
    pairs_of,
    quality_of,
    sort_rows,
)
from grace_bench.survey.frontier import Place, find_frontier
from grace_bench.survey.row import SurveyRow


def gather(rows: Iterable[SurveyRow]) -> Table:
    """The qualities on embedded data on the processor, by task and method."""
    return {key: _qualities(of) for key, of in sort_rows(rows).items()}


def chose_lr(row: SurveyRow) -> bool:
    """True if somebody asked for its learning rate, instead of the one that suits task and method."""
    return (row.why or "").startswith(LR_ASKED)


def to_known(rows: Sequence[SurveyRow], sources: Sequence[Source] = ()) -> str:
    """The text of the table by which ``auto`` permits methods; see :mod:`grace.auto.classes`. ``sources``: of the rows."""
    rows = [row for row in rows if not chose_lr(row)]
    return write_known(gather(rows), metrics_of(rows), find_frontier(rows), sources, {row.workers for row in rows})


class Source(msgspec.Struct, frozen=True):
    """An archive. file: its name. runs: in it. digest: the first half of the SHA-256 of the file."""

    file: str
    runs: int
    digest: str

    @classmethod
    def of(cls, path: Path, rows: Sequence[SurveyRow]) -> Source:
        """The source of these rows, all that the file has."""
        return cls(path.name, len(rows), hashlib.sha256(path.read_bytes()).hexdigest()[:32])


def write_known(
    table: Table,
    metrics: dict[Task, str],
    frontier: Mapping[Task, Mapping[str, Place]] | None = None,
    sources: Sequence[Source] = (),
    workers: Collection[int] = (4,),
) -> str:
    """The same, from what was gathered: of each method the least limit that it keeps on two tasks or more, and its steps."""
    known = {}
    for name in sorted({name for of in table.values() for name in of}):
        evidence = judge(name, table, metrics)
        if evidence is None:
            continue
        limit, pairs = limit_of(name, table), pairs_of(name, table)
        lost = loss_of(*pairs[evidence.protocol, evidence.task, evidence.steps])
        steps = _steps(judged_of(pairs), name, frontier or {})
        known[name] = {
            "limit": None if limit is None else _raised(limit), "loss": _rounded(lost), "task": evidence.task,
            "tasks": evidence.tasks, "runs": evidence.runs, "steps": None if steps is None else asdict(steps),
        }  # fmt: skip
    document = {
        "schema": SCHEMA, "version": VERSION, "sources": msgspec.to_builtins(sources), "workers": sorted(workers),
        "toolkits": ["torch"], "methods": known,
    }  # fmt: skip
    return json.dumps(document, indent=1) + "\n"


def _raised(value: float) -> float:
    """Rounds up: a limit that is kept stays one, up to the error of a float."""
    return math.ceil(1e4 * value - 1e-6) / 1e4


def _rounded(lost: float) -> float | None:
    return round(lost, 4) if math.isfinite(lost) else None


def _steps(judged: Sequence[Task], name: str, frontier: Mapping[Task, Mapping[str, Place]]) -> StepsMultiple | None:
    """The multiple on the task where its upper end is largest; None: there is one without, or there are too few tasks."""
    places = [(task, frontier[task][name].steps) for task in judged if name in frontier.get(task, {})]
    known = [(task, of) for task, of in places if of.low is not None and of.high is not None and math.isfinite(of.high)]
    if len(known) < TASKS or len(known) < len(places):
        return None
    task, of = max(known, key=lambda pair: pair[1].high or 0.0)
    assert of.low is not None
    assert of.high is not None
    return StepsMultiple(round(of.median, 4), round(of.low, 4), _raised(of.high), task[1], of.how == "matched")


def to_json(rows: Sequence[SurveyRow]) -> str:
    """The text of the file: what methods do with the learning rate that suits task and method, not with a chosen one."""
    rows = [row for row in rows if not chose_lr(row)]
    metrics = metrics_of(rows)
    places = [TaskQualities(*task, metrics[task], of) for task, of in gather(rows).items()]
    return json.dumps(msgspec.to_builtins(places), indent=1) + "\n"


def metrics_of(rows: Iterable[SurveyRow]) -> dict[Task, str]:
    """The metric of each task."""
    return {(row.protocol, row.task, row.steps): row.metric for row in rows}


def _qualities(of: dict[str, list[SurveyRow]]) -> dict[str, Quality]:
    return {method: _quality(runs) for method, runs in of.items()}


def _quality(runs: Sequence[SurveyRow]) -> Quality:
    ended = [row.sent[-1] / row.fp32_bytes for row in runs if row.final is not None]
    return quality_of([row.final for row in runs], higher=runs[0].better == "higher", sent=ended)
