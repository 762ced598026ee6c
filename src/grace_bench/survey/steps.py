"""Times of a step of each task under each method, over the networks of the survey: a table, which a machine measures
once, idle (:mod:`grace_bench.advise.steps`). Everything else of the survey needs no quiet machine.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct

from grace_bench.runs.results import DocumentError, SchemaHeader, decode_as
from grace_bench.survey.row import SurveyRow

SCHEMA, VERSION = "grace.survey.steps", 1
LINKS = {"100 Mbit/s": "100mbit", "1 Gbit/s": "1gbit", "10 Gbit/s": "10gbit"}
Milliseconds = Annotated[float, Meta(gt=0)]


class TaskSteps(Struct, frozen=True):
    """Steps of a task. step_ms: without communication, measured. methods: by their recipe, milliseconds over each of LINKS."""

    workers: int
    batch: int
    step_ms: Milliseconds
    methods: dict[str, dict[str, Milliseconds]]


class StepTable(Struct, frozen=True, kw_only=True):
    """The table. busy: whether the machine did other work; then nothing is concluded from it."""

    created: str
    system: str
    cores: float
    grace: str
    torch: str
    busy: bool
    tasks: dict[str, TaskSteps]
    schema: Literal["grace.survey.steps"] = "grace.survey.steps"
    version: Literal[1] = 1

    def seconds(self, row: SurveyRow, over: str) -> float | None:
        """Seconds of a step of this run over one of LINKS; None: not measured."""
        there = self.tasks.get(row.task)
        if there is None or (there.workers, there.batch) != (row.workers, row.batch):
            return None
        ms = there.methods.get(row.method, {}).get(over)
        return None if ms is None else ms / 1000


def read_steps(path: Path) -> StepTable | None:
    """The table in a file; None: there is no file.

    Raises:
        DocumentError: it is no such table, or of another version.
    """
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        head = decode_as(text, SchemaHeader)
        if (head.schema, head.version) != (SCHEMA, VERSION):
            raise DocumentError(f"{head.schema!r}, version {head.version!r}; legal: {SCHEMA!r}, version {VERSION}")
        table: StepTable = decode_as(text, StepTable)
    except DocumentError as error:
        raise DocumentError(f"{path} is no table of steps: {error}; make it with grace survey steps") from error
    return table


def to_measure(rows: Iterable[SurveyRow]) -> dict[tuple[str, int, int], list[str]]:
    """The methods of each task, with the number of workers and the batch that most of its runs have."""
    places: dict[str, dict[tuple[int, int], list[SurveyRow]]] = {}
    for row in rows:
        if row.source == "embedded" and row.device == "cpu":
            places.setdefault(row.task, {}).setdefault((row.workers, row.batch), []).append(row)
    methods = {}
    for task, of in sorted(places.items()):
        (workers, batch), runs = max(of.items(), key=lambda item: len(item[1]))
        if workers > 1:
            methods[task, workers, batch] = sorted({row.method for row in runs})
    return methods
