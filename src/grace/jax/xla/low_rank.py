"""Low-rank matrices, which the network sums, inside XLA: powersgd.

Letters: M is m x l; r the rank; factors lie as rows, p ``[r, m]`` and q ``[r, l]``. All in float32: within a tolerance these
are Grace's numbers, which are made in a fixed order and partly in float64.
"""

from __future__ import annotations

import math

import jax.numpy as jnp
from jax import lax

from grace.errors import ConfigurationError
from grace.jax.xla.place import TracedPeer
from grace.jax.xla.random import Array
from grace.jax.xla.together import Sum, Talk
from grace.methods.powersgd import PowerSGD

_TINY = 2.0**-126


def check_power_sgd(method: PowerSGD) -> None:
    """Refuses knobs that make it change with the step.

    Raises:
        ConfigurationError: a later start, or no warm one.
    """
    if method.start_step or not method.warm_start:
        raise ConfigurationError(
            f"powersgd inside XLA: start_step={method.start_step}, warm_start={method.warm_start}; "
            "legal: start_step=0, warm_start=True"
        )


def power_sgd(x: Array, state: Array, place: TracedPeer) -> Talk[tuple[Array, Array, Array]]:
    """``x [m, l]`` and Q ``[l, r]`` -> the mean, the rest, and the next Q."""
    share = 1 / place.world
    unit = _unit_rows(state.T)
    p = yield Sum((_multiply(unit, x.T) * share).reshape(-1))
    p = orthonormalize(p.reshape(-1, x.shape[0]))
    local = _multiply(p, x)
    q = yield Sum((local * share).reshape(-1))
    q = q.reshape(local.shape)
    return _multiply(p.T, q), x - _multiply(p.T, local), q.T


def _multiply(a: Array, b: Array) -> Array:
    """The matrix product in full float32, on accelerators too."""
    return jnp.matmul(a, b, precision=lax.Precision.HIGHEST)


def _unit_rows(q: Array) -> Array:
    """The rows of q ``[r, l]`` scaled to norm 1/sqrt(l); a row that vanished stays zero."""
    unit = q / jnp.maximum(jnp.abs(q).max(axis=1, keepdims=True), _TINY)
    norm = jnp.sqrt((unit * unit).sum(axis=1, keepdims=True))  # at least 1, or 0
    return unit / (jnp.maximum(norm, 0.5) * math.sqrt(q.shape[1]))


def orthonormalize(p: Array) -> Array:
    """Rows ``[r, m]``, r <= m -> an orthonormal basis of them, by Householder reflections; a row that depends on those before
    it gives some other direction.
    """
    r, m = p.shape
    a = p / jnp.maximum(jnp.abs(p).max(axis=1, keepdims=True), _TINY)
    places, reflections = jnp.arange(m), []
    for j in range(r):
        head, tail = a[j, j], jnp.where(places > j, a[j], 0.0)
        square = (tail * tail).sum()
        norm = jnp.sqrt(head * head + square)
        end = jnp.where(head < 0, norm, -norm)
        some = square > 0
        tau = jnp.where(some, (end - head) / jnp.where(some, end, 1.0), 0.0)
        vector = jnp.where(places == j, 1.0, tail / jnp.where(some, head - end, 1.0))
        reflections.append((tau, vector))
        a = _reflect(a, tau, vector)
    basis = jnp.zeros_like(a)
    for j, (tau, vector) in reversed(list(enumerate(reflections))):  # rows before j are still zero
        basis = _reflect(basis.at[j, j].set(1.0), tau, vector)
    return basis


def _reflect(rows: Array, tau: Array, vector: Array) -> Array:
    """``rows [c, m]`` minus tau (vector . row) vector."""
    return rows - tau * (rows * vector).sum(axis=1, keepdims=True) * vector
