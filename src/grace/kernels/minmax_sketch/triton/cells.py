"""Groups of neighboring buckets, and where the cells of their sketches are, as Triton kernels find them.

Letters: G groups; R hash functions. What belongs to the groups of a row is a table ``[G, 4]``: how many cells a row of a
group's sketch has, its first cell and its first byte among those of all groups, and the bits of a cell.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from grace.compute.launching import power_of_two
from grace.kernels.minmax_sketch import MinMaxCode
from grace.kernels.minmax_sketch.groups import BucketGroups
from grace.kernels.tensor_list import TensorList


@triton.jit
def sides_of(sides, z):
    """int32: how many groups are below zero, and how many buckets one of them and one of the others has."""
    at = sides + 3 * z
    return tl.load(at), tl.load(at + 1), tl.load(at + 2)


@triton.jit
def locate(bucket, z, below, lower, upper):
    """(int32: the groups of buckets; their numbers within these: the smaller, the nearer to zero)"""
    far = tl.where(bucket < z, z - 1 - bucket, bucket - z)
    width = tl.where(bucket < z, lower, upper)
    return far // width + tl.where(bucket < z, 0, below), far % width


@triton.jit
def bucket_at(group, number, z, below, lower, upper):
    """int32: the inverse of :func:`locate`; of a pair that no bucket has something outside [0, q)."""
    far = number + tl.where(group < below, group * lower, (group - below) * upper)
    return tl.where(group < below, z - 1 - far, z + far)


@triton.jit
def lay_cells(at, count, group, below, lower, upper, share, R, G: tl.constexpr):
    """Writes the table of groups of ``count`` numbers each: the bytes of all cells."""
    exact = count.to(tl.float64) * tl.load(share)
    cols = exact.to(tl.int64)
    cols += (cols.to(tl.float64) < exact).to(tl.int64)  # rounded up
    width = tl.where(group < below, lower, upper)
    bits = tl.zeros_like(cols)
    for b in tl.static_range(0, 8):
        bits += (((width - 1) >> b) > 0).to(tl.int64)
    cells = R * cols
    size = (cells * bits + 7) // 8
    at += 4 * group
    inside = group < G
    tl.store(at, cols, inside)
    tl.store(at + 1, tl.cumsum(cells, 0) - cells, inside)
    tl.store(at + 2, tl.cumsum(size, 0) - size, inside)
    tl.store(at + 3, bits, inside)
    return tl.sum(size, 0)


def sides_table(many: TensorList, code: MinMaxCode) -> Tensor:
    """int32 ``[q + 1, 3]``: what :func:`sides_of` says, whichever bucket is the first above zero."""

    def make() -> list[int]:
        each = (BucketGroups.of(code.q, z, code.groups) for z in range(code.q + 1))
        return [number for sides in each for number in (sides.below[0], sides.below[1], sides.above[1])]

    return many.numbers((MinMaxCode, code.q, code.groups), make, torch.int32)


def constants_of(many: TensorList, code: MinMaxCode) -> tuple[Tensor, Tensor]:
    """(:func:`sides_table`; float64 ``[1]``: the share of cells)"""
    return sides_table(many, code), many.numbers((MinMaxCode, "share", code.share), lambda: [code.share], torch.float64)


def lanes_of_groups(groups: int) -> int:
    """A power of two that is at least so many, and that a histogram may have bins."""
    return max(32, power_of_two(groups))
