"""A grid of ranks: several axes, such as the machines of a job and the workers inside one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

from grace.errors import ConfigurationError


class Grid:
    """Ranks in rows, columns and so on: ``Grid({"machines": 2, "machine": 4})`` is 8 ranks, the last axis running fastest.

    A *line* along an axis is the ranks that differ in their place along this axis only.

    Args:
        sizes: the number of places along each axis, by its name.

    Raises:
        ConfigurationError: no axis, an axis without a name, or a size below 1.

    Example:
        >>> grid = Grid({"machines": 2, "machine": 4})
        >>> grid.place(6)
        {'machines': (1, 2), 'machine': (2, 4)}
        >>> grid.line(6, "machines"), grid.line(6, "machine")
        ((2, 6), (4, 5, 6, 7))
    """

    def __init__(self, sizes: Mapping[str, int]):
        if not sizes or not all(name and type(size) is int and size >= 1 for name, size in sizes.items()):
            raise ConfigurationError(
                f"a grid of {dict(sizes)!r}; legal: a whole number >= 1 for each axis, which has a name, and one axis at least"
            )
        self.sizes: Mapping[str, int] = MappingProxyType(dict(sizes))
        self.world = math.prod(sizes.values())
        self._strides = {}
        stride = self.world
        for name, size in sizes.items():
            stride //= size
            self._strides[name] = stride

    def __repr__(self) -> str:
        return f"Grid({dict(self.sizes)!r})"

    def place(self, rank: int) -> dict[str, tuple[int, int]]:
        """Position of a rank: its place along each axis, and the size of the axis."""
        return {name: (rank // self._strides[name] % size, size) for name, size in self.sizes.items()}

    def line(self, rank: int, axis: str) -> tuple[int, ...]:
        """The ranks on this rank's line along an axis, in their order.

        Raises:
            ConfigurationError: there is no such axis.
        """
        self._check(axis)
        stride, size = self._strides[axis], self.sizes[axis]
        first = rank - rank // stride % size * stride
        return tuple(first + place * stride for place in range(size))

    def lines(self, axis: str) -> list[tuple[int, ...]]:
        """All lines along an axis; each rank is on one of them.

        Raises:
            ConfigurationError: there is no such axis.
        """
        self._check(axis)
        return sorted({self.line(rank, axis) for rank in range(self.world)})

    def _check(self, axis: str) -> None:
        if axis not in self.sizes:
            raise ConfigurationError(f"there is no axis {axis!r}; this grid has {', '.join(map(repr, self.sizes))}")
