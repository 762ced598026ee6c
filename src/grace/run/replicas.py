"""True if replicas still agree: digests of the means that were applied, compared between ranks every so many steps.

A bit that memory, a driver or a GPU flips on one rank, after the network has delivered it, breaks no rule of a wire: the mean
of that rank is another number, and its model drifts from then on, without a message.

A digest is ``sum (2 i + 1) c w_i mod 2^64`` over the 64-bit words w_i of a piece, with c odd, and digests of pieces are
chained by ``d <- p d + piece``, with p odd. Every factor is odd and has an inverse, so a single flipped bit always changes the
digest, except within a NaN. All of it stays on the device; the host reads it in a step that compares.
"""

from __future__ import annotations

import bisect
import itertools
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from grace.collectives import AllGather, Exchange
from grace.errors import ReplicasDifferError, ReplicasWarning, stack_level
from grace.run.drive import broadcast_
from grace.run.options import OnDifference
from grace.run.worker import Worker
from grace.transports.agreement import agree
from grace.transports.base import Transport

_WORDS = 1 << 16  # in a piece: its copy stays in the cache
_FACTOR = -0x61C8864680B583EB  # 2^64 divided by the golden ratio, which is odd
_CHAIN = 0x2545F4914F6CDD1D
_NAN = -0.0123  # in place of NaN, whose bits depend on the processor
_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
_weights: dict[torch.device, Tensor] = {}


def digest(xs: Iterable[Tensor]) -> Tensor | None:
    """A digest of all bits of these tensors of floats, in their order: 0-d int64, on the device of the first. None: of no
    numbers.
    """
    total: Tensor | None = None
    for x in xs:
        flat, most = x.detach().reshape(-1), _WORDS * 8 // x.element_size()
        for piece in (flat,) if flat.numel() <= most else torch.split(flat, most):
            if piece.numel():
                part = _digest_piece(piece)
                total = part if total is None else total * _CHAIN + part.to(total.device)
    return total


def _digest_piece(piece: Tensor) -> Tensor:
    numbers = piece.nan_to_num(nan=_NAN, posinf=math.inf, neginf=-math.inf)  # new storage: it can be seen as words
    weights = _weights.get(numbers.device)
    if weights is None:
        places = torch.arange(_WORDS + 3, dtype=torch.int64, device=numbers.device)
        weights = _weights[numbers.device] = (2 * places + 1) * _FACTOR
    surplus = numbers.numel() % (8 // numbers.element_size())
    if not surplus:
        return _dot(numbers.view(torch.int64), weights)
    words, last = numbers[:-surplus].view(torch.int64), numbers[-surplus:].view(_INTEGERS[numbers.element_size()])
    return _dot(words, weights) + _dot(last.long(), weights[words.numel() :])


def _dot(words: Tensor, weights: Tensor) -> Tensor:
    weights = weights[: words.numel()]
    return torch.dot(words, weights) if words.is_cpu else (words * weights).sum()  # no other device has it for integers


@dataclass(frozen=True, slots=True)
class Difference:
    """Result of a comparison between replicas.

    step: the first one in which means were seen to differ; None: only the parameters were. ranks: those that differ from most.
    among: how many ranks there are. root: a rank that agrees with most in everything. until: the step that has compared.
    """

    step: int | None
    ranks: tuple[int, ...]
    among: int
    root: int
    until: int

    def describe(self) -> str:
        """The difference, in words."""
        some = f"ranks {list(self.ranks)}" if len(self.ranks) > 1 else f"rank {self.ranks[0]}"
        most = "most others" if 2 * len(self.ranks) < self.among else "the others (which are right cannot be told)"
        if self.step is None:
            what = (
                f"the parameters of {some} differ from those of {most} at step {self.until}, and no mean that was compared "
                "did: a mean was damaged where it was not looked at, the ranks did not start with the same parameters, or "
                "their optimizers do not compute alike"
            )
        elif self.step == self.until:
            what = f"the means that {some} got in step {self.step} differ from those of {most}"
        else:
            what = f"the means that {some} applied differ from those of {most} since step {self.step} at the latest"
        return f"replicas differ: {what}"


class Replicas:
    """Checks of whether the replicas agree: a record of what one rank has applied since the last comparison. All ranks have
    one, and call it alike.

    Args:
        like: the tensors whose means are applied, by name, in the order of all ranks; only their sizes count.
        every: steps from one comparison to the next, >= 0; 0: none. The step that compares is looked at in whole; of each step
            before, the ``every``-th part of all numbers, another one in each step, so that a fault that stays in one place is
            found wherever it is.
        world: how many ranks there are; there is nothing to compare with one.
        on_difference: "error" raises, "broadcast" leaves the difference in ``difference``, for :meth:`repair`.

    ``parameters`` may be noted in the step that compares: they show a drift from wherever it comes, also from a mean that was
    damaged where nobody looked.
    """

    def __init__(self, like: Mapping[str, Tensor], every: int, world: int, on_difference: OnDifference = "error"):
        self._names = [name for name, x in like.items() if x.numel()]
        self._ends = list(itertools.accumulate(like[name].numel() for name in self._names))
        self._every = every if world > 1 and self._names else 0
        self.on_difference = on_difference
        self.difference: Difference | None = None
        self._told = False
        self._start()

    def _start(self) -> None:
        self._digests: list[Tensor] = []  # of each step since the last comparison
        self._steps: list[int] = []
        self._parameters: Tensor | None = None
        self._uncompared = 0  # steps of the optimizer
        self._begin()

    def _begin(self) -> None:
        self._now: Tensor | None = None  # of this step, as far as it has come
        self._device: torch.device | None = None  # of the means that were noted
        self._window = dict(self._find_window()) if len(self._digests) < self._every - 1 else {}

    def _find_window(self) -> Iterator[tuple[str, tuple[int, int]]]:
        """The numbers of tensors that are checked in this step."""
        total, place = self._ends[-1], len(self._digests)
        start = place * total // self._every
        stop = max(start + 1, (place + 1) * total // self._every)
        while start < stop:
            at = bisect.bisect_right(self._ends, start)
            first = self._ends[at - 1] if at else 0
            yield self._names[at], (start - first, min(stop, self._ends[at]) - first)
            start = self._ends[at]

    @property
    def due(self) -> bool:
        """True if the running step ends with a comparison."""
        return self._every > 0 and len(self._digests) == self._every - 1

    def note(self, means: Mapping[str, Tensor]) -> None:
        """Notes means, of any shapes, that are applied: all of a step, or a part of them."""
        if not (self._every and means):
            return
        self._device = self._device or next(iter(means.values())).device
        if self.due:
            seen = list(means.values())
        else:
            seen = [
                means[name].reshape(-1)[start:stop] for name, (start, stop) in self._window.items() if name in means
            ]
        part = digest(seen)
        if part is not None:
            self._now = part if self._now is None else self._now * _CHAIN + part

    def note_parameters(self, parameters: Iterable[Tensor]) -> None:
        """Notes the parameters, of any shapes, before the means of the running step are applied; does nothing unless it ends
        with a comparison. A rank whose parameters may differ, as one that has joined early, does not call it.
        """
        if self.due:
            self._parameters = digest(parameters)

    def end_step(self, step: int) -> bool:
        """Notes that a step has ended, and returns whether :meth:`compare` is to come now. A step that nothing was noted of
        does not count.
        """
        due = self.due
        if self._device is not None:
            self._digests.append(
                torch.zeros((), dtype=torch.int64, device=self._device) if self._now is None else self._now
            )
            self._steps.append(step)
            self._begin()
        return due and len(self._digests) == self._every

    def count_optimizer_step(self) -> None:
        """Notes that an optimizer has applied what there was. It compares nothing: the ranks may not all step.

        Warns:
            ReplicasWarning: more than ``every`` such steps since the last comparison, once.
        """
        self._uncompared += 1
        if self._every and self._uncompared > self._every and not self._told:
            self._told = True
            warnings.warn(
                f"check_replicas_every={self._every}, and the optimizer's last {self._uncompared} steps have compared "
                f"nothing: only {len(self._digests)} of them came with an exchange of gradients. Replicas may differ",
                ReplicasWarning,
                stacklevel=stack_level(),
            )

    def compare(self) -> Exchange[None]:
        """Compares with all ranks: one all-gather of 8 bytes for each step, and 16 for the parameters. All ranks call it.

        Raises:
            ReplicasDifferError: on all ranks, unless a difference is to be repaired.
        """
        device, held = self._digests[0].device, self._parameters
        known = torch.tensor([held is not None], dtype=torch.int64, device=device)
        parameters = known if held is None else held.reshape(1).to(device)
        rows = yield AllGather(torch.cat([torch.stack([x.to(device) for x in self._digests]), known, parameters]))
        difference = find_difference(rows.tolist(), self._steps)
        self._start()
        if difference is None:
            return
        if self.on_difference == "error":
            raise ReplicasDifferError(f"{difference.describe()}. {_REMEDY}", difference.step, difference.ranks)
        self.difference = difference

    def take_difference(self) -> Difference | None:
        """The difference that the last comparison has found and that is not repaired yet; only once."""
        difference, self.difference = self.difference, None
        return difference


_REMEDY = (
    "End the processes, and start again from a checkpoint of an earlier step. Look at the memory and the devices of the ranks "
    "that stand out. check_replicas_every=1 names the very step; on_difference='broadcast' repairs it and goes on"
)


def find_difference(rows: Sequence[Sequence[int]], steps: Sequence[int]) -> Difference | None:
    """Find what differs between the ranks; None: nothing.

    Args:
        rows: of each rank: its digest of each step; whether it knows parameters; their digest.
        steps: the numbers of these steps.
    """
    means = [tuple(row[:-2]) for row in rows]
    knowing = [rank for rank, row in enumerate(rows) if row[-2]]
    step, ranks = None, _outliers({rank: row[-1] for rank, row in enumerate(rows) if row[-2]})
    for place, number in enumerate(steps):
        if apart := _outliers({rank: row[place] for rank, row in enumerate(means)}):
            step, ranks = number, apart
            break
    if not ranks:
        return None
    whole = {rank: (means[rank], rows[rank][-1]) for rank in knowing or range(len(rows)) if rank not in ranks}
    root = min(whole.keys() - set(_outliers(whole)), default=0)
    return Difference(step, ranks, len(rows), root, steps[-1])


def _outliers(values: Mapping[int, Any]) -> tuple[int, ...]:
    """The ranks whose value is not the most frequent one; of equally frequent ones, that of the lowest rank."""
    ranks: dict[Any, list[int]] = {}
    for rank, value in values.items():
        ranks.setdefault(value, []).append(rank)
    most = max(ranks.values(), key=len, default=[])
    return tuple(sorted(set(values) - set(most)))


def repair_(difference: Difference, tensors: Iterable[Tensor], worker: Worker, network: Transport) -> None:
    """Gives all ranks what the root of ``difference`` has of these tensors, of any shapes. Methods start afresh: what they
    took over from the last step may differ, too. What they owe is added to the next tensors. All ranks call it.

    Raises:
        FingerprintMismatch: the ranks have other tensors, on all of them. Nothing was copied then.

    Warns (rank 0):
        ReplicasWarning: it was necessary.
    """
    kept = list(tensors)
    agree({f"tensor {place} to repair": f"{tuple(x.shape)} {x.dtype}" for place, x in enumerate(kept)}, network)
    broadcast_(kept, network, difference.root)
    worker.add_debts(worker.take_debts())
    if worker.rank == 0:
        text = f"{difference.describe()}. All ranks go on with the parameters of rank {difference.root}"
        warnings.warn(text, ReplicasWarning, stacklevel=stack_level())
