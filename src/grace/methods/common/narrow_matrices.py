"""Matrices of a bucket on an accelerator that are narrower than float32, and the rooms where kernels work on them.

Letters: T matrices of n_t numbers, each an x of a :class:`grace.kernels.tensor_list.TensorList` of one row.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from grace.contract.loan import reads_narrow
from grace.contract.peer import Peers
from grace.contract.workspace import take_rooms
from grace.kernels.multi_tensor import narrow_many, sum_many
from grace.kernels.tensor_list import TensorList, poison_many


class NarrowMatrices:
    """On their way to float32, and back.

    Args:
        sizes: n_t. device: of all matrices.
    """

    def __init__(self, sizes: Sequence[int], device: torch.device):
        self._given, self._applied = (TensorList(sizes, (), (), device) for _ in range(2))

    def point(self, xs: Sequence[Tensor], rooms: Sequence[Tensor]) -> bool:
        """From now on these are the matrices and their rooms, ``[1, n_t]`` each; see :meth:`TensorList.point`."""
        return self._given.point(xs, None, rooms) and self._applied.point(xs)

    def widen(self) -> None:
        """Sets the rooms to the matrices."""
        sum_many(self._given.like, self._given)

    def narrow(self, flags: Tensor, means: TensorList) -> Tensor:
        """Rounds the means, in the rooms, to the matrices: ``[T]`` bool, which are finite then, of those whose flag is set.
        The others become NaN.
        """
        finite = narrow_many(flags, means, self._applied)
        self.poison(finite)
        return finite

    def poison(self, flags: Tensor) -> None:
        """Sets those matrices to NaN whose flag, of ``[T]`` bool, is not set."""
        poison_many(flags, self._applied)


def rooms_for(xs: Sequence[Tensor], alone: bool, peers: Peers) -> Sequence[Tensor] | None:
    """Rooms in which kernels work on these tensors, of any shapes: they themselves, or for narrow ones, of one dtype,
    uninitialized float32 rooms of their shapes. None: neither, since something travels as it is besides matrices, which are
    not ``alone``, or the rests are wanted.
    """
    dtype, lent = xs[0].dtype, peers.like.lent
    if dtype is torch.float32:
        return xs
    if not alone or lent.keep_rest or lent.workspace is None or not all(map(reads_narrow, xs)):
        return None
    if any(x.dtype is not dtype or x.numel() == 0 for x in xs):
        return None
    rooms = take_rooms(lent.workspace, [x.numel() for x in xs], xs[0].device)
    return [room.view(x.shape) for room, x in zip(rooms, xs, strict=True)]
