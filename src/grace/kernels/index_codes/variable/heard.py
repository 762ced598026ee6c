"""Shared parts of all readers of lists of gaps whose lengths, and places in a wire, follow from what was received.

Letters: T tensors, W workers: wires are numbered worker by worker.
"""

from __future__ import annotations

import torch
from torch import Tensor

from grace import wire as wires
from grace.compute.host import host_int64
from grace.kernels.tensor_list import TensorList, carry_together
from grace.kernels.variable_sparse.parts import WirePlaces


def ask_counts(rows: Tensor, places: WirePlaces, count: int) -> list[list[int]]:
    """The ``count`` int32 that each of the W T wires in ``rows [W, s]`` uint8 begins with: a question to the host."""
    where = host_int64(places.begins) + wires.HEADER
    (heads,) = carry_together(
        ((where[:, None] + torch.arange(4 * count, dtype=torch.int64, device="cpu")).view(-1),), rows.device
    )
    told: list[list[int]] = rows.index_select(1, heads).view(torch.int32).view(-1, count).tolist()
    return told


def begins_of_all(rows: Tensor, places: WirePlaces) -> Tensor:
    """int64 ``[W T]``, on the host: where the wires begin in ``rows [W, s]``, all in one."""
    W, T = len(rows), len(places.begins)
    where = host_int64(places.begins) + wires.HEADER
    return where.repeat(W) + rows.stride(0) * torch.arange(W, dtype=torch.int64, device="cpu").repeat_interleave(T)


def tensors_of_all(many: TensorList, workers: int) -> TensorList:
    """The tensors of ``many``, once for each worker: one for each wire."""
    tensors = many.once(("wires", workers), lambda: TensorList(many.sizes * workers, (), (), many.device))
    tensors.point(list(many.xs) * workers)
    return tensors


def note_ends(ends: Tensor, flat: Tensor, lines: Tensor, delta: bool, total: Tensor, index: Tensor) -> None:
    """Sets ``ends [rows]`` int64 to how many bytes codes in ``flat [s]`` uint8 take, where ``lines [rows, 8]`` say they are,
    and ``total [1, rows]`` and ``index [1, K]`` as :func:`grace.kernels.index_codes.variable.triton.read_lists` shows them; of
    an illegal one it may be anything.
    """
    k, first = lines[:, 0], lines[:, 1]
    if delta:
        ends.copy_((5 * ((k + 127) // 128) + 7) // 8 + total[0])
    elif index.shape[1]:
        low = flat.index_select(0, (lines[:, 6] + lines[:, 7]).clamp_(max=len(flat) - 1)).long().clamp_(max=31)
        upper = index[0].index_select(0, (first + k - 1).clamp_(0, index.shape[1] - 1))
        ends.copy_(torch.where(k > 0, 1 + (k * low + 7) // 8 + (upper + k + 7) // 8, 0))
