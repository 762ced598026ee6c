"""The optax transformation whose exchange is part of the compiled step."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch
from jax import lax
from jax.sharding import PartitionSpec

from grace.contract.knobs import check_value
from grace.contract.method import Method
from grace.errors import ConfigurationError, StateError
from grace.jax.trees import describe_gradients
from grace.jax.xla.place import TracedPeer
from grace.jax.xla.plan import TensorPlan, plan
from grace.jax.xla.random import Array
from grace.jax.xla.together import Axis, agree, together
from grace.registry.policy import Policy

_MOST = float(np.finfo(np.float32).max) / 64  # see grace.memories.base.drop_overflow_


class XlaMeanState(NamedTuple):
    """count: exchanges so far, replicated. memory: like the parameters, ``[W, *shape]``, along the axis. inner: like the
    parameters: the methods' states, replicated. ``optax.MaskedNode()`` where there is nothing.
    """

    count: Any
    memory: Any
    inner: Any


def compressed_mean(
    method: Policy | Method[Any] | str,
    axis_name: str | tuple[str, ...] = "data",
    *,
    seed: int = 0,
    nonfinite: Literal["propagate", "skip"] = "propagate",
) -> optax.GradientTransformation:
    """Replaces each device's gradients by their mean over an axis of the mesh, compressed on the way; inside XLA, without a
    callback, on any device. Put it first in ``optax.chain``, and call ``update`` inside ``jax.shard_map``.

    Wires, means and memories are those of Grace's torch methods; ``docs/concepts/jax.md`` says which sums differ.

    Args:
        method: a method, the string that makes it, or a :class:`grace.Policy`. As in ``attach``, a bare method leaves
            tensors of one dimension or fewer than 1,024 numbers uncompressed. Names are those of the tree's leaves,
            ``layers/0/kernel``; leaves of more than two dimensions count as ``[-1, shape[-1]]``.
        axis_name: the axis, or several, over which gradients are averaged.
        seed: of all random streams.
        nonfinite: what happens to a tensor in which some device saw an inf or NaN: its mean is NaN ("propagate"), or 0
            ("skip"). Memories stay as they were.

    Its state is a :class:`XlaMeanState`; :func:`state_specs` says how it lies on the mesh. ``init`` takes the number
    of workers from the mesh: ``jax.set_mesh``, or the one that the parameters lie on, else from all devices.

    Raises:
        ConfigurationError: a method that is not available inside XLA; says which are. From ``update``: an axis that does not
            exist, or gradients that are already summed over it.
        InputError, StateError: from ``update``: leaves that are not gradients; a state of another number of workers.

    Example:
        >>> import optax
        >>> optimizer = optax.chain(compressed_mean("topk:ratio=0.01"), optax.adamw(1e-3))
    """
    check_value("compressed_mean", "seed", seed, int)
    if nonfinite not in ("propagate", "skip"):
        raise ConfigurationError(
            f"nonfinite={nonfinite!r} is not available inside XLA, where nothing can be raised; legal: 'propagate', 'skip'"
        )
    policy = Policy.of(method)
    if not policy.timeless:
        raise ConfigurationError(f"{policy!r} changes with the step; inside XLA rules hold for all steps")
    # the last rule, which has the method that was named, is the first to be refused
    plans = [plan(rule.method) for rule in reversed(policy.rules)][::-1]  # type: ignore[arg-type]  # rules hold methods
    return _Transformation(policy, plans, axis_name, seed, nonfinite == "skip").optax()


class _Transformation:
    def __init__(self, policy: Policy, plans: list[TensorPlan], axis: Axis, seed: int, skip: bool):
        self.policy, self.axis, self.seed, self.skip = policy, axis, seed, skip
        self._plans = {id(rule.method): plan for rule, plan in zip(policy.rules, plans, strict=True)}

    def optax(self) -> optax.GradientTransformation:
        """The pair of functions."""
        return optax.GradientTransformation(self.init, self.update)

    def init(self, params: Any) -> XlaMeanState:
        """Empty memories, one for each worker."""
        kinds, tree = describe_gradients(params), jax.tree.structure(params)
        workers = self._workers(params)
        memories, inners = [], []
        for name, (shape, dtype) in kinds.items():
            plan, view = self._plan(name, shape), matrix_shape(shape)
            memory = jnp.zeros((workers, *shape), jnp.promote_types(dtype, jnp.float32)) if plan.has_memory else None
            memories.append(optax.MaskedNode() if memory is None else memory)
            inners.append(optax.MaskedNode() if (inner := plan.init(view)) is None else jnp.asarray(inner))
        return XlaMeanState(
            jnp.zeros((), jnp.int32), jax.tree.unflatten(tree, memories), jax.tree.unflatten(tree, inners)
        )

    def update(self, updates: Any, state: XlaMeanState, params: Any = None) -> tuple[Any, XlaMeanState]:
        """The mean of the updates, and the state after it."""
        del params
        kinds, (leaves, tree) = describe_gradients(updates), jax.tree.flatten(updates)
        world = self._check_axis(kinds, leaves)
        tensors = [
            _Tensor(
                self._plan(name, x.shape), TracedPeer(self.axis, world, state.count, name, self.seed), x, memory, inner
            )
            for name, x, memory, inner in zip(
                kinds, leaves, tree.flatten_up_to(state.memory), tree.flatten_up_to(state.inner), strict=True
            )
        ]
        outs = together(
            [tensor.plan.exchange(tensor.p, tensor.inner_state, tensor.place) for tensor in tensors], self.axis
        )
        judged = [tensor for tensor in tensors if not tensor.plan.transparent]
        flags = agree([tensor.finite for tensor in judged], self.axis) if judged else []
        agreed = {id(tensor): flag for tensor, flag in zip(judged, flags, strict=True)}
        ends = [tensor.end(*out, agreed.get(id(tensor)), self.skip) for tensor, out in zip(tensors, outs, strict=True)]
        means, memories, inners = (
            (jax.tree.unflatten(tree, part) for part in zip(*ends, strict=True))
            if ends
            else (updates, state.memory, state.inner)
        )
        return means, XlaMeanState(state.count + 1, memories, inners)

    def _plan(self, name: str, shape: tuple[int, ...]) -> TensorPlan:
        like = torch.empty(matrix_shape(shape), device="meta", dtype=torch.float32)
        return self._plans[id(self.policy.method_for(name, like, 0))]

    @property
    def _axes(self) -> tuple[str, ...]:
        return (self.axis,) if isinstance(self.axis, str) else tuple(self.axis)

    def _workers(self, params: Any) -> int:
        """Number of memories to make: one inside shard_map, where each device makes its own state; else as the mesh says."""
        try:
            lax.axis_size(self.axis)
        except NameError:
            pass
        else:
            return 1
        meshes = [jax.sharding.get_abstract_mesh()]
        meshes += [getattr(getattr(x, "sharding", None), "mesh", None) for x in jax.tree.leaves(params)]
        for mesh in meshes:
            if mesh is not None and set(self._axes) <= set(mesh.axis_names):
                return int(np.prod([mesh.shape[axis] for axis in self._axes]))
        return int(jax.device_count())

    def _check_axis(self, kinds: dict[str, Any], leaves: list[Array]) -> int:
        """The number of workers."""
        try:
            world = int(lax.axis_size(self.axis))
        except NameError as error:
            raise ConfigurationError(
                f"axis {self.axis!r} does not exist: call update inside jax.shard_map over a mesh that has it "
                "(compressed_mean(..., axis_name=...))"
            ) from error
        known = _varying_axes(lax.axis_index(self.axis))  # empty under check_vma=False, where JAX does not know
        summed = [
            name for name, x in zip(kinds, leaves, strict=True) if not known & set(self._axes) <= _varying_axes(x)
        ]
        if summed:
            raise ConfigurationError(
                f"the gradients of {', '.join(map(repr, summed[:3]))}{' and more' if len(summed) > 3 else ''} are already "
                f"summed over {self.axis!r}: inside shard_map, jax.grad of replicated parameters does that. Use "
                "jax.shard_map(..., check_vma=False), or take the gradient at "
                f"jax.lax.pcast(params, {self.axis!r}, to='varying')"
            )
        return world


class _Tensor:
    """A leaf of a step."""

    def __init__(self, plan: TensorPlan, place: TracedPeer, x: Array, memory: Any, inner: Any):
        self.plan, self.place, self.x, self.memory = plan, place, x, memory
        self.inner, self.inner_state = inner, None if isinstance(inner, optax.MaskedNode) else inner
        fresh = plan.init(matrix_shape(x.shape))
        if _shape(self.inner_state) != _shape(fresh):
            raise StateError(
                f"the state of {place.name!r} is {_shape(self.inner_state)} on each device, and should be "
                f"{_shape(fresh)}: shard it with grace.jax.state_specs, and make it with init for these parameters"
            )
        if plan.transparent:
            self.p = x.reshape(-1)
            return
        wide = x
        if plan.has_memory:
            if memory.shape != (1, *x.shape):
                raise StateError(
                    f"the memory of {place.name!r} is {tuple(memory.shape)} on each device, and should be "
                    f"{(1, *x.shape)}: shard it with grace.jax.state_specs, and make it with init for these "
                    f"{place.world} workers"
                )
            self.memory = memory[0]
            gradient = x.astype(self.memory.dtype)
            wide = (gradient if plan.gamma == 1 else gradient * plan.gamma) + (
                self.memory if plan.beta == 1 else self.memory * plan.beta
            )
        self.finite = jnp.isfinite(wide).all()
        wide = jnp.where(self.finite, wide, 0)
        self.p = wide.astype(jnp.float32).reshape(matrix_shape(x.shape))
        self.low = wide - self.p.reshape(x.shape) if wide.dtype == jnp.float64 else None  # what float32 cannot hold

    def end(self, mean: Array, rest: Array, inner: Any, agreed: Any, skip: bool) -> tuple[Any, Any, Any]:
        """The mean that is applied, and the leaf's part of the state."""
        mean = mean.reshape(self.x.shape)
        if self.plan.transparent:
            return (jnp.where(jnp.isfinite(mean).all(), mean, 0) if skip else mean), self.memory, self.inner
        cast = mean.astype(self.x.dtype)
        finite = agreed & jnp.isfinite(mean).all() & jnp.isfinite(cast).all()  # of the mean: the same on all ranks
        memory = self.memory
        if self.plan.has_memory:
            left = rest.reshape(self.x.shape).astype(memory.dtype) + (mean - cast.astype(mean.dtype))
            left = left if self.low is None else left + self.low
            memory = jnp.where(finite, left, jnp.where(jnp.abs(memory) <= _MOST, memory, 0))[None]
        inner = self.inner if self.inner_state is None else jnp.where(finite, inner, self.inner)
        return jnp.where(finite, cast, 0 if skip else jnp.nan), memory, inner


def matrix_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape in which methods see a leaf: with more than two dimensions (convolution kernels, outputs last) a matrix."""
    return (int(np.prod(shape[:-1])), shape[-1]) if len(shape) > 2 else tuple(shape)


def _varying_axes(x: Array) -> frozenset[str]:
    """The axes along which JAX knows that x differs."""
    kind = jax.typeof(x)
    return frozenset(kind.mat.varying if hasattr(kind, "mat") else getattr(kind, "vma", ()))


def state_specs(state: Any, axis_name: str | tuple[str, ...] = "data") -> Any:
    """Sharding of an optimizer's state on the mesh: a ``PartitionSpec`` for each of its leaves. Memories lie along the axis, a
    row for each worker; all else is replicated.

    Args:
        state: what ``optimizer.init`` returns, or ``jax.eval_shape`` of it.
        axis_name: as in :func:`compressed_mean`.

    Example:
        >>> import jax, optax
        >>> optimizer = optax.chain(compressed_mean("topk"), optax.sgd(0.1))
        >>> state = optimizer.init({"w": jax.numpy.zeros((64, 64))})
        >>> state_specs(state, "data")[0].memory["w"] == jax.sharding.PartitionSpec("data")
        True
    """
    alike = jax.tree.map(lambda _: PartitionSpec(), state)

    def place(state: Any, specs: Any) -> Any:
        if not isinstance(state, XlaMeanState):
            return specs
        return specs._replace(memory=jax.tree.map(lambda _: PartitionSpec(axis_name), state.memory))

    return jax.tree.map(place, state, alike, is_leaf=lambda x: isinstance(x, XlaMeanState))


def _shape(state: Any) -> tuple[int, ...] | None:
    return None if state is None else np.shape(state)
