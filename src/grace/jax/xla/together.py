"""Collectives inside XLA, and many exchanges as one: in each round, those that ask for the same kind share a collective.

An exchange is a generator that yields collectives and is sent their answers, as in :mod:`grace.contract.together`; here it
runs while the step is traced, and only arrays are left in the program.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import jax.numpy as jnp
from jax import lax

from grace.jax.xla.random import Array

T = TypeVar("T")
Axis: TypeAlias = Any  # the name of an axis, or a tuple of names


@dataclass(frozen=True)
class Gather:
    """Everyone's ``wire [w]`` for everyone: answered by ``[W, w]``, in the order of the ranks."""

    wire: Array


@dataclass(frozen=True)
class Scatter:
    """Row r of ``wires [W, w]`` for rank r: answered by ``[W, w]``, everyone's row for me."""

    wires: Array


@dataclass(frozen=True)
class Sum:
    """The sum of everyone's ``x [n]``, made by the network in x's dtype: answered by ``[n]``."""

    x: Array


Collective: TypeAlias = Gather | Scatter | Sum
Talk: TypeAlias = Generator[Collective, Array, T]


def together(talks: Sequence[Talk[T]], axis: Axis) -> list[T]:
    """Runs these exchanges in lock step and returns their results, in their order."""
    done: dict[int, T] = {}
    asked: dict[int, Collective] = {}

    def advance(i: int, answer: Array | None) -> None:
        try:
            asked[i] = next(talks[i]) if answer is None else talks[i].send(answer)
        except StopIteration as stop:
            done[i] = stop.value

    for i in range(len(talks)):
        advance(i, None)
    while asked:
        rounds, asked = asked, {}
        batches: dict[object, list[int]] = {}
        for i, op in rounds.items():
            batches.setdefault((type(op), op.x.dtype if isinstance(op, Sum) else None), []).append(i)
        for members in batches.values():
            for i, answer in zip(members, _one_collective([rounds[i] for i in members], axis), strict=True):
                advance(i, answer)
    return [done[i] for i in range(len(talks))]


def _one_collective(ops: Sequence[Any], axis: Axis) -> list[Array]:
    """The answers to collectives of one kind, which travel side by side."""
    if isinstance(ops[0], Gather):
        buffers = [op.wire for op in ops]
        answer = lax.all_gather(jnp.concatenate(buffers), axis, to="invarying")
    elif isinstance(ops[0], Scatter):
        buffers = [op.wires for op in ops]
        answer = lax.all_to_all(jnp.concatenate(buffers, axis=1), axis, 0, 0)
    else:
        buffers = [op.x for op in ops]
        answer = lax.psum(jnp.concatenate(buffers), axis)
    ends, at = [], 0
    for buffer in buffers:
        at += buffer.shape[-1]
        ends.append(at)
    return list(jnp.split(answer, ends[:-1], axis=-1))


def agree(flags: Sequence[Array], axis: Axis) -> Array:
    """``[m]`` bool: which of m flags hold on all ranks."""
    return lax.pmin(jnp.stack(list(flags)).astype(jnp.int32), axis) == 1
