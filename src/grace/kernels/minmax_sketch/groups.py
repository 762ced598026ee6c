"""Neighboring buckets in groups, none of which holds both signs: sketchml.

Letters: q buckets, of which the first z hold negative numbers; far: how many buckets lie between one and zero.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


class BucketGroups(NamedTuple):
    """``below`` and ``above`` zero: (groups, buckets of each). The groups of both sides are numbered one after the other."""

    z: int
    below: tuple[int, int]
    above: tuple[int, int]

    @classmethod
    def of(cls, q: int, z: int, groups: int) -> BucketGroups:
        """At most ``groups`` groups of q buckets; zero is always between two of them."""
        total = min(groups, q)
        below = 0 if z == 0 else total if z == q else min(max(round(total * z / q), 1), total - 1)
        above = total - below
        return cls(z, (below, math.ceil(z / max(1, below)) or 1), (above, math.ceil((q - z) / max(1, above)) or 1))

    @property
    def total(self) -> int:
        """Number of groups, below zero and above."""
        return self.below[0] + self.above[0]

    @property
    def bits(self) -> int:
        """Bits of a group's number."""
        return (self.total - 1).bit_length()

    @property
    def widths(self) -> list[int]:
        """Buckets of each group."""
        return [self.below[1]] * self.below[0] + [self.above[1]] * self.above[0]

    def locate(self, code: Tensor) -> tuple[Tensor, Tensor]:
        """Buckets ``[k]`` -> (their groups, their numbers within these: the smaller, the nearer to zero)."""
        far = torch.where(code < self.z, self.z - 1 - code, code - self.z)
        group = torch.where(code < self.z, far // self.below[1], far // self.above[1] + self.below[0])
        return group, torch.where(code < self.z, far % self.below[1], far % self.above[1])

    def code_of(self, group: Tensor, number: Tensor) -> Tensor:
        """The inverse of :meth:`locate`; a pair that no bucket has gives a number outside [0, q)."""
        negative = group < self.below[0]
        far = number + torch.where(negative, group * self.below[1], (group - self.below[0]) * self.above[1])
        return torch.where(negative, self.z - 1 - far, self.z + far)
