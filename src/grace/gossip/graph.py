"""Graphs of gossip: who hears whom, with which weight.

A graph is a mixing matrix w: row i has the weights of what worker i goes on with. Rows and columns sum to 1, so that the
average over the workers stays as it is. It is cut into rounds, in each of which a worker sends to at most one other, and
hears at most
one: a round is one collective.

Letters: W workers; d neighbours of a worker, not counting itself.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from grace.errors import ConfigurationError, nearest

_SLACK = 1e-6  # by which weights may exceed 1: they come from decimal numbers


@dataclass(frozen=True, slots=True)
class Round:
    """A message for each worker.

    pairs: of (source, destination). weights: of what each worker hears, by rank; 0 where it hears nobody.
    """

    pairs: tuple[tuple[int, int], ...]
    weights: tuple[float, ...]


@dataclass(frozen=True)
class Graph:
    """A mixing matrix, or several in turn.

    Args:
        name: as it was asked for.
        world: W, at least 2.
        cycle: the rounds of step t are ``cycle[t % len(cycle)]``.

    Raises:
        ConfigurationError: W below 2, a worker that hears itself or hears two in a round, weights that are negative, exceed 1,
            or would not keep the average.

    Example:
        >>> ring = Graph.read("ring", 8)
        >>> ring.rounds(0)[0].pairs[:2], len(ring.rounds(0)), round(ring.gap, 4)
        (((0, 1), (1, 2)), 2, 0.1953)
    """

    name: str
    world: int
    cycle: tuple[tuple[Round, ...], ...]

    def __post_init__(self) -> None:
        W = self.world
        if type(W) is not int or W < 2:
            raise ConfigurationError(f"gossip: {W} workers; legal: at least 2. One worker has nobody to hear")
        for rounds in self.cycle:
            for turn in rounds:
                self._check(turn)
            own = [1 - sum(turn.weights[r] for turn in rounds) for r in range(W)]
            if min(own) < -_SLACK:
                r = own.index(min(own))
                raise ConfigurationError(
                    f"gossip: graph {self.name!r}: worker {r} hears its neighbours with weights that sum to {1 - own[r]:.4g}; "
                    "legal: at most 1, the rest is its own"
                )
        for t in range(len(self.cycle)):
            off = (self.matrix(t).sum(0) - 1).abs()
            if float(off.max()) > 1e-5:
                raise ConfigurationError(
                    f"gossip: graph {self.name!r}: what worker {int(off.argmax())} sends counts "
                    f"{1 + float(off.max()):.4g} times in all: the average over the workers would drift; "
                    "legal: columns that sum to 1, such as equal weights both ways"
                )

    def _check(self, turn: Round) -> None:
        for s, d in turn.pairs:
            if not (0 <= s < self.world and 0 <= d < self.world) or s == d:
                raise ConfigurationError(
                    f"gossip: graph {self.name!r} sends from worker {s} to {d}; legal: two different ones of 0, ..., "
                    f"{self.world - 1}"
                )
        if any(len({pair[end] for pair in turn.pairs}) < len(turn.pairs) for end in (0, 1)):
            raise ConfigurationError(f"gossip: graph {self.name!r}: a worker sends, or hears, twice in one round")
        if not all(math.isfinite(a) and a >= 0 for a in turn.weights):
            raise ConfigurationError(f"gossip: graph {self.name!r} has weights {turn.weights}; legal: finite and >= 0")

    # ---- what it says -----------------------------------------------------------------------------------------------
    def rounds(self, step: int) -> tuple[Round, ...]:
        """The rounds of a step."""
        return self.cycle[step % len(self.cycle)]

    def own(self, step: int, rank: int) -> float:
        """The weight of what a worker has itself."""
        return max(0.0, 1 - sum(turn.weights[rank] for turn in self.rounds(step)))

    @property
    def varies(self) -> bool:
        """True if it differs from step to step."""
        return len(self.cycle) > 1

    def matrix(self, step: int = 0) -> Tensor:
        """W of a step: float64 ``[W, W]``, row i for worker i."""
        w = torch.zeros(self.world, self.world, dtype=torch.float64, device="cpu")
        for turn in self.rounds(step):
            for s, d in turn.pairs:
                w[d, s] += turn.weights[d]
        return w + torch.diag(1 - w.sum(1))

    @functools.cached_property
    def gap(self) -> float:
        """The spectral gap rho of a step, 0 to 1: the distance to the average shrinks at least by 1 - rho in each round of
        uncompressed gossip. 1: it is zero at once; 0: the graph falls apart. Of several matrices in turn it is that of a whole
        cycle, as a geometric mean.
        """
        W, count = self.world, len(self.cycle)
        product = torch.eye(W, dtype=torch.float64, device="cpu")
        for t in range(count):
            product = self.matrix(t) @ product
        left = float(torch.linalg.matrix_norm(product - 1 / W, ord=2))
        return 1.0 - math.pow(min(1.0, left if left > 1e-12 else 0.0), 1 / count)

    def theory_gamma(self, delta: float) -> float:
        """The step size of CHOCO's theorem 2, for symmetric w and a compressor with this contraction delta. In practice
        hundreds of times larger ones converge.
        """
        w = self.matrix()
        beta = float(torch.linalg.matrix_norm(torch.eye(self.world, dtype=w.dtype, device="cpu") - w, ord=2))
        rho = self.gap
        return rho**2 * delta / (16 * rho + rho**2 + 4 * beta**2 + 2 * rho * beta**2 - 8 * rho * delta)

    # ---- making one -------------------------------------------------------------------------------------------------
    @classmethod
    def circulant(cls, world: int, shifts: Sequence[tuple[int, float]], name: str = "circulant") -> Graph:
        """Worker i hears worker i - s with weight a, for each (s, a); the rest is its own.

        Raises:
            ConfigurationError: a shift of 0 modulo W, weights that exceed 1.
        """
        return cls(name, world, (_turns(world, shifts, name),))

    @classmethod
    def of_edges(cls, world: int, edges: Sequence[Sequence[float]], name: str = "edges") -> Graph:
        """Undirected edges ``(i, j)`` or ``(i, j, weight)``; without weights they are Metropolis's, ``1 / (1 + max(d_i,
        d_j))``.

        Raises:
            ConfigurationError: an edge to oneself, twice, or to a worker that is not there; weights that exceed 1.
        """
        pairs = [_read_edge(edge, world, name) for edge in edges]
        if len({frozenset(pair) for pair, _ in pairs}) < len(pairs):
            raise ConfigurationError(f"gossip: graph {name!r} has an edge twice")
        degree = [sum(r in pair for pair, _ in pairs) for r in range(world)]
        left = [(pair, 1 / (1 + max(degree[r] for r in pair)) if a is None else a) for pair, a in pairs]
        rounds: list[Round] = []
        while left:  # a matching at a time
            busy: set[int] = set()
            weights, chosen, later = [0.0] * world, [], []
            for (i, j), a in left:
                if busy.isdisjoint((i, j)):
                    busy |= {i, j}
                    chosen += [(i, j), (j, i)]
                    weights[i] = weights[j] = a
                else:
                    later.append(((i, j), a))
            rounds.append(Round(tuple(chosen), tuple(weights)))
            left = later
        return cls(name, world, (tuple(rounds),))

    @classmethod
    def read(cls, graph: str | Graph, world: int) -> Graph:
        """The graph of W workers that a name or the path of a file says.

        Args:
            graph: one of :data:`GRAPHS`, or the path of a JSON file, which ends in ``.json``: ``{"workers": 3, "edges":
                [[0, 1], [1, 2]]}`` with undirected edges, each with or without a weight, or ``{"workers": 8, "shifts": [[1,
                0.25], [7, 0.25]]}``.
            world: W.

        Raises:
            ConfigurationError: an unknown name, a file that is cut or is no such graph, another number of workers.
        """
        if isinstance(graph, Graph):
            if graph.world != world:
                raise ConfigurationError(
                    f"gossip: the graph {graph.name!r} is of {graph.world} workers, and there are {world}"
                )
            return graph
        if not isinstance(graph, str):
            raise ConfigurationError(
                f"gossip: graph={graph!r}; legal: {', '.join(GRAPHS)}, or a path that ends in .json"
            )
        if graph.endswith(".json"):
            return _read_file(graph, world)
        if graph not in GRAPHS:
            close = nearest(graph, GRAPHS)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise ConfigurationError(
                f"gossip: graph={graph!r}; legal: {', '.join(GRAPHS)}, or the path of a file that ends in .json.{hint}"
            )
        if type(world) is not int or world < 2:
            raise ConfigurationError(f"gossip: {world} workers; legal: at least 2. One worker has nobody to hear")
        return cls(graph, world, GRAPHS[graph](world))


def _turns(world: int, shifts: Sequence[tuple[int, float]], name: str) -> tuple[Round, ...]:
    rounds = []
    for shift, weight in shifts:
        if type(shift) is not int or shift % world == 0:
            raise ConfigurationError(
                f"gossip: graph {name!r} has shift {shift!r}, by which {world} workers hear themselves; legal: a whole number "
                f"that is no multiple of {world}"
            )
        rounds.append(Round(tuple((r, (r + shift) % world) for r in range(world)), (float(weight),) * world))
    return tuple(rounds)


def _alike(world: int, shifts: Sequence[int], name: str) -> tuple[Round, ...]:
    """All of d neighbours and oneself with the same weight."""
    distinct = list(dict.fromkeys(shift % world for shift in shifts))
    return _turns(world, [(shift, 1 / (1 + len(distinct))) for shift in distinct], name)


def _ring(world: int) -> tuple[tuple[Round, ...], ...]:
    return (_alike(world, (1, world - 1), "ring"),)


def _powers(world: int) -> list[int]:
    return [2**k for k in range((world - 1).bit_length())]


def _exponential(world: int) -> tuple[tuple[Round, ...], ...]:
    return (_alike(world, _powers(world), "exponential"),)


def _one_peer(world: int) -> tuple[tuple[Round, ...], ...]:
    return tuple(_turns(world, [(shift, 0.5)], "one_peer_exponential") for shift in _powers(world))


def _full(world: int) -> tuple[tuple[Round, ...], ...]:
    return (_alike(world, range(1, world), "full"),)


def _torus(world: int) -> tuple[tuple[Round, ...], ...]:
    rows = max((a for a in range(2, math.isqrt(world) + 1) if world % a == 0), default=0)
    if not rows:
        raise ConfigurationError(f"gossip: a torus has at least 2 rows and 2 columns, got {world} workers; legal: ring")
    columns = world // rows
    steps = ((0, 1), (0, -1), (1, 0), (-1, 0))  # down and right
    moves = dict.fromkeys(
        tuple((r // columns + down) % rows * columns + (r + right) % columns for r in range(world))
        for down, right in steps
    )
    weights = (1 / (1 + len(moves)),) * world
    return (tuple(Round(tuple(enumerate(move)), weights) for move in moves),)


GRAPHS: Mapping[str, Callable[[int], tuple[tuple[Round, ...], ...]]] = MappingProxyType({
    "ring": _ring,
    "torus": _torus,
    "exponential": _exponential,
    "one_peer_exponential": _one_peer,
    "full": _full,
})  # fmt: skip


def _read_edge(edge: Any, world: int, name: str) -> tuple[tuple[int, int], float | None]:
    good = isinstance(edge, list | tuple) and len(edge) in (2, 3) and all(type(end) is int for end in edge[:2])
    if not good or not all(0 <= end < world for end in edge[:2]) or edge[0] == edge[1]:
        raise ConfigurationError(
            f"gossip: graph {name!r} has the edge {edge!r}; legal: [i, j] or [i, j, weight], with two different "
            f"ones of 0, ..., {world - 1}"
        )
    if len(edge) == 2:
        return (edge[0], edge[1]), None
    weight = edge[2]
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight <= 1:
        raise ConfigurationError(f"gossip: graph {name!r} has the weight {weight!r}; legal: 0 < weight <= 1")
    return (edge[0], edge[1]), float(weight)


def _read_file(path: str, world: int) -> Graph:
    forms = '{"workers": W, "edges": [[i, j], [i, j, weight], ...]} or {"workers": W, "shifts": [[shift, weight], ...]}'
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"gossip: the graph {path} cannot be read: {error}") from error
    try:
        told = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigurationError(f"gossip: the graph {path} is no JSON, or is cut: {error}; legal: {forms}") from error
    if not isinstance(told, dict) or len(told) != 2 or "workers" not in told or not told.keys() & {"edges", "shifts"}:
        raise ConfigurationError(f"gossip: the graph {path} is not of the form {forms}")
    if told["workers"] != world:
        raise ConfigurationError(
            f"gossip: the graph {path} is of {told['workers']!r} workers, and there are {world}; legal: one for each rank"
        )
    (kind,) = told.keys() - {"workers"}
    if not isinstance(told[kind], list):
        raise ConfigurationError(f"gossip: the graph {path}: its {kind} are no list; legal: {forms}")
    if kind == "edges":
        return Graph.of_edges(world, told["edges"], path)
    for item in told["shifts"]:
        if (
            not isinstance(item, list)
            or len(item) != 2
            or isinstance(item[1], bool)
            or not isinstance(item[1], int | float)
        ):
            raise ConfigurationError(f"gossip: the graph {path} has the shift {item!r}; legal: [shift, weight]")
    return Graph.circulant(world, [(shift, weight) for shift, weight in told["shifts"]], path)
