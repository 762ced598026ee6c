"""The matrices of a bucket, and what travels uncompressed beside them: one call of each kernel, one all-reduce per round.

Letters: M is m x l; factors are held as rows, p ``[r, m]`` and q ``[r, l]``. Of T tensors some are matrices. Kernels choose
what they run on by the tensors' device, and only methods that have to send something else ask the host.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from grace import wire as wires
from grace.collectives import AllReduce, Exchange, Parts
from grace.compute import backends
from grace.contract.method import Exchanged
from grace.contract.peer import Peers
from grace.contract.workspace import Workspace, padded_sizes, take_rooms
from grace.flags.capturing import capturing
from grace.flags.finite import Flag, flags
from grace.kernels.low_rank.grouped import begins
from grace.kernels.multi_tensor import finite_many, narrow_many, round_many, sum_many, widen_many
from grace.kernels.tensor_list import TensorList, poison_many
from grace.methods.common.matrices import Sides, is_plain

P = TypeVar("P")
X = TypeVar("X")


class DenseTensors:
    """Tensors of a bucket that travel as they are.

    Args:
        sizes: numbers of all tensors. at: which of them these are. places: where each tensor's part of the message begins.
    """

    def __init__(self, sizes: Sequence[int], at: Sequence[int], places: Sequence[int], device: torch.device):
        self.at, self._places = list(at), places
        self._sent, self._received, self._means = (TensorList([sizes[i] for i in at], (), (), device) for _ in range(3))

    def point(self, xs: Sequence[Tensor], means: Sequence[Tensor], parts: Sequence[Tensor], *, keep: bool) -> None:
        """From now on these are all tensors, rooms for their means, and parts of the message, unless these are where they
        were; see :meth:`TensorList.point`.
        """
        if self.at:
            self._sent.point(only(xs, self.at))
            if keep:
                self._means.point(only(means, self.at))
            if parts:
                self._received.point(only(parts, self.at))

    def put(self, message: Tensor, *, keep: bool) -> None:
        """Puts them into the message ``[s]``. If the rests are wanted: NaN in the place of what is not finite, and nothing is
        left.
        """
        if not self.at:
            return
        finite = round_many(message, self._sent, self._received, 1.0)
        if keep:
            poison_many(finite, self._received)
            torch._foreach_zero_(list(self._sent.xs))

    def results(
        self, message: Tensor, xs: Sequence[Tensor], means: Sequence[Tensor], *, keep: bool, checked: bool = False
    ) -> dict[int, Exchanged[Any]]:
        """The results of these, of all tensors ``xs`` of any shapes, by their numbers: as the network summed them, unless the
        rests are wanted. ``checked``: whether these say what is finite, too.
        """
        if not self.at:
            return {}
        if not keep:
            parts = [message[self._places[i] : self._places[i + 1]].view(xs[i].shape) for i in self.at]
            fine: Sequence[Flag] = [True] * len(parts)
            if checked:
                fine = flags(finite_many(self._received.all_set, self._received))
            each = zip(self.at, parts, fine, strict=True)
            return {i: Exchanged(part, None, None, good) for i, part, good in each}
        finite = widen_many(message, self._received, self._means)
        poison_many(finite, self._means)
        return {i: result_of(means[i], xs[i], good) for i, good in zip(self.at, flags(finite), strict=True)}


class OtherNumbers:
    """Matrices that are not float32, on their way to rooms where kernels work on them, and back.

    Args:
        sizes: n_t. device: of all matrices.
    """

    def __init__(self, sizes: Sequence[int], device: torch.device):
        self._given, self._applied = (TensorList(sizes, (), (), device) for _ in range(2))

    def point(self, xs: Sequence[Tensor], rooms: Sequence[Tensor], outs: Sequence[Tensor], *, keep: bool) -> None:
        """From now on these are the matrices, their rooms, and where their means come to, of any shapes; ``keep``: whether
        rests are left in the rooms.
        """
        self._given.point(xs, None, rooms)
        self._applied.point(outs, None, rooms if keep else None)

    def widen(self) -> None:
        """Sets the rooms to the matrices."""
        sum_many(self._given.like, self._given)

    def narrow(self, flags: Tensor, means: TensorList) -> Tensor:
        """Rounds the means to the matrices, whose rests learn what that loses: ``[T]`` bool, which are finite then, of those
        whose flag is set. The others become NaN.
        """
        finite = narrow_many(flags, means, self._applied)
        poison_many(finite, self._applied)
        return finite


class LowRankPlan:
    """Plan of a bucket: what stays the same at every step.

    Args:
        sides: of each tensor; None for what travels as it is. sizes: numbers of each. sent: how many of them travel first.
        device: of all of them. of: which of the exchange's tensors these are; by default all.

    message: what travels first, ``[s]``. pieces: of it, one for each tensor. rooms: float32 ``[n]`` each.
    """

    def __init__(
        self,
        sides: Sequence[Sides | None],
        sizes: Sequence[int],
        sent: Sequence[int],
        device: torch.device,
        of: Sequence[int] | None = None,
    ):
        self.device, self.sent, self.places = device, tuple(sent), begins(sent)
        self.parts = Parts(tuple(range(len(sides)) if of is None else of), self.sent)
        self.dense = DenseTensors(sizes, [i for i, of in enumerate(sides) if of is None], self.places, device)
        self.at = [i for i, of in enumerate(sides) if of is not None]
        self.sides = [of for of in sides if of is not None]
        self.message, self.pieces, self.rooms = (
            torch.empty(0, dtype=torch.float32, device=device),
            list[Tensor](),
            list[Tensor](),
        )
        self._storage_at: int | None = None
        self.furnish(())

    def furnish(self, sizes: Sequence[int]) -> None:
        """From now on there are :attr:`rooms` for so many numbers each."""
        self._sizes = [self.places[-1], *sizes]
        self._padded = padded_sizes(self._sizes)
        self._total = sum(self._padded)

    def lay_out(self, workspace: Workspace) -> bool:
        """Lays the message and the rooms out in memory that is valid until the exchange has ended: False if they are where
        they were.
        """
        storage = workspace.take(self._total, torch.float32, self.device)
        at = storage.data_ptr()
        if at == self._storage_at:
            return False
        pieces = storage.split_with_sizes(self._padded)
        self.message, *self.rooms = (piece[:n] for piece, n in zip(pieces, self._sizes, strict=True))
        self.pieces = list(self.message.split_with_sizes(self.sent))
        self._storage_at = None if capturing() else at  # then no table has it
        return True


class LowRankBucket:
    """A step of T tensors, contiguous and not empty, of one dtype, all of which are matrices if that is not float32.

    Args:
        plan: for tensors of their sizes. xs: the tensors. peers: who exchanges them. rooms: where xs are already float32;
            None: nowhere yet, or they are.

    given: the tensors as they came. xs: float32, in their places or in rooms, of which matrices become the rests, if they are
    wanted. low: of float64, by their numbers, what float32 cannot hold. means: rooms for those of xs. outs: the means in the
    dtype of the tensors. keep: whether the rests are wanted. message: what travels first. moved: whether it is elsewhere than
    in the last step.
    """

    def __init__(
        self,
        plan: LowRankPlan,
        xs: Sequence[Tensor],
        peers: Peers,
        workspace: Workspace,
        rooms: Sequence[Tensor] | None = None,
    ):
        self._plan, self._peers, self._workspace = plan, peers, workspace
        self.given, self.keep = xs, peers.like.lent.keep_rest
        plain = xs[0].dtype is torch.float32
        self.xs = xs if plain else rooms or self._rooms()
        self.low: dict[int, Tensor] = {}
        self.means = xs if plain and not self.keep else self._rooms_for_means()
        self.outs = self.means if plain else self._rooms(xs[0].dtype) if self.keep else xs
        self.moved = plan.lay_out(workspace)
        self.message = plan.message
        plan.dense.point(self.xs, self.means, plan.pieces if self.moved else (), keep=self.keep)

    def _rooms(self, dtype: torch.dtype = torch.float32) -> Sequence[Tensor]:
        rooms = take_rooms(self._workspace, [x.numel() for x in self.given], self._plan.device, dtype)
        return [room.view(x.shape) for room, x in zip(rooms, self.given, strict=True)]

    def _rooms_for_means(self) -> Sequence[Tensor]:
        if not self.keep:
            return self.xs
        spares = self._peers.spares
        return spares if spares is not None and all(map(is_plain, spares)) else self._rooms()

    def widen(self, others: OtherNumbers | None, at: Sequence[int]) -> None:
        """Puts matrices that are not float32 into their rooms; if the rests are wanted, what float32 cannot hold is kept."""
        if others is None:
            return
        others.point(only(self.given, at), only(self.xs, at), only(self.outs, at), keep=self.keep)
        others.widen()
        if self.keep and self.given[0].dtype is torch.float64:
            self.low.update({i: self.given[i] - self.xs[i].double() for i in at})

    def settle(self, finite: Tensor, others: OtherNumbers | None, means: TensorList) -> Tensor:
        """Means that are not ``finite [T]`` become NaN, and those in rooms go to outs: ``[T]`` bool, which are finite."""
        if others is not None:
            return others.narrow(finite, means)
        poison_many(finite, means)
        return finite

    def sum_message(self) -> Exchange[None]:
        """The mean of the message, which has what is sent of matrices; what travels as it is is put into it here."""
        self._plan.dense.put(self.message, keep=self.keep)
        put_answer((yield AllReduce(self.message, "mean", donate=True, parts=self._plan.parts)), self.message)

    def results_of(self, at: Sequence[int], finite: Tensor) -> dict[int, Exchanged[Any]]:
        """The results of these matrices, which are ``finite [T]``, by their numbers."""
        rests = [self.xs[i] + self.low[i] if self.low else self.xs[i] for i in at] if self.keep else [None] * len(at)
        each = zip(at, rests, flags(finite), strict=True)
        return {i: result_of(self.outs[i], rest, good) for i, rest, good in each}


def result_of(mean: Tensor, rest: Tensor | None, finite: Flag) -> Exchanged[Any]:
    """The result of a tensor, of any shape, whose state is not known yet."""
    return Exchanged(mean, None if finite is False else rest, None, finite)


def only(every: Sequence[X], at: Sequence[int]) -> Sequence[X]:
    """These of them, in their order."""
    return every if len(at) == len(every) else [every[i] for i in at]


def put_answer(answer: Tensor, message: Tensor) -> None:
    """Puts what the network has answered where the message ``[s]`` was."""
    if answer is not message:
        flat = answer.contiguous().view(-1)
        wires.check_shape("sum", flat, message.shape)
        if flat.data_ptr() != message.data_ptr():
            message.copy_(flat)


def find_plan(workspace: Workspace, key: tuple[Hashable, ...], way: Hashable, make: Callable[[], P]) -> P:
    """The plan that is kept for the way in which tensors go, under the key and the backend in use, or what ``make`` makes:
    that is kept unless work is captured, when tables cannot be copied to a device.
    """
    key = (*key, backends.backend())
    plan: P | None = workspace.find(key, way)
    if plan is None:
        plan = make()
        if not capturing():
            workspace.keep(key, way, plan)
    return plan
