"""Gradients averaged on the host: an optax transformation whose exchange is a callback. All methods, any transport."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from torch import Tensor

from grace.adapters.handover import Handover
from grace.auto.settings import Auto
from grace.contract.method import Method
from grace.errors import InputError, StateError, TransportError
from grace.jax.calls import call_host
from grace.jax.places import GLOBAL_ARRAYS, check_shards, check_wrappers
from grace.jax.trees import describe_change, describe_gradients
from grace.registry.adaptive import Adaptive
from grace.registry.policy import Policy
from grace.run.options import NonFinite, OnDifference, Options
from grace.run.saved import OwnState
from grace.state import STRUCTURE, nested
from grace.transports.base import Transport
from grace.transports.choose import transport_for_handle


class CompressedMeanState(NamedTuple):
    """optax's part of the state: how many exchanges there were, which ties optax's state to the memories on the host."""

    count: jax.Array


class HostHandle(Handover):
    """The handle that :func:`compressed_mean_on_host` returns besides the transformation: ``stats``, ``error``, ``lr``,
    ``switch``, ``state_dict``, ``load_state_dict``, ``close``. The memories are in it, in this process.

    ``count``: the exchanges whose means have been handed out.
    """

    toolkit = "JAX"

    def __init__(
        self, params: Any, method: Policy | Method[Any] | Auto | Adaptive | str, transport: Transport, options: Options
    ):
        self.count = 0
        self._are_global = any(not getattr(x, "is_fully_addressable", True) for x in jax.tree.leaves(params))
        try:
            self._kinds = describe_gradients(params)
        except BaseException as error:
            transport.close(error)
            raise
        shapes, dtypes = [shape for shape, _ in self._kinds.values()], [dtype for _, dtype in self._kinds.values()]
        super().__init__(list(self._kinds), shapes, dtypes, method, transport=transport, options=options)

    def exchange(self, gradients: Sequence[Tensor], count: int, lr: float | None = None) -> list[Tensor]:
        """A step, asked for by an optax state with this ``count``: gradients in the order of ``names``, of the shapes that
        the parameters had -> their means, likewise.

        Raises:
            StateError: the count differs from the handle's: an update was discarded, or only half a checkpoint restored.
        """
        if self.error is not None:
            raise self.error
        if count != self.count:
            error = StateError(_explain(count, self.count))
            self.fail(error)
            raise error
        try:
            means = self.mean(gradients, lr=lr)
        except TransportError as error:
            if jax.process_count() == 1:
                raise
            explained = TransportError(f"{error}\nIf no worker has failed: {GLOBAL_ARRAYS}.")
            self._session.error = explained  # what later steps raise, and what a user finds in the handle
            raise explained from error
        self.count += 1  # not after a NonFiniteError: optax's state keeps its count then, too
        return [mean for mean in means if mean is not None]

    def check(self, updates: Any) -> None:
        """Checks, while tracing, that these are the gradients it was made for, and that all workers will exchange them here.

        Raises:
            InputError: another structure, shape or dtype. The exchange has ended then, and the other workers hear of it.
            ConfigurationError: some workers would not exchange here; the consequences are the same.
        """
        if self.error is not None:
            raise self.error
        try:
            if change := describe_change(self._kinds, describe_gradients(updates)):
                raise InputError(
                    f"the gradients are another tree than the parameters given to compressed_mean_on_host: {change}. Every "
                    "leaf takes part in every step: give zeros where there is no gradient"
                )
            check_wrappers()
            check_shards(jax.tree.leaves(updates), self.world, self._are_global)
        except BaseException as error:
            self.fail(error)
            raise

    def state_dict(self) -> dict[str, Any]:
        """The state that the next step depends on, besides optax's. Each worker saves and loads its own."""
        return OwnState({**super().state_dict(), "count": self.count})

    def load_state_dict(self, saved: Any) -> None:
        """Goes on where ``saved`` stopped; restore optax's state of the same step, too. See
        :meth:`grace.adapters.handover.Handover.load_state_dict`.
        """
        if isinstance(saved, Mapping) and STRUCTURE in saved:
            saved = nested(saved)
        super().load_state_dict(saved)
        self.count = int(saved.get("count", self._session.worker.step))

    def refuse_load(self, problem: StateError) -> None:
        """In place of ``load_state_dict``, where there is nothing to load: all workers hear why, and raise it."""
        self._session.compare_loads(problem, {})


def compressed_mean_on_host(
    method: Policy | Method[Any] | Auto | Adaptive | str,
    params: Any,
    *,
    transport: Transport | str = "auto",
    learning_rate: Callable[[Any], Any] | float | None = None,
    seed: int = Options.seed,
    nonfinite: NonFinite = Options.nonfinite,
    check: bool = Options.check,
    check_replicas_every: int = Options.check_replicas_every,
    on_difference: OnDifference = Options.on_difference,
    checksum: bool = Options.checksum,
    local_world_size: int | None = Options.local_world_size,
    steps_per_epoch: int | None = Options.steps_per_epoch,
) -> tuple[optax.GradientTransformation, HostHandle]:
    """An optax transformation that replaces gradients by their means over all workers; one process is one worker.

    Put it first in the chain: ``optax.chain(mean, optax.clip_by_global_norm(1.0), optax.adamw(1e-3))``. It works under
    ``jit``, in ``scan``, ``while_loop`` and ``cond``, and with donated arguments. All workers call it alike.

    Args:
        method: a method, the string that makes it, a :class:`grace.Policy` over names such as ``layers/0/kernel``, or "auto":
            see :class:`grace.Auto`.
        params: a pytree of arrays, or of ``jax.ShapeDtypeStruct``, like the gradients. None is not a leaf.
        transport: between the workers, or how to find one; see :func:`grace.transport`.
        learning_rate: of memories that follow it (``follow_lr=true``): a number, or an optax schedule.
        seed: of all random streams.
        nonfinite: what happens to a leaf in which some worker has an inf or NaN: all see a mean of NaN ("propagate"), 0
            ("skip"), or NonFiniteError ("error"); its memory stays as it was.
        check: compare all collectives between workers before they start; slow, for debugging.
        check_replicas_every: steps from one comparison of the replicas to the next, >= 0; 0: none.
        on_difference: replicas that differ raise ReplicasDifferError, on all ranks ("error"); "broadcast", which repairs them
            elsewhere, is refused.
        checksum: whether payloads carry four bytes that are checked on receipt: for machines that flip bits.
        local_world_size: how many workers a machine has, >= 1: those of ``machine=local``, and the most that share memory; 1:
            none do. By default what GRACE_LOCAL_WORLD_SIZE says, or else the launcher.
        steps_per_epoch: for schedules of methods that count epochs.

    Returns:
        The transformation, and the handle that holds the memories: :class:`HostHandle`.

    Raises:
        InputError: a leaf that is not f16, bf16, f32 or f64, by name.
        ConfigurationError: a method that cannot work, nothing to exchange, or no such transport.
        FingerprintMismatch: workers that differ in method, policy or parameters, on every worker, within a minute.

    An error in the callback reaches the user later, when the program waits for the results, as ``jax.errors.JaxRuntimeError``
    with the text inside. ``handle.error`` is the error itself, and later steps raise it again.

    Example:
        >>> import jax, optax
        >>> from grace.transports.alone import Alone
        >>> params = {"w": jax.numpy.zeros((64, 64)), "b": jax.numpy.zeros(64)}
        >>> mean, handle = compressed_mean_on_host("topk:ratio=0.01", params, transport=Alone())
        >>> optimizer = optax.chain(mean, optax.sgd(0.1))
        >>> updates, state = jax.jit(optimizer.update)(params, optimizer.init(params))
        >>> handle.stats.steps, int(state[0].count)
        (1, 1)
    """
    options = Options(
        seed, nonfinite, steps_per_epoch, check, check_replicas_every=check_replicas_every, on_difference=on_difference,
        checksum=checksum, local_world_size=local_world_size,
    )  # fmt: skip
    handle = HostHandle(params, method, transport_for_handle(transport), options)

    def init(params: Any) -> CompressedMeanState:
        del params
        return CompressedMeanState(jnp.zeros((), jnp.int32))

    def update(updates: Any, state: CompressedMeanState, params: Any = None) -> tuple[Any, CompressedMeanState]:
        del params
        handle.check(updates)
        leaves, tree = jax.tree.flatten(updates)
        rate = learning_rate(state.count) if callable(learning_rate) else learning_rate
        numbers = (state.count,) if rate is None else (state.count, rate)
        means = call_host(handle.exchange, leaves, *numbers)
        return jax.tree.unflatten(tree, means), CompressedMeanState(state.count + 1)

    return optax.GradientTransformation(init, update), handle


def _explain(asked: int, held: int) -> str:
    """The reason why optax's state and the memories do not belong together."""
    seen = f"optax's state has seen {asked} exchanges, and Grace's memories {held}"
    if asked > held:
        return f"{seen}: a checkpoint was restored without them. Load both: handle.load_state_dict, or restore_memories"
    return (
        f"{seen}: an update was discarded, an old state was used again, or a checkpoint was restored without optax's state. "
        "optax.MultiSteps goes around what follows the mean, not around it: its inner update runs in every micro-step. "
        "Accumulate gradients with lax.scan over microbatches before one update instead. Under shard_map, use one device of "
        "each process"
    )
