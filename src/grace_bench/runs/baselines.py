"""Baselines, which a user would otherwise pick: no communication (the limit), and what torch itself offers.

The hooks are torch's own, each behind a function of another name: torch refuses its bf16 hook by name on the CPU. PowerSGD
gets one bucket: with several, its callbacks start all-reduces in different orders on different ranks, and gloo aborts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

import grace
from grace.adapters.choosing import Choosing
from grace.collectives import NARROW, AllReduce, Tally, cost
from grace.run.options import Granularity
from grace.run.stats import Stats

NO_COMMUNICATION = "no-communication"
BASELINES = (NO_COMMUNICATION, "ddp-fp32", "ddp-bf16", "ddp-powersgd")
POWERSGD_RANK = 4
_ONE_BUCKET_MB = 4000
_POWERSGD_FROM = 2  # the first step in which torch's hook may compress: it needs DDP's final buckets


@dataclass(slots=True)
class Counters:
    """Counters of one worker so far; None: this kind of run cannot tell."""

    rounds: int = 0
    sent: int = 0
    received: int = 0
    codec: float | None = None
    codec_cpu: float | None = None
    exchange: float | None = None
    nonfinite: int = 0
    collectives: dict[str, Tally] = field(default_factory=dict)

    def __sub__(self, before: Counters) -> Counters:
        """The difference since then."""
        kinds = {kind: tally - before.collectives.get(kind, Tally()) for kind, tally in self.collectives.items()}
        names = [field.name for field in fields(self) if field.name != "collectives"]
        pairs = {name: (getattr(self, name), getattr(before, name)) for name in names}
        added: dict[str, Any] = {name: None if None in pair else pair[0] - pair[1] for name, pair in pairs.items()}
        return Counters(**added, collectives=kinds)


def counters_of(stats: Stats) -> Counters:
    """The counters of an exchange so far."""
    kinds = {kind: tally - Tally() for kind, tally in list(stats.collectives.items())}
    return Counters(
        stats.traffic.rounds, stats.traffic.sent, stats.traffic.received, stats.codec_seconds, stats.cpu_seconds,
        stats.exchange_seconds, stats.nonfinite, kinds,
    )  # fmt: skip


class NoExchange:
    """A model that every worker trains for itself: nothing is exchanged. The limit for the time of a step.

    ``model`` is what the loss is computed with. For all classes here: all ranks make one in the same way, and call
    :meth:`step` after each step.
    """

    def __init__(self, model: nn.Module):
        self.model = model

    def count(self) -> Counters:
        """The counters so far."""
        return Counters(codec=0.0, codec_cpu=0.0, exchange=0.0)

    def bucket_bytes(self) -> list[int]:
        """Sizes of the buckets, in the order in which they become ready."""
        return []

    def join(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """The optimizer that trains the model: this one, but where the algorithm is an optimizer itself."""
        return optimizer

    def average_gradients(self) -> None:
        """Gradients are there, and not yet clipped: what is exchanged before the optimizer sees them is exchanged now."""

    def step(self) -> None:
        """A step has ended."""

    @contextlib.contextmanager
    def shared(self) -> Iterator[nn.Module]:
        """The model to evaluate, for as long as the block lasts. All ranks enter it."""
        yield getattr(self.model, "module", self.model)

    def end(self) -> None:
        """All steps were made; afterwards replicas are the same, where anything is exchanged."""

    def explain(self) -> dict[str, Any] | None:
        """The choices of ``auto`` and their reasons; None: the method was given."""
        return None

    def close(self) -> None:
        """Leaves the model as it was, where it outlives the run."""


class GraceDDP(NoExchange):
    """A model whose gradients a registered method exchanges."""

    def __init__(self, model: nn.Module, method: str, granularity: Granularity, seed: int):
        ddp = DistributedDataParallel(model, gradient_as_bucket_view=True)
        super().__init__(ddp)
        self._handle = grace.attach(ddp, method, granularity=granularity, seed=seed)

    def count(self) -> Counters:
        return counters_of(self._handle.stats)

    def bucket_bytes(self) -> list[int]:
        return _bucket_bytes(self.model)

    def explain(self) -> dict[str, Any] | None:
        chosen = isinstance(self._handle, Choosing) and self._handle.chooses
        return self._handle.explain().as_dict() if chosen else None  # type: ignore[attr-defined]

    def close(self) -> None:
        self._handle.detach()


class TorchDDP(NoExchange):
    """Plain DistributedDataParallel, or with one of torch's hooks. Counts what torch's all-reduces move."""

    def __init__(self, model: nn.Module, name: str, rank: int, world: int):
        size = _ONE_BUCKET_MB if name == "ddp-powersgd" else None
        ddp = DistributedDataParallel(model, gradient_as_bucket_view=True, bucket_cap_mb=size)
        super().__init__(ddp)
        self.name, self.rank, self.world = name, rank, world
        self._size = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
        self._count = Counters(codec=0.0 if name == "ddp-fp32" else None)
        self._state: powerSGD_hook.PowerSGDState | None = None
        self._low_rank = 0  # numbers that PowerSGD had sent
        self._sizes: list[int] = []  # of the buckets
        self._final = False  # whether they are DDP's final ones: asking takes long
        if name == "ddp-bf16":
            ddp.register_comm_hook(None, _bf16)
        elif name == "ddp-powersgd":
            self._state = powerSGD_hook.PowerSGDState(
                None, matrix_approximation_rank=POWERSGD_RANK, start_powerSGD_iter=_POWERSGD_FROM
            )
            ddp.register_comm_hook(self._state, _powersgd)

    def count(self) -> Counters:
        return self._count - Counters(codec=0.0)

    def bucket_bytes(self) -> list[int]:
        return _bucket_bytes(self.model)

    def step(self) -> None:
        """Counts one step's all-reduces."""
        if not self._final:
            self._final = bool(_read_log(self.model).get("has_rebuilt_buckets"))
            self._sizes = self.bucket_bytes() or [self._size]
        sizes = self._sizes
        if self.name == "ddp-bf16":
            sizes = [size // 2 for size in sizes]
        elif self._state is not None:
            *_, total = self._state.compression_stats()  # type: ignore[no-untyped-call]
            if total > self._low_rank:
                third = 4 * (total - self._low_rank) // 3  # uncompressed tensors, then P, then Q: only the sum is known
                sizes = [third, third, 4 * (total - self._low_rank) - 2 * third]
            self._low_rank = total
        for size in sizes:
            self._count_all_reduce(size, f"AllReduce{NARROW if self.name == 'ddp-bf16' else ''}")

    def _count_all_reduce(self, size: int, kind: str) -> None:
        """Counts an all-reduce of so many bytes."""
        moved = cost(AllReduce(torch.empty(size, dtype=torch.uint8, device="meta")), self.rank, self.world)
        self._count.rounds += 1
        self._count.sent += moved.sent
        self._count.received += moved.received
        self._count.collectives.setdefault(kind, Tally()).add(Tally(1, size))


def _read_log(model: nn.Module) -> dict[str, Any]:
    """The entries that DistributedDataParallel logs about itself."""
    assert isinstance(model, DistributedDataParallel)
    data: dict[str, Any] = model._get_ddp_logging_data()  # type: ignore[no-untyped-call]
    return data


def _bucket_bytes(model: nn.Module) -> list[int]:
    data = _read_log(model)
    text = data.get("rebuilt_bucket_sizes") or data.get("bucket_sizes") or ""
    return [int(size) for size in str(text).split(",") if size.strip()]


def _bf16(state: None, bucket: GradBucket) -> Future[Tensor]:
    """Torch's hook; it wants a group as its state, or None for all."""
    return default_hooks.bf16_compress_hook(state, bucket)  # type: ignore[arg-type]


def _powersgd(state: powerSGD_hook.PowerSGDState, bucket: GradBucket) -> Future[Tensor]:
    """Torch's hook."""
    return powerSGD_hook.powerSGD_hook(state, bucket)


for _hook in (_bf16, _powersgd):  # torch compares objects, not strings
    _hook.__annotations__ = {**_hook.__annotations__, "bucket": GradBucket, "return": Future[Tensor]}


def connect(method: str, model: nn.Module, granularity: Granularity, seed: int, rank: int, world: int) -> NoExchange:
    """The model under a method or a baseline."""
    if method == NO_COMMUNICATION:
        return NoExchange(model)
    if method in BASELINES:
        return TorchDDP(model, method, rank, world)
    return GraceDDP(model, method, granularity, seed)
