"""Wires of sketchml whose places travel as gaps, delta or rice, by the Triton kernels for lists of known lengths.

As with counted wires (:mod:`grace.kernels.variable_sparse.triton.gapped`) the host is asked how many numbers are sent before
it knows how long wires are, and how many have come before it reads them. Where the cells of a wire begin is known on the
device alone, once the list before them is coded, or has been read.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import chain

import torch
import triton
import triton.language as tl
from torch import Tensor

from grace.compute.host import host_int64
from grace.compute.launching import TILE, Marks
from grace.kernels.index_codes.variable import GapLists
from grace.kernels.index_codes.variable.heard import ask_counts, begins_of_all, note_ends, tensors_of_all
from grace.kernels.index_codes.variable.triton import GapTable, Laid, lay_lists, read_lists, tiles_to_read, write_laid
from grace.kernels.minmax_sketch.parts import MinMaxCode, MinMaxPlaces
from grace.kernels.packing import packed_bytes
from grace.kernels.tensor_list import TensorList, carry_together, pair_programs, spans_of
from grace.kernels.variable_sparse.triton import lay_out


@triton.jit
def list_of(n, k, coded, CODE: tl.constexpr):
    """As :func:`grace.kernels.variable_sparse.triton.lay_out`; CODE 4: of gaps, whose bytes are at ``coded``."""
    if CODE == 4:
        number, low, low_bytes, size = k - k, k - k, k - k, tl.load(coded)
    else:
        number, low, low_bytes, size = lay_out(n, k, CODE)
    return number, low, low_bytes, size


@dataclass(frozen=True)
class LaidPlaces:
    """Codes that are to be written. coded: int64 ``[T]``, their bytes."""

    coded: Tensor
    table: GapTable
    laid: Laid


@dataclass(frozen=True)
class Listing:
    """Places that have come. where: int64 ``[W, T, 3]``, of each wire the byte where it begins, its width, and where its list
    is in a row of ``index [W, plane]`` int64; plane 0: ``[1, K]``, of all wires. listed: the programs, one for 1,024 numbers.
    coded: int64 ``[W, T]``, the bytes of their codes, and legal: bool ``[T]``, whether all are such as a sender writes, where
    that is known.
    """

    where: Tensor
    listed: Tensor
    index: Tensor
    plane: int
    coded: Tensor | None = None
    legal: Tensor | None = None


def lay_places(index: Tensor, total: Tensor, many: TensorList, code: MinMaxCode) -> LaidPlaces:
    """Codes of the first ``total [T]`` places of each tensor in ``index [N]``, where there is room for all."""
    kept: list[int] = total.tolist()  # the question
    table = GapTable(many.sizes, many.device, GapLists(tuple(kept), code.index, (0,) * len(kept)), many.sizes)
    coded, laid = lay_lists(index, index.new_empty(0, dtype=torch.uint8), table)
    return LaidPlaces(coded, table, laid)


def write_places(message: Tensor, places: LaidPlaces, where: Tensor, tiles: Tensor) -> None:
    """Writes the codes to ``where [T]`` in ``message [s]`` uint8. ``tiles [programs, 2]``: of 1,024 bytes each, and more."""
    write_laid(message, places.table, where, places.coded, tiles, places.laid)


def find_places(rows: Tensor, many: TensorList, code: MinMaxCode, places: MinMaxPlaces, where: Tensor) -> Listing:
    """Reads the places that wires in ``rows [W, s]`` uint8 list, which begin at ``where [W, T, 3]``."""
    W, T, device = len(rows), len(many), many.device
    told = [k for (k,) in ask_counts(rows, places, 1)]
    sizes, widths = many.sizes * W, list(chain(*places.widths))
    legal = [_fits(*each, code) for each in zip(told, sizes, widths, strict=True)]
    kept = [k if fine else 0 for k, fine in zip(told, legal, strict=True)]
    lists = GapLists(tuple(kept), code.index, tuple(map(code.before, kept)))
    table, counts = GapTable(sizes, device, lists), host_int64(kept)
    rooms = (host_int64(widths) - host_int64(lists.before)).masked_fill_(counts == 0, 0)
    begins = begins_of_all(rows, places)
    read, firsts = tiles_to_read(rooms, lists), counts.cumsum(0) - counts
    listed = -(-counts.view(W, T).amax(dim=0) // TILE)
    rooms, begins, tiles, spans, firsts, listed, fine = carry_together(
        (
            rooms,
            begins,
            pair_programs(read),
            spans_of(read),
            firsts,
            pair_programs(listed),
            torch.tensor(legal, dtype=torch.bool, device="cpu"),
        ),
        device,
    )
    lines, marks, flat, coded = table.lists.clone(), Marks(rows, W * T), rows.view(-1), torch.zeros_like(rooms)
    lines[:, 7] = begins
    look = partial(note_ends, coded, flat, lines, table.delta)
    index = read_lists(flat[None], rooms[None], tensors_of_all(many, W), table, tiles, spans, lines, marks.clean, look)
    where = where.clone()
    where[:, :, 2] = firsts.view(W, T)
    coded = coded.clamp_min(0).minimum(rooms).view(W, T)
    return Listing(where, listed, index, 0, coded, (marks.clean & fine).view(W, T).all(dim=0))


def _fits(count: int, n: int, width: int, code: MinMaxCode) -> bool:
    """True if a wire of n numbers may have this count and this width."""
    if not 0 <= count <= n:
        return False
    (head,) = GapLists((count,), code.index, (0,)).heads([n])
    unary = packed_bytes(count, 1) if code.index == "rice" else 0
    return code.before(count) + head + unary <= width
