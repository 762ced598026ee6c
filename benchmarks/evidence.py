"""Writes what an installed package knows of methods' quality: by the archive, and by one rule."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence

import msgspec

import grace
from grace.auto.classes import LIMITS
from grace_bench.runs.results import LR_ASKED
from grace_bench.survey.evidence import (
    Quality,
    Table,
    Task,
    TaskQualities,
    judge,
    loss_of,
    quality_of,
    read_evidence,
    sort_rows,
)
from grace_bench.survey.row import SurveyRow


def gather(rows: Iterable[SurveyRow]) -> Table:
    """The qualities on embedded data on the processor, by task and method."""
    return {key: _qualities(of) for key, of in sort_rows(rows).items()}


def chose_lr(row: SurveyRow) -> bool:
    """True if somebody asked for its learning rate, instead of the one that suits task and method."""
    return (row.why or "").startswith(LR_ASKED)


def to_known(rows: Sequence[SurveyRow]) -> str:
    """The text of the table by which ``auto`` permits methods; see :mod:`grace.auto.classes`."""
    rows = [row for row in rows if not chose_lr(row)]
    return write_known(gather(rows), _metrics(rows))


def write_known(table: Table, metrics: dict[Task, str]) -> str:
    """The same, from what was gathered: of each method the strictest class whose limit it keeps on two tasks or more."""
    known = {}
    for name in sorted({name for of in table.values() for name in of}):
        evidence = judge(name, table, metrics)
        if evidence is None:
            continue
        fits = [quality for quality, limit in LIMITS.items() if _keeps(name, table, metrics, limit)]
        plain = grace.spell(grace.method("none"))
        lost = loss_of(*(table[evidence.protocol, evidence.task, evidence.steps][method] for method in (name, plain)))
        known[name] = {
            "quality": fits[0] if fits else "", "loss": round(lost, 4) if math.isfinite(lost) else None,
            "task": evidence.task, "tasks": evidence.tasks, "runs": evidence.runs,
        }  # fmt: skip
    return json.dumps(known, indent=1) + "\n"


def _keeps(name: str, table: Table, metrics: dict[Task, str], limit: float) -> bool:
    evidence = judge(name, table, metrics, limit)
    return evidence is not None and evidence.verdict == "keeps"


def read_known() -> str:
    """Quality of each known method, made by :func:`to_known` from the evidence in this package."""
    return write_known(*read_evidence())


def to_json(rows: Sequence[SurveyRow]) -> str:
    """The text of the file: what methods do with the learning rate that suits task and method, not with a chosen one."""
    rows = [row for row in rows if not chose_lr(row)]
    metrics = _metrics(rows)
    places = [TaskQualities(*task, metrics[task], of) for task, of in gather(rows).items()]
    return json.dumps(msgspec.to_builtins(places), indent=1) + "\n"


def _metrics(rows: Iterable[SurveyRow]) -> dict[Task, str]:
    return {(row.protocol, row.task, row.steps): row.metric for row in rows}


def _qualities(of: dict[str, list[SurveyRow]]) -> dict[str, Quality]:
    return {method: _quality(runs) for method, runs in of.items()}


def _quality(runs: Sequence[SurveyRow]) -> Quality:
    ended = [row.sent[-1] / row.fp32_bytes for row in runs if row.final is not None]
    return quality_of([row.final for row in runs], higher=runs[0].better == "higher", sent=ended)
