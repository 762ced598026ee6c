"""The exchange plan: which tensors are exchanged, how, and at which cost, from what their methods declare."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from grace.collectives import Traffic, ring_bytes
from grace.communicators.hierarchical import BETWEEN
from grace.contract.method import Method
from grace.contract.peer import Peer
from grace.errors import UncompressedWarning, stack_level
from grace.registry import spell
from grace.registry.policy import SMALL, Policy
from grace.run.groups import Group, form_groups, is_uncompressed
from grace.run.options import Granularity, Options

_DENSE = ("none", "bf16", "fp16")  # methods that are asked for as what others are compared with
_FEW = 1 << 16  # numbers: less takes no time
_LATE = 1 << 30  # a step: schedules have ended
_COLUMNS = ("parameter", "shape", "method", "bytes", "share")


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the plan: parameters that are exchanged as one tensor.

    name: of the parameter, or of the group of parameters. members: the parameters. shape: of what is exchanged.
    method: as a string. compressed: False if it is sent as it is, with or without a momentum.
    sent_bytes: what this worker sends for it in a step; None where that depends on the data.
    dense_bytes: what it would send in a ring all-reduce of the gradient as it is. share: its part of the known bytes of
        all rows.
    """

    name: str
    members: tuple[str, ...]
    shape: tuple[int, ...]
    method: str
    compressed: bool
    sent_bytes: int | None
    dense_bytes: int
    share: float | None


@dataclass(frozen=True, slots=True)
class ExchangePlan:
    """All that one worker exchanges in a step. Iterates over its :class:`Row` objects, and prints as a table.

    rows: in the order of the parameters. world: workers. step: the global step that it is for.
    """

    rows: tuple[Row, ...]
    world: int
    step: int

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def sent_bytes(self) -> int:
        """Bytes sent in a step, without those that depend on the data."""
        return sum(row.sent_bytes or 0 for row in self.rows)

    @property
    def dense_bytes(self) -> int:
        """Bytes that a ring all-reduce of the gradients as they are would send."""
        return sum(row.dense_bytes for row in self.rows)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        total = {"sent_bytes": self.sent_bytes, "dense_bytes": self.dense_bytes}
        return {"workers": self.world, "step": self.step, "rows": [asdict(row) for row in self.rows], **total}

    def __str__(self) -> str:
        lines = [_COLUMNS, *(_cells(row) for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        text = [
            "  ".join(
                cell.rjust(width) if index > 2 else cell.ljust(width) for index, (cell, width) in enumerate(pairs)
            )
            for pairs in (list(zip(line, widths, strict=True)) for line in lines)
        ]
        return "\n".join([line.rstrip() for line in text] + [self._summary()])

    def _summary(self) -> str:
        sent = sum(row.compressed for row in self.rows)
        open_ = " and what depends on the data" if any(row.sent_bytes is None for row in self.rows) else ""
        dense = f" of {self.dense_bytes:,} without compression" if self.dense_bytes else ""
        return f"{sent} of {len(self.rows)} compressed; a step sends {self.sent_bytes:,} bytes{open_}{dense}"


def _cells(row: Row) -> tuple[str, ...]:
    members = f" ({len(row.members)} parameters)" if len(row.members) > 1 else ""
    sent = "by the data" if row.sent_bytes is None else f"{row.sent_bytes:,}"
    share = "-" if row.share is None else f"{row.share:.1%}"
    return row.name + members, " x ".join(map(str, row.shape)) or "scalar", row.method, sent, share


def plan_groups(
    groups: Sequence[Group],
    like: Mapping[str, Tensor],
    policy: Policy,
    peer: Peer,
    scattered: Callable[[str, Method[Any], Tensor], Traffic | None] | None = None,
) -> ExchangePlan:
    """The plan of these groups, under a policy for groups.

    ``scattered``: if they are rows, of which each worker learns its own mean, what is moved for one, by name.
    """
    planned: list[tuple[Group, Tensor, Method[Any], Traffic | None]] = []
    for group in groups:
        x = group.like(like).to("meta")
        method = policy.method_for(group.name, x, peer.step)
        traffic = scattered(group.name, method, x) if scattered else method.traffic(x, peer)
        planned.append((group, x, method, traffic))
    total = sum(traffic.sent for *_, traffic in planned if traffic is not None)
    rows = []
    for group, x, method, traffic in planned:
        sent = None if traffic is None else traffic.sent
        dense = math.ceil(ring_bytes(x.numel() * x.element_size(), peer.world) / (2 if scattered else 1))
        share = None if sent is None or not total else sent / total
        compressed = not is_uncompressed(method)
        rows.append(Row(group.name, group.members, tuple(x.shape), spell(method), compressed, sent, dense, share))
    return ExchangePlan(tuple(rows), peer.world, peer.step)


def warn_uncompressed(policy: Policy, tensors: Mapping[str, Tensor], world: int) -> None:
    """Warns if a policy has methods that compress, and no tensor like these gets one at any step, or it goes between machines
    where all ``world`` workers are on one.
    """
    wanted = _name_compressing(rule.method for rule in policy.rules)
    if world > 1 and policy.axes(world).get(BETWEEN) == 1:
        warnings.warn(
            f"nothing is compressed: {', '.join(sorted(wanted))} goes between machines, and all {world} workers are on one, "
            "where gradients are averaged in full precision; on several machines it compresses. To compress here, too, leave "
            "machine= or mesh= out",
            UncompressedWarning,
            stacklevel=stack_level(),
        )
        return
    used = _name_compressing(method for name, x in tensors.items() for method in policy.methods_for(name, x))
    if wanted and not used:
        asked = sorted(wanted)[0]
        numbers = sum(x.numel() for x in tensors.values())
        warnings.warn(
            f"nothing is compressed: all {len(tensors)} tensors ({numbers:,} numbers) go as they are, and none gets {asked}. "
            f"A bare method leaves tensors of at most one dimension, and of under {SMALL:,} numbers, alone; to compress all: "
            f'grace.Policy([("*", "{asked}")])',
            UncompressedWarning,
            stacklevel=stack_level(),
        )


def _name_compressing(methods: Iterable[Method[Any] | str]) -> set[str]:
    """The methods that compress, as strings."""
    return {spell(method) for method in methods if isinstance(method, Method) and not is_uncompressed(method)}


def warn_of_more_than_bf16(policy: Policy, tensors: Mapping[str, Tensor], world: int, scattered: bool = False) -> None:
    """Warns if what a policy means to compress sends no less than the same in bf16, where that is known before the first step;
    says why. Not of few numbers, which take no time; nor of rules that follow the step, and grids, where links differ.

    ``scattered``: if tensors are rows ``[world, c]``, of which each worker learns its own mean.
    """
    if world < 2 or not policy.timeless or policy.axes(world):
        return
    methods = {name: policy.method_for(name, x, _LATE) for name, x in tensors.items()}
    meant = {name: method for name, method in methods.items() if spell(method).partition(":")[0] not in _DENSE}
    if not meant:
        return
    counted = methods if policy.method is not None else meant  # what own rules leave as it is was asked for
    if sum(tensors[name].numel() for name in counted) < _FEW:
        return

    def send(names: Iterable[str], workers: int) -> int | None:
        peer, total = Peer(0, workers, _LATE, steps_per_epoch=1), 0
        for name in names:
            x = tensors[name].to("meta")
            traffic = (methods[name].scatter_traffic if scattered else methods[name].traffic)(x, peer)
            if traffic is None:
                return None
            total += traffic.sent
        return total

    def send_bf16(names: Iterable[str], workers: int) -> int:
        numbers = sum(tensors[name].numel() for name in names)
        return math.ceil(ring_bytes(2 * numbers, workers) / (2 if scattered else 1))

    sent, bf16 = send(counted, world), send_bf16(counted, world)
    if sent is None or sent < bf16:
        return
    label = spell(next(iter(meant.values())))
    alone, fewest = send(meant, world), None if scattered else send(meant, 2)
    if alone is not None and alone < send_bf16(meant, world):
        why = (
            f"most of it is of tensors of at most one dimension, or of under {SMALL:,} numbers, which a bare method leaves as "
            f'they are; to compress all: grace.Policy([("*", "{label}")])'
        )
    elif fewest is not None and fewest < send_bf16(meant, 2):
        why = (
            f"{label} gathers what every worker sends, which grows with their number, {world} here; take "
            "communicator=scatterreduce, or a smaller ratio or fewer bits"
        )
    else:
        why = f"{label} takes as many bytes for each number, or more: take a smaller ratio, fewer bits or a lower rank"
    warnings.warn(
        f"nothing is saved: a worker sends {sent:,} bytes in a step, and would send {bf16:,} in bf16: {why}. handle.plan() "
        "shows each tensor",
        UncompressedWarning,
        stacklevel=stack_level(),
    )


def plan(
    tensors: Mapping[str, Tensor],
    method: Policy | Method[Any] | str,
    world: int,
    *,
    granularity: Granularity = Options.granularity,
    bucket_bytes: int = Options.bucket_bytes,
    step: int = 0,
    steps_per_epoch: int | None = Options.steps_per_epoch,
) -> ExchangePlan:
    """The exchange plan of rank 0 of ``world`` workers for these tensors, without a job.

    Args:
        tensors: by name; meta tensors will do.
        method: a method, the string that makes it, or a policy.
        world: workers, >= 1.
        granularity: what is compressed as one tensor; as all options here, see :class:`grace.run.options.Options`.
        bucket_bytes: the size of a bucket.
        steps_per_epoch: for schedules that count epochs.
        step: the global step that it is for.

    Raises:
        ConfigurationError: an option out of range, a rule that no tensor matches, or a tensor that matches no rule.

    Example:
        >>> import torch
        >>> print(plan({"weight": torch.empty(100, 100), "bias": torch.empty(100)}, "qsgd:bits=4", world=4))
        parameter  shape      method        bytes  share
        weight     100 x 100  qsgd:bits=4  15,492  96.3%
        bias       100        none            600   3.7%
        1 of 2 compressed; a step sends 16,092 bytes of 60,600 without compression
    """
    options = Options(granularity=granularity, bucket_bytes=bucket_bytes, steps_per_epoch=steps_per_epoch)
    policy = Policy.of(method)
    policy.check_names(tensors.keys())
    groups, group_policy = form_groups(tensors, policy, options)
    peer = Peer(0, world, step, steps_per_epoch=steps_per_epoch)
    return plan_groups(groups, tensors, group_policy, peer)
