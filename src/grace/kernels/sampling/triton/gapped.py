"""Samples whose places travel as gaps, delta or rice, by the Triton kernels for lists of known lengths.

As with counted wires (:mod:`grace.kernels.variable_sparse.triton.gapped`) the host is asked how many numbers are sent before
it knows how long wires are, and how many have come before it reads them. Where the second list of a wire begins is known on
the device alone, once the first has been read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

import torch
from torch import Tensor

from grace import wire as wires
from grace.compute.host import host_int64
from grace.compute.launching import TILE, Marks
from grace.kernels.index_codes.codes import most
from grace.kernels.index_codes.variable import GapLists
from grace.kernels.index_codes.variable.heard import ask_counts, begins_of_all, note_ends, tensors_of_all
from grace.kernels.index_codes.variable.triton import GapTable, Laid, lay_lists, read_lists, tiles_to_read, write_laid
from grace.kernels.packing import packed_bytes
from grace.kernels.sampling.parts import COUNTS, SIGNS
from grace.kernels.sparse.triton import AT_ONCE, sum_tables
from grace.kernels.tensor_list import TensorList, carry_together, pair_programs, spans_of
from grace.kernels.variable_sparse.parts import WirePlaces


@dataclass(frozen=True)
class GapNotes:
    """Plan of a write: the table of lists, 2 T of them, and the position and length of each part of a wire."""

    table: GapTable
    laid: Laid
    widths: Tensor


class _Parts:
    """Positions in wires of rows that hold k1 and k2 numbers; of those that are dense all n are certain to be kept.

    kept: of both lists. before: bytes in front of the lists. tables: int64 ``[2, rows, 8]``, of values and of signs, as
    :class:`grace.kernels.variable_sparse.triton.Lists` has them, with all values and signs side by side.
    """

    def __init__(self, counts: Sequence[tuple[int, int]], dense: Sequence[bool]):
        self.counts = counts
        self.kept = [0 if whole else k1 for (k1, _), whole in zip(counts, dense, strict=True)], [k for _, k in counts]
        tails = [4 + packed_bytes(k2, 1) if k2 else 0 for _, k2 in counts]
        self.before = [COUNTS + 4 * k1 + tail for (k1, _), tail in zip(counts, tails, strict=True)]
        self.tables = torch.zeros(2, len(counts), 8, dtype=torch.int64, device="cpu")
        self.tables[:, :, 0] = torch.tensor(counts, dtype=torch.int64, device="cpu").t()
        self.tables[0, :, 2] = 3 * host_int64(dense)
        self.tables[0, :, 6] = host_int64(self.before) - COUNTS


def choose_gapped(
    sizes: Sequence[int],
    index: str,
    told: Sequence[Sequence[int]],
    device: torch.device,
    emit: Callable[[Tensor, int], tuple[Tensor, Tensor, Tensor]],
    write: Callable[..., None],
) -> tuple[Tensor, GapNotes]:
    """(int64 ``[T]``: how long the wires are of tensors of which ``told [3, T]`` says how many numbers are certain to be kept,
    are drawn, and are expected to be; what is to be written)
    """
    counts, dense = list[tuple[int, int]](), list[bool]()
    for n, k1, k2, expected in zip(sizes, *told, strict=True):
        size = 4 * k1 + 4 + packed_bytes(expected, 1) + most(n, k1, index) + most(n, expected, index)
        dense.append(size >= 4 * n)
        counts.append((n, 0) if dense[-1] else (k1, k2))
    parts = _Parts(counts, dense)
    rooms = [k for group in zip(*counts, strict=True) for k in group]
    parts.tables.view(-1, 8)[:, 1] = host_int64(rooms).cumsum(0) - host_int64(rooms)
    lists = GapLists((*parts.kept[0], *parts.kept[1]), index, (*parts.before, *[0] * len(sizes)))
    before = host_int64(parts.before)
    tables, begins, ends, tiles = carry_together(
        (parts.tables, before.cumsum(0) - before, before, pair_programs(-(-before // TILE))), device
    )
    places, sent, signs = emit(tables, sum(rooms))
    fields = torch.zeros(sum(parts.before), dtype=torch.uint8, device=device)
    write(tiles, tables, places, sent, signs, fields, begins, ends)
    table = GapTable([*sizes] * 2, device, lists, rooms)
    widths, laid = lay_lists(places, fields, table)
    return widths.view(2, -1).sum(dim=0), GapNotes(table, laid, widths)


def write_gapped(message: Tensor, notes: GapNotes, places: WirePlaces) -> None:
    """As :func:`grace.kernels.sampling.write_drawn_many`, into ``message [s]`` uint8."""
    T, tiles = len(places.begins), (-(-host_int64(places.widths[places.own]) // TILE)).repeat(2)
    begins, before = host_int64(places.begins) + wires.HEADER, host_int64(notes.table.before)
    where, before, tiles = carry_together((begins, before, pair_programs(tiles)), message.device)
    both = torch.cat((where, where + notes.widths[:T]))
    write_laid(message, notes.table, both, notes.widths - before, tiles, notes.laid)


def sum_gapped(rows: Tensor, many: TensorList, index: str, places: WirePlaces, weight: float) -> Tensor:
    """As :func:`grace.kernels.sampling.sum_drawn_many`, of ``rows [W, s]`` uint8: ``[T]`` bool."""
    W, T, device = len(rows), len(many), many.device
    where = host_int64(places.begins) + wires.HEADER
    told = ask_counts(rows, places, 2)
    sizes, widths = many.sizes * W, list(chain(*places.widths))
    given = [_counts_of(*each, index) for each in zip(told, sizes, widths, strict=True)]
    parts = _Parts([(k1, k2) for k1, k2, _, _ in given], [dense for _, _, dense, _ in given])
    begins = begins_of_all(rows, places)
    rooms = host_int64(widths) - host_int64(parts.before)
    lists = [
        GapLists(tuple(parts.kept[0]), index, tuple(parts.before)),
        GapLists(tuple(parts.kept[1]), index, (0,) * W * T),
    ]
    kept = host_int64(parts.kept)  # [2, W T]
    tables = parts.tables
    tables.view(-1, 8)[:, 1] = kept.view(-1).cumsum(0) - kept.view(-1)
    tables[:, :, 7] = where.repeat(W) + COUNTS
    tables[1, :, 7] += 4 * tables[0, :, 0]
    read = [tiles_to_read(rooms.masked_fill(k == 0, 0), of) for k, of in zip(kept, lists, strict=True)]
    sent, rooms, begins, fine, *programs = carry_together(
        (tables.view(2, W, T, 8).transpose(0, 1), rooms, begins,
         torch.tensor([good for *_, good in given], dtype=torch.bool, device="cpu"),
         *map(pair_programs, read), *map(spans_of, read)), device,
    )  # fmt: skip
    all_of_them, marks = tensors_of_all(many, W), Marks(rows, W * T)
    indices, ends, flat = list[Tensor](), torch.zeros_like(rooms), rows.view(-1)
    for which, of in enumerate(lists):
        table = GapTable(sizes, device, of)
        lines = table.lists.clone()
        lines[:, 7] = begins
        look = None if which else partial(note_ends, ends, flat, lines, of.index == "delta")
        indices.append(read_lists(flat[None], (rooms - ends)[None], all_of_them, table, programs[which], programs[2 + which],
                                lines, marks.clean, look)[0])  # fmt: skip
        ends = ends.clamp_min(0).minimum(rooms)
        begins = begins + lines[:, 6] + ends
    own, steps = Marks(rows, T), max(1, *map(max, parts.counts)).bit_length()
    for first in range(0, W, AT_ONCE // 2):
        part = slice(first, first + AT_ONCE // 2)
        sum_tables(rows[part], many, sent[part].contiguous(), torch.cat(indices)[None], steps, weight, own, False, each=True,
                   add=first > 0, codes=SIGNS, plane=0, pairs=True)  # fmt: skip
    return own.clean & (marks.clean & fine).view(W, T).all(dim=0)


def _counts_of(counts: Sequence[int], n: int, width: int, index: str) -> tuple[int, int, bool, bool]:
    """(k1, k2, whether all n numbers travel, whether a wire of n numbers may say so that has this width); if not, 0 and 0."""
    k1, k2 = counts
    if (k1, k2) in ((-1, 0), (n, 0)):
        return (n, 0, True, True) if width == COUNTS + 4 * n else (0, 0, False, False)
    if not (k1 >= 0 and k2 >= 0 and k1 + k2 <= n):
        return 0, 0, False, False
    size = width - COUNTS - 4 * k1 - (4 + packed_bytes(k2, 1) if k2 else 0)
    unary = packed_bytes(k1, 1) + packed_bytes(k2, 1) if index == "rice" else 0
    least = sum(GapLists((k1, k2), index, (0, 0)).heads([n, n])) + unary
    legal = least <= size <= most(n, k1, index) + most(n, k2, index)
    return (k1, k2, False, True) if legal else (0, 0, False, False)
