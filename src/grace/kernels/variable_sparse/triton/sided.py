"""The largest of both sides of several tensors, and their means, as Triton kernels, without a question to the
host, unless samples are drawn.

How many numbers there may be follows from how many there are of each tensor: lists have room for these. The means are sums
over such a list, which has zeros behind what it holds.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from grace.compute.launching import TILE, launch
from grace.kernels.blocks import block_count
from grace.kernels.selection.triton.candidates import Look, measure_many
from grace.kernels.selection.triton.sides import list_largest
from grace.kernels.sparse_codes import Payload
from grace.kernels.sparse_codes.triton import code_of_number, coding, number_of_code
from grace.kernels.statistics.triton import SPLIT, ordered_sums_of_many
from grace.kernels.tensor_list import TensorList
from grace.kernels.tensor_list.triton import tensor_of, tile_of
from grace.kernels.variable_sparse.side_samples import count_sampled
from grace.kernels.variable_sparse.sides import SideSelection


@triton.jit
def _encode(
    table, programs, rooms, places, numbers, lists, index, sent, fronts,
    KEEP_REST: tl.constexpr, KIND: tl.constexpr, MOST: tl.constexpr, BITS: tl.constexpr, EVEN: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """Copies what is listed where ``rooms [T, 2]`` says to where ``lists [T, 8]`` does, as codes; rests keep what these do not
    say.
    """
    row, tile = tile_of(programs)
    room, first = tl.load(rooms + 2 * row), tl.load(rooms + 2 * row + 1)
    k, begin = tl.load(lists + 8 * row), tl.load(lists + 8 * row + 1)
    j = tile * TILE + tl.arange(0, TILE)
    inside = j < tl.minimum(k, room)
    i = tl.load(places + first + j, inside, 0)
    p = tl.load(numbers + first + j, inside, 0.0)
    word = tl.load(fronts + row)
    code = code_of_number(p, word, KIND, MOST)
    tl.store(index + begin + j, i, inside)
    tl.store(sent + begin + j, code, inside)
    if KEEP_REST:
        tl.store(tensor_of(table, row, 2, EVEN) + i, p - number_of_code(code, word, KIND), inside)


class _Lists:
    """Room for what is selected of the tensors of a bucket.

    rooms: int64 ``[T, 2]``, of each how much, and where it begins. places, numbers: ``[K]``. sums: the numbers as tensors.
    """

    def __init__(self, many: TensorList, sizes: tuple[int, ...]):
        wide = [4 * block_count(room, 4) for room in sizes]  # kernels read what begins at multiples of 16 bytes faster
        begins = [sum(wide[:t]) for t in range(len(wide))]
        pairs = [number for pair in zip(sizes, begins, strict=True) for number in pair]
        self.rooms = many.numbers((_Lists, sizes, "rooms"), lambda: pairs, torch.int64).view(-1, 2)
        self.places = torch.zeros(sum(wide), dtype=torch.int64, device=many.device)
        self.numbers = torch.zeros(sum(wide), device=many.device, dtype=torch.float32)
        self.sums = TensorList(sizes, (), (), many.device)
        rows = self.numbers.split(wide)
        self.sums.point([row[None, :room] for row, room in zip(rows, sizes, strict=True)])
        self.longest = max(sizes)

    @staticmethod
    def of(many: TensorList, sides: SideSelection) -> _Lists:
        """Tables of a bucket, which are made once."""
        return many.once((_Lists, sides), lambda: _Lists(many, tuple(map(sides.room, many.sizes))))

    def means(self, total: Tensor) -> Tensor:
        """int64 ``[T]``: the fronts of the lists, of which ``total [T]`` numbers are there and the others 0."""
        upper, lower, count = ordered_sums_of_many(self.sums, self.longest, SPLIT)
        positive = count - (self.rooms[:, 0] - total)
        negative = total - positive
        means = upper / positive.clamp_min_(1), -(lower / negative.clamp_min_(1))
        return torch.stack(means, dim=1).float().view(torch.int64)[:, 0]


@dataclass(frozen=True)
class ListedSides:
    """The selected numbers, in lists. total: int32 ``[T]``, how many numbers of each tensor."""

    many: TensorList
    lists: _Lists
    total: Tensor

    def emit(self, lists: Tensor, index: Tensor, sent: Tensor, keep_rest: bool, payload: Payload) -> None:
        """As :meth:`grace.kernels.selection.triton.Reaching.emit`, of codes, ``[K]`` each."""
        many, there = self.many, self.lists
        tiles = there.sums.tiles(TILE)
        launch(_encode, (len(tiles),), many.table, tiles, there.rooms, there.places, there.numbers, lists, index, sent,
               payload.fronts, KEEP_REST=keep_rest, **coding(payload.codes), EVEN=many.even, TILE=TILE)  # fmt: skip


def list_sides(many: TensorList, sides: SideSelection, step: int) -> tuple[ListedSides, Tensor, Tensor]:
    """Selects by ``sides`` from each tensor plus its memory in this step: (lists of the selected numbers; their fronts
    int64 ``[T]``; ``[T]`` bool, which tensors are finite). Rests, if there are any, become those sums; of what is not
    finite nothing is selected.
    """
    signs = torch.zeros(len(many), 2, dtype=torch.int32, device=many.device)
    finite = measure_many(Look.at_many(many), many, None, signs)
    counts = signs.sum(dim=1, keepdim=True) if sides.joint else signs
    counts = counts.masked_fill(~finite[:, None], 0)
    kept = sides.kept(counts.long())  # [T, searches]
    numbers, lists = (
        many.once((_Lists, "numbers"), lambda: TensorList(many.sizes, (), (), many.device)),
        _Lists.of(many, sides),
    )
    numbers.point(many.rests or many.xs)
    if sides.sample:
        kept = count_sampled(kept, counts, numbers, many.streams, sides, step)
    lists.numbers.zero_()
    pairs = torch.stack((kept.view(-1), torch.zeros_like(kept.view(-1))), dim=1)
    list_largest(Look.at_many(numbers, kept.shape[1]), numbers, pairs, lists.rooms, lists.places, lists.numbers)
    total = kept.sum(dim=1)
    return ListedSides(many, lists, total.to(torch.int32)), lists.means(total), finite
