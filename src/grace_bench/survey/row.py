"""The document of one run of the survey, ``grace.survey``: a row of the archive."""

from __future__ import annotations

import hashlib
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from grace.contract.knobs import as_call
from grace.registry import method, spell
from grace_bench.runs.algorithms import ALGORITHMS, find_algorithm
from grace_bench.runs.config import RunConfig
from grace_bench.runs.record import file_name
from grace_bench.runs.results import Count, DocumentError, SchemaHeader, decode_as

SCHEMA, VERSION = "grace.survey", 1
TRIAL = "-trial"  # ends the name of a protocol whose runs choose a learning rate: no measure of a method


class SurveyRow(Struct, frozen=True, kw_only=True):
    """A run. Two rows of one :attr:`key` are the same run.

    Attributes:
        protocol: by which its length and learning rate were chosen.
        method: as a string. recipe: with all its knobs.
        steps, batch: its length, and the samples of one worker and step. peak_lr, momentum: of the optimizer; why: the
            reason for which they are not the task's own; null where they are.
        final, best: of the metric; null: not finite. diverged: the first step whose loss was not finite; null: none.
        at, values, sent: the evaluations: after how many steps, with what result, after how many bytes of one worker.
        parameters: of the model. rounds: of collectives, in the whole run.
        data, digest, source, procedural: see :class:`grace_bench.tasks.contract.DataInfo`.
        device: "cpu" or the name of a GPU. command: repeats the run in real worker processes.
        cpu_seconds: processor time that the run took in one process: no measure of the method.
    """

    protocol: Annotated[str, Meta(min_length=1)]
    task: str
    method: str
    recipe: str
    workers: Annotated[int, Meta(ge=1)]
    seed: Count
    steps: Annotated[int, Meta(ge=1)]
    steps_per_epoch: Count
    batch: Annotated[int, Meta(ge=1)]
    optimizer: str
    peak_lr: float
    momentum: float | None
    why: str | None
    metric: str
    better: Literal["higher", "lower"]
    final: float | None
    best: float | None
    diverged: Count | None
    at: list[int]
    values: list[float | None]
    sent: list[int]
    parameters: Count
    rounds: Count
    data: str
    digest: str
    source: str
    procedural: bool
    grace: str
    torch: str
    numpy: str
    python: str
    device: str
    command: str
    cpu_seconds: float
    schema: Literal["grace.survey"] = "grace.survey"
    version: Literal[1] = 1

    @property
    def key(self) -> tuple[str, str, str, int, int, int, int, float, str, str]:
        """The fields in which one run differs from another."""
        return (
            self.protocol, self.task, self.recipe, self.workers, self.seed, self.steps, self.batch, self.peak_lr,
            self.digest, self.device,
        )  # fmt: skip

    @property
    def fp32_bytes(self) -> float:
        """Bytes that one worker would have sent in the whole run with a ring all-reduce of fp32."""
        return 2 * (self.workers - 1) / self.workers * 4 * self.parameters * self.steps


def name_of(text: str) -> tuple[str, str]:
    """The method of a row, and its recipe: of a method as Grace spells it, of an algorithm as it was written.

    Raises:
        GraceError: there is no such, or it cannot be made.
    """
    if (algorithm := find_algorithm(text)) is not None:
        return text.strip(), algorithm.recipe
    made = method(text)
    return spell(made), as_call(made)


def is_algorithm(method: str) -> bool:
    """True if a row is of an algorithm: an outer loop, an optimizer that exchanges, or gossip."""
    return method.partition(":")[0] in ALGORITHMS


def run_file(protocol: str, config: RunConfig) -> str:
    """A file name for the row of this run."""
    name = file_name(config).removesuffix(".json")
    mark = hashlib.sha256(protocol.encode()).hexdigest()[:4] if not protocol.isalnum() else protocol
    return f"{mark}-{name}.json"


def decode_row(text: bytes | str) -> SurveyRow:
    """A row of this version.

    Raises:
        DocumentError: it is not one; the message names the field, and what is wrong with it.
    """
    head = decode_as(text, SchemaHeader)
    if (head.schema, head.version) != (SCHEMA, VERSION):
        raise DocumentError(
            f"not a run of the survey: {head.schema!r}, version {head.version!r}; legal: {SCHEMA!r}, version {VERSION}: "
            "make it with grace survey run"
        )
    row: SurveyRow = decode_as(text, SurveyRow)
    return row


def same_run(row: SurveyRow, other: SurveyRow) -> bool:
    """True if two rows say the same, up to the processor time that they took."""
    return msgspec.structs.replace(row, cpu_seconds=0) == msgspec.structs.replace(other, cpu_seconds=0)
