"""Selection of both sides as Triton kernels: each row has a search for its positive numbers, and one for its negative ones.

The first pass notes what may be selected on either side, in the same slabs; each search reads those of its side.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from grace.kernels.selection.triton import count_largest
from grace.kernels.selection.triton.candidates import (
    Look,
    Notes,
    kept_of,
    key_of_number,
    measure_many,
    noted,
    on_side,
    row_of,
    tiles_at,
)
from grace.kernels.tensor_list import TensorList


@triton.jit
def _list(
    table, programs, x, n, tiles, spans, slabs, counts, state, begins, plane, rooms, index, sent,
    HELD: tl.constexpr, MANY: tl.constexpr, EVEN: tl.constexpr, SIDES: tl.constexpr, COLUMNS: tl.constexpr,
    GROUP: tl.constexpr, CHUNK: tl.constexpr, ROOM: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Writes places and numbers where ``rooms [rows, 2]`` says: for how many there is room, and where the first goes. Of keys
    equal to the k-th of a side the first ones are taken.
    """
    row = row_of(programs, MANY)
    room, first = kept_of(rooms, row, 0, MANY)
    at = state + COLUMNS * SIDES * row
    upper_kth, upper_wanted = tl.load(at + 8), tl.load(at + 9)
    entire = tl.load(at + 1) > 0
    lower_kth, lower_wanted = upper_kth, upper_wanted
    if SIDES == 2:
        lower_kth, lower_wanted = tl.load(at + COLUMNS + 8), tl.load(at + COLUMNS + 9)
        entire = entire | (tl.load(at + COLUMNS + 1) > 0)
    tile, this, there, count, x, n, turns = tiles_at(
        table, programs, x, n, tiles, spans, counts, entire, HELD, MANY, EVEN, GROUP, CHUNK, ROOM, TILE
    )
    uppers = tl.load(begins + plane + this, there, 0)
    begin = tl.load(begins + this, there, 0) + tl.minimum(uppers, upper_wanted)
    lowers = uppers
    if SIDES == 2:
        lowers = tl.load(begins + 3 * plane + this, there, 0)
        begin += tl.load(begins + 2 * plane + this, there, 0) + tl.minimum(lowers, lower_wanted)
    for turn in range(turns):
        i, inside, p = noted(turn, tile, this, there, count, x, n, slabs, CHUNK, ROOM, TILE)
        key, up = key_of_number(p, True), on_side(inside, p, 0, SIDES)
        kth, wanted = tl.where(up, upper_kth, lower_kth), tl.where(up, upper_wanted, lower_wanted)
        equal = inside & (key == kth)
        upper, lower = (equal & up).to(tl.int32), (equal & (up == 0)).to(tl.int32)
        which = tl.where(up, uppers + tl.cumsum(upper, 1), lowers + tl.cumsum(lower, 1))
        keep = inside & ((key > kth) | (equal & (which <= wanted)))
        uppers += tl.sum(upper, 1)[:, None]
        lowers += tl.sum(lower, 1)[:, None]
        ones = keep.to(tl.int32)
        o = begin + tl.cumsum(ones, 1) - ones
        begin += tl.sum(ones, 1)[:, None]
        keep = keep & (o < room)
        tl.store(index + first + o, i.to(tl.int64), keep)
        tl.store(sent + first + o, p, keep)


def list_largest(look: Look, many: TensorList, kept: Tensor, rooms: Tensor, index: Tensor, sent: Tensor) -> None:
    """Writes the places ``[K]``, ascending in each row, and the numbers ``[K]`` of the largest of each search, ``kept
    [searches, 2]`` int64, into lists where ``rooms [rows, 2]`` int64 says: how long they may be, and where they begin. There
    are no memories to add.
    """
    notes = Notes.of_largest(look, kept, None, False, kept, None)
    measure_many(look, many, notes)
    look.read(_list, notes, count_largest(look, notes), look.tiles, rooms, index, sent, SIDES=look.sides)
