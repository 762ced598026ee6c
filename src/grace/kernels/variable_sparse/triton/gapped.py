"""Counted wires whose places travel as gaps, delta or rice, by the Triton kernels for lists of known lengths.

The host is asked how many numbers are sent before it knows how long wires are, and how many have come before it reads them:
what the kernels for lists need is then known. That is two questions more, whatever the number of tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor

from grace import wire as wires
from grace.compute.host import host_int64
from grace.compute.launching import TILE, Marks
from grace.kernels.index_codes.codes import most
from grace.kernels.index_codes.variable import GapLists
from grace.kernels.index_codes.variable.heard import ask_counts, begins_of_all, tensors_of_all
from grace.kernels.index_codes.variable.triton import GapTable, Laid, lay_lists, read_lists, tiles_to_read, write_laid
from grace.kernels.packing import packed_bytes
from grace.kernels.selection.triton import Largest, Reaching
from grace.kernels.sparse.triton import AT_ONCE, sum_tables, write_tables
from grace.kernels.sparse_codes import Payload
from grace.kernels.tensor_list import TensorList, carry_together, pair_programs, spans_of
from grace.kernels.variable_sparse.parts import COUNT, DENSE_COUNT, Chosen, CountedCode, CountedPlaces
from grace.kernels.variable_sparse.triton.sided import ListedSides


@dataclass(frozen=True)
class _Notes:
    """Plan of a write: the table of its lists, and the position of each part."""

    table: GapTable
    laid: Laid


class _Fields:
    """Fields of rows of ``sizes`` numbers whose wires begin with these counts: -1 is all.

    stored: of each, how many values it has. lists: of places. tables: int64 ``[rows, 8]``, as
    :class:`grace.kernels.variable_sparse.triton.Lists` has them, with lists and values side by side; where values begin is
    left out.
    """

    def __init__(self, counts: Sequence[int], sizes: Sequence[int], code: CountedCode):
        self.dense = [count == DENSE_COUNT for count in counts]
        self.stored = [n if whole else k for n, k, whole in zip(sizes, counts, self.dense, strict=True)]
        before = [COUNT + code.bytes_of(k) for k in self.stored]
        kept = [0 if whole else k for k, whole in zip(self.stored, self.dense, strict=True)]
        self.lists = GapLists(tuple(kept), code.index, tuple(before))
        self.tables = torch.zeros(len(before), 8, dtype=torch.int64, device="cpu")
        stored = host_int64(self.stored)
        self.tables[:, 0], self.tables[:, 1] = stored, stored.cumsum(0) - stored
        self.tables[:, 2], self.tables[:, 6] = 3 * host_int64(self.dense), host_int64(before) - COUNT

    @property
    def steps(self) -> int:
        """Bits of the longest list that there is."""
        return max(self.stored).bit_length()


def choose_gapped(
    many: TensorList, picked: Reaching | Largest | ListedSides, finite: Tensor, code: CountedCode, fronts: Tensor | None
) -> Chosen:
    """As :func:`grace.kernels.variable_sparse.choose_reaching_many`, of what was picked."""
    counts: list[int] = picked.total.tolist()  # the question
    for t, (n, k) in enumerate(zip(many.sizes, counts, strict=True)):
        if code.whole and k * code.value + most(n, k, code.index) >= n * code.value:
            counts[t] = DENSE_COUNT
    says, device = _Fields(counts, many.sizes, code), many.device
    begins, size = host_int64(says.lists.begins), sum(says.lists.before)
    says.tables[:, 7] = begins + COUNT
    tiles = pair_programs(-(-says.tables[:, 6] // TILE))
    heads = begins[:, None] + torch.arange(COUNT, dtype=torch.int64, device="cpu")
    own, tiles, heads, numbers = carry_together(
        (says.tables, tiles, heads, torch.tensor(counts, dtype=torch.int32, device="cpu")), device
    )
    K = sum(says.stored)
    payload = Payload(code.narrow, code.codes, fronts)
    index, sent = own.new_empty(K), payload.room(K, device)
    picked.emit(own, index, sent, many.rests is not None, payload)
    fields = torch.zeros(size, dtype=torch.uint8, device=device)
    fields[heads.view(-1)] = numbers.view(torch.uint8)
    write_tables(fields, many, own, tiles, index, sent, payload)
    table = GapTable(many.sizes, device, says.lists, says.stored)
    widths, laid = lay_lists(index, fields, table)
    return Chosen(widths, finite, _Notes(table, laid))


def write_gapped(message: Tensor, chosen: Chosen, places: CountedPlaces) -> None:
    """As :func:`grace.kernels.variable_sparse.write_chosen_many`, into ``message [s]`` uint8."""
    table, widths = chosen.notes.table, host_int64(places.widths[places.own])
    where = host_int64(places.begins) + wires.HEADER
    parts = (where, widths - host_int64(table.before), pair_programs(-(-widths // TILE)))
    write_laid(message, table, *carry_together(parts, message.device), chosen.notes.laid)


def sum_gapped(rows: Tensor, many: TensorList, code: CountedCode, places: CountedPlaces, weight: float) -> Tensor:
    """As :func:`grace.kernels.variable_sparse.sum_counted_many`, of ``rows [W, s]`` uint8: ``[T]`` bool."""
    W, T, device = len(rows), len(many), many.device
    where = host_int64(places.begins) + wires.HEADER
    told = [count for (count,) in ask_counts(rows, places, 1)]
    sizes, widths = many.sizes * W, list(chain(*places.widths))
    legal = [_fits(*each, code) for each in zip(told, sizes, widths, strict=True)]
    says = _Fields([count if fine else 0 for count, fine in zip(told, legal, strict=True)], sizes, code)
    table = GapTable(sizes, device, says.lists)
    firsts = host_int64(says.lists.kept)
    says.tables[:, 1], says.tables[:, 7] = firsts.cumsum(0) - firsts, where.repeat(W) + COUNT
    room = (host_int64(widths) - host_int64(says.lists.before)).masked_fill_(firsts == 0, 0)
    begins = begins_of_all(rows, places)
    read = tiles_to_read(room, says.lists)
    tables, room, begins, read, spans, fine = carry_together(
        (
            says.tables,
            room,
            begins,
            pair_programs(read),
            spans_of(read),
            torch.tensor(legal, dtype=torch.bool, device="cpu"),
        ),
        device,
    )
    marks, lists = Marks(rows, W * T), table.lists.clone()
    lists[:, 7] = begins
    index = read_lists(rows.view(1, -1), room[None], tensors_of_all(many, W), table, read, spans, lists, marks.clean)
    own = Marks(rows, T)
    for first in range(0, W, AT_ONCE):
        part = slice(first, first + AT_ONCE)
        sum_tables(rows[part], many, tables.view(W, T, 8)[part].contiguous(), index, says.steps, weight, own, code.narrow,
                   each=True, add=first > 0, codes=code.codes, plane=0)  # fmt: skip
    return many.all_of(own.clean) & (marks.clean & fine).view(W, T).all(dim=0)


def _fits(count: int, n: int, width: int, code: CountedCode) -> bool:
    """True if a wire of n numbers may have this count and this width."""
    if code.whole and count == DENSE_COUNT:
        return width == COUNT + code.bytes_of(n)
    if not 0 <= count <= n:
        return False
    size, (head,) = width - COUNT - code.bytes_of(count), GapLists((count,), code.index, (0,)).heads([n])
    unary = packed_bytes(count, 1) if code.index == "rice" else 0
    return head + unary <= size <= most(n, count, code.index)
