"""The document of a run, ``grace.result``: its types, and with them its encoder, decoder and JSON Schema.

Bytes are those that rank 0's collectives moved; times are rank 0's, without evaluation and loading. What a run could
not measure is null.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

from grace.errors import GraceError

SCHEMA, VERSION = "grace.result", 3
LR_ASKED = "lr as asked for"  # begins the reason of a learning rate that somebody chose
Count: TypeAlias = Annotated[int, Meta(ge=0)]


class DocumentError(GraceError, ValueError):
    """A document that is not what it claims to be; the message names the field."""


class LinkSetting(Struct, frozen=True):
    """The network between the workers; null where nothing was asked of it."""

    name: str = "none"
    bits_per_second: float | None = None
    latency_seconds: float | None = None


class Environment(Struct, frozen=True):
    """The environment of a run, as far as it bears on the numbers."""

    python: str = "?"
    torch: str = "?"
    grace: str = "?"
    numpy: str = "?"
    system: str = "?"
    cores: Count | None = None
    threads_per_worker: Count | None = None
    backend: str = "gloo"
    tcp: str | None = None
    device: str = "cpu"


class Data(Struct, frozen=True):
    """See :class:`grace_bench.tasks.contract.DataInfo`."""

    name: str
    procedural: bool = False
    digest: str = ""
    source: str = ""


class Optimizer(Struct, frozen=True):
    """The optimizer that trained. ``why``: the reason for which it is not the task's own; null where it is."""

    name: str = ""
    peak_lr: float | None = None
    lr_scale: float = 1.0
    momentum: float | None = None
    why: str | None = None


class ModelSize(Struct, frozen=True):
    """The size of the trained model, and how much of it a method compressed."""

    parameters: Count
    tensors: Count
    compressed_parameters: Count
    compressed_tensors: Count


class Target(Struct, frozen=True):
    """A quality, and the first evaluation that reached it; nulls if none did."""

    value: float
    seconds: float | None = None
    epoch: float | None = None
    step: Count | None = None


class StepTraffic(Struct, frozen=True):
    """Traffic of a worker's collectives in a step of the steady state."""

    rounds_per_step: float
    sent_bytes_per_step: float
    received_bytes_per_step: float
    fp32_allreduce_bytes_per_step: float
    relative_to_fp32: float | None


class Nic(Struct, frozen=True):
    """Traffic that the worker's network interface counted meanwhile."""

    sent_bytes_per_step: float
    received_bytes_per_step: float


class Quartiles(Struct, frozen=True):
    """The median and the quartiles around it."""

    median: float
    low: float
    high: float


class Times(Struct, frozen=True):
    """The steady state in milliseconds a step, all workers' samples per second, and the seconds of all steps. ``cpu_ms``: what
    the processor worked for a worker in a step, all its threads together; it does not count waiting.
    """

    step_ms: Quartiles
    codec_ms: float | None = None
    exchange_ms: float | None = None
    exposed_ms: float | None = None
    compute_ms: float | None = None
    samples_per_second: float | None = None
    total_seconds: float | None = None
    cpu_ms: float | None = None


class PeakMemory(Struct, frozen=True):
    """The most that rank 0 held."""

    peak_rss_bytes: Count


class CollectiveTerms(Struct, frozen=True):
    """The link model's data about one kind of collective, so that a document can predict other networks."""

    per_step: float
    bytes_per_step: float
    ms_per_step: float
    hop_us: float
    probed_bytes: list[int]
    probed_ms: list[float]
    cpu_ns_per_byte: float


class Terms(Struct, frozen=True):
    """The input of the link model. ``ready``, ``shares``: of the buckets, see :class:`grace_bench.runs.link_model.Work`."""

    compute_ms: float
    compute_cpu_ms: float
    codec_cpu_ms: float
    exchange_ms: float
    moving_cpu_ms: float
    cores_per_worker: float
    threads: Count
    ready: list[float]
    shares: list[float]
    collectives: dict[str, CollectiveTerms]


class Prediction(Struct, frozen=True):
    """The link model's step, and how far it is from the measured one."""

    step_ms: float
    relative_error: float
    terms: Terms | None = None


class Point(Struct, frozen=True):
    """An evaluation. ``metrics``: the task's own, null where one is not finite; the rest is so far."""

    step: Count
    epoch: float
    seconds: float
    sent_bytes: Count
    train_loss: float | None
    metrics: dict[str, float | None]


class _Run(Struct, frozen=True, kw_only=True, tag_field="status"):
    """The part of a document that is known before the run. ``config``: see :class:`grace_bench.runs.config.RunConfig`;
    ``toolkit``: torch, tensorflow or jax; ``round``: which of several equal runs it is.
    """

    task: str
    method: str
    family: str
    recipe: str
    kind: Literal["method", "baseline", "algorithm"]
    workers: Annotated[int, Meta(ge=1)]
    seed: Count
    round: Count = 0
    granularity: Literal["parameter", "bucket", "model"] = "parameter"
    link: LinkSetting = LinkSetting()
    transport: str = "gloo"
    toolkit: str = "torch"
    created: str = ""
    command: list[str] = []
    config: dict[str, Any] = {}
    schema: Literal["grace.result"] = "grace.result"
    version: Literal[3] = 3


class Failure(_Run, frozen=True, kw_only=True, tag="failed"):
    """A run that failed."""

    error: str


class Result(_Run, frozen=True, kw_only=True, tag="ok"):
    """A run that succeeded; its replicas, if it has any, have been found equal.

    Attributes:
        metric: the headline among those of the curve. final, best: its last and its best value; null: not finite.
        replicas_agree: null where nothing was exchanged.
    """

    steps: Count
    batch_per_worker: Count
    metric: str
    better: Literal["higher", "lower"]
    final: float | None
    best: float | None
    model: ModelSize
    optimizer: Optimizer
    traffic: StepTraffic
    time: Times
    curve: list[Point]
    environment: Environment = Environment()
    steps_per_epoch: Count = 0
    replicas_agree: bool | None = None
    nonfinite: Count = 0
    paper_row: str | None = None
    data: Data | None = None
    target: Target | None = None
    nic: Nic | None = None
    memory: PeakMemory | None = None
    prediction: Prediction | None = None
    auto: dict[str, Any] | None = None

    @property
    def measured(self) -> bool:
        """True if its quality was measured; random batches teach nothing. Where it was, no value at the end is divergence."""
        return bool(self.curve) and (self.data is None or self.data.source != "synthetic")


Document: TypeAlias = Result | Failure


class SchemaHeader(Struct):
    """The first fields of every document of Grace."""

    schema: Any = None
    version: Any = None


def encode(document: Any) -> str:
    """A document, or plain data, as JSON, indented; what is not finite is null."""
    return msgspec.json.format(msgspec.json.encode(document), indent=1).decode() + "\n"


def decode(text: bytes | str) -> Document:
    """A document of this version.

    Raises:
        DocumentError: it is not one; the message names the field and what is wrong with it.
    """
    head = decode_as(text, SchemaHeader)
    if head.schema != SCHEMA:
        raise DocumentError(f"not a result: its schema is {quoted(head.schema)}; legal: {SCHEMA}")
    if head.version != VERSION or isinstance(head.version, bool):
        raise DocumentError(
            f"{SCHEMA} of version {quoted(head.version)}; this Grace reads {VERSION}: read it with its own"
        )
    document: Document = decode_as(text, Document)
    return document


def decode_as(text: bytes | str, kind: Any) -> Any:
    """JSON as a type.

    Raises:
        DocumentError: it is not of this type; the message names the field.
    """
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.ValidationError as error:
        raise DocumentError(by_path(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DocumentError(f"not JSON: {error}") from error
    except RecursionError as error:
        raise DocumentError("nested too deeply to be a document") from error


def by_path(error: msgspec.ValidationError) -> str:
    """``time.step_ms.median: expected `float`, got `str```: the field first."""
    text, _, path = str(error).partition(" - at `$")
    text = text[:1].lower() + text[1:]
    path = path.strip("`.")
    return f"{path}: {text}" if path else text


def quartiles(values: Sequence[float]) -> dict[str, float]:
    """The median and the quartiles around it, as the fields of :class:`Quartiles`."""
    if len(values) < 2:
        return dict.fromkeys(("median", "low", "high"), values[0])
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return {"median": median, "low": low, "high": high}


def quoted(value: object) -> str:
    """A value as an error quotes it."""
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def schema() -> dict[str, Any]:
    """The JSON Schema of a document."""
    return {"title": f"{SCHEMA}, version {VERSION}", **msgspec.json.schema(Document)}
