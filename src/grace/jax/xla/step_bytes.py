"""Bytes that a step inside XLA sends, counted in the program that JAX traces: nothing runs, and no device is needed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import AbstractMesh, PartitionSpec

from grace.collectives import ring_bytes
from grace.contract.knobs import Count, check_value
from grace.contract.method import Method
from grace.jax.trees import describe_gradients
from grace.jax.xla.transform import compressed_mean
from grace.registry.policy import Policy

_AXIS = "data"


class StepBytes(NamedTuple):
    """Bytes from each device in a step. sent: of the method. dense: of a ring all-reduce of the gradients as they are."""

    sent: int
    dense: int

    @property
    def ratio(self) -> float:
        """Ratio of the bytes without compression to those with it; infinite where nothing is sent."""
        return self.dense / self.sent if self.sent else float("inf")


def step_bytes(method: Policy | Method[Any] | str, params: Any, workers: int) -> StepBytes:
    """Bytes that a step of :func:`grace.jax.compressed_mean` sends from each of so many devices.

    A gather or an exchange of rows counts what leaves the device, a sum what a ring all-reduce would send: XLA may choose
    other algorithms on a machine.

    Args:
        method: as in :func:`grace.jax.compressed_mean`.
        params: a tree of arrays or of ``jax.ShapeDtypeStruct``, like the gradients.
        workers: the size of the axis, >= 1.

    Raises:
        ConfigurationError: a method that is not available inside XLA, or a number of workers out of range.
        InputError: leaves that are not gradients.

    Example:
        >>> import jax
        >>> params = {"w": jax.ShapeDtypeStruct((1000, 1000), "float32")}
        >>> step_bytes("topk:ratio=0.01", params, workers=4).dense
        6000000
    """
    check_value("step_bytes", "workers", workers, Count)
    transformation = compressed_mean(method, _AXIS)
    kinds = describe_gradients(params)
    leaves = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), params)

    def step(gradients: Any) -> Any:
        return transformation.update(gradients, transformation.init(gradients))[0]

    replicated = PartitionSpec()
    mesh = AbstractMesh((workers,), (_AXIS,))
    program = jax.make_jaxpr(
        jax.shard_map(step, mesh=mesh, in_specs=replicated, out_specs=replicated, check_vma=False)
    )(leaves)
    sent = sum(_sent(equation, workers) for equation in _equations(program.jaxpr))
    dense = sum(int(np.prod(shape)) * jax.numpy.dtype(dtype).itemsize for shape, dtype in kinds.values())
    return StepBytes(round(sent), round(ring_bytes(dense, workers)))


def _equations(program: Any) -> Iterator[Any]:
    """All equations of a program, those of the programs inside included."""
    for equation in program.eqns:
        yield equation
        for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=_is_program):
            if _is_program(inner):
                yield from _equations(getattr(inner, "jaxpr", inner))


def _is_program(part: Any) -> bool:
    return hasattr(part, "eqns") or hasattr(part, "jaxpr")


def _sent(equation: Any, workers: int) -> float:
    """Bytes that a device sends for this equation: 0 if it is no collective."""
    name = equation.primitive.name
    size = sum(int(x.aval.size) * int(x.aval.dtype.itemsize) for x in equation.invars if hasattr(x.aval, "size"))
    if name.startswith("all_gather"):
        return float(size * (workers - 1))
    if name.startswith("all_to_all"):
        return size * (workers - 1) / workers
    if name.startswith(("psum", "pmin", "pmax")):
        return ring_bytes(size, workers)
    return 0.0
