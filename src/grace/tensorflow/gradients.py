"""The exchange of the gradients of some variables: ``Gradients(variables, "topk:ratio=0.01").mean(gradients)``."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Literal

import tensorflow as tf
from torch import Tensor

from grace.adapters.handle import BaseHandle
from grace.adapters.handover import Handover
from grace.auto.adaptive import Adapted
from grace.auto.explain import Explanation
from grace.auto.settings import Auto
from grace.contract.method import Method
from grace.errors import ConfigurationError, InputError
from grace.registry.adaptive import Adaptive
from grace.registry.policy import Policy
from grace.run.options import Granularity, NonFinite, OnDifference, Options
from grace.tensorflow.calls import call_host, keep_python, refuse_replicas, refuse_xla
from grace.transports.base import Transport
from grace.transports.choose import transport_for_handle


class _Handover(Handover):
    """The exchange of TensorFlow's gradients."""

    toolkit = "TensorFlow"


class Gradients(BaseHandle):
    """The exchange of the gradients of these variables, always all of them, in their order. All ranks make one alike, and
    make the same number of steps.

    Args:
        variables: ``tf.Variable`` or Keras's, which exist already: build the model first.
        method: a method, the string that makes it, a :class:`grace.Policy`, or "auto" (:class:`grace.Auto`), which chooses
            one for each bucket. Tensors have the names of the variables: ``variable.path`` for Keras's, else
            ``variable.name`` without ``:0``. One of more than two dimensions is compressed as the matrix ``[-1, shape[-1]]``.
        transport: between the ranks: a transport, its name, or "auto"; see :func:`grace.transport`.
        granularity: what is compressed as one tensor: each "parameter", each "bucket", or the whole "model".
        seed: of all random streams.
        nonfinite: what happens to a tensor in which some rank has an inf or NaN: all ranks see a NaN mean ("propagate"), 0
            ("skip"), or NonFiniteError ("error").
        check: compare all collectives between ranks before they start; slow, for debugging.
        check_replicas_every: steps from one comparison of the replicas to the next, >= 0; 0: none.
        on_difference: replicas that differ raise ReplicasDifferError, on all ranks ("error"); "broadcast", which repairs them
            elsewhere, is refused.
        checksum: whether payloads carry four bytes that are checked on receipt: for machines that flip bits.
        local_world_size: how many workers a machine has, >= 1: those of ``machine=local``, and the most that share memory; 1:
            none do. By default what GRACE_LOCAL_WORLD_SIZE says, or else the launcher.
        sparse: what happens to ``tf.IndexedSlices``, as from an embedding: "densify" (and a warning says how large it is), or
            "refuse".
        steps_per_epoch: steps in an epoch, for schedules that count epochs.
        learning_rate: for memories that follow it (``follow_lr=true``): an optimizer of Keras's, a variable, or a function
            without arguments. It is read in each step.

    ``error`` keeps what has ended the exchange. In a ``tf.function`` TensorFlow raises ``UnknownError`` or
    ``InvalidArgumentError`` instead, with its text; in eager mode it comes as it is.

    Raises:
        ConfigurationError: no variables, several replicas in one process, or a method that cannot work.
        InputError: a variable that is not f16, bf16, f32 or f64, by name.
        FingerprintMismatch: ranks that differ in method, options or variables, on every rank, within a minute.
    """

    @keep_python
    def __init__(
        self,
        variables: Sequence[Any],
        method: Policy | Method[Any] | Auto | Adaptive | str,
        *,
        transport: Transport | str = "auto",
        granularity: Granularity = Options.granularity,
        seed: int = Options.seed,
        nonfinite: NonFinite = Options.nonfinite,
        check: bool = Options.check,
        check_replicas_every: int = Options.check_replicas_every,
        on_difference: OnDifference = Options.on_difference,
        checksum: bool = Options.checksum,
        local_world_size: int | None = Options.local_world_size,
        sparse: Literal["densify", "refuse"] = "densify",
        steps_per_epoch: int | None = Options.steps_per_epoch,
        learning_rate: Any = None,
    ):
        options = Options(
            seed, nonfinite, steps_per_epoch, check, granularity, check_replicas_every=check_replicas_every,
            on_difference=on_difference, checksum=checksum, local_world_size=local_world_size,
        )  # fmt: skip
        network = transport_for_handle(transport)
        try:
            if sparse not in ("densify", "refuse"):
                raise ConfigurationError(f"sparse={sparse!r} is unknown; legal: 'densify', 'refuse'")
            if not tf.executing_eagerly():  # within tf.init_scope() it may be made while a graph is traced
                raise ConfigurationError("make Gradients outside of the tf.function: once, not at each tracing")
            refuse_replicas()
            self.variables = list(variables)
            self._shapes = [_read_shape(v) for v in self.variables]
        except BaseException as error:
            network.close(error)
            raise
        self._handover = _Handover(
            [name_of(v) for v in self.variables], self._shapes, [tf.as_dtype(v.dtype).name for v in self.variables],
            method, transport=network, options=options,
        )  # fmt: skip
        super().__init__(self._handover._steps)
        self._sparse, self._learning_rate = sparse, learning_rate
        self._said: set[str] = set()

    @keep_python
    def mean(self, gradients: Sequence[Any], *, scale: Any = 1.0) -> list[Any]:
        """Makes a step: this worker's gradients -> their means over all workers; in eager mode and in graphs.

        Args:
            gradients: in the order of the variables: tensors, ``tf.IndexedSlices``, or None where the loss does not depend
                on a variable. What is None on all ranks in the first step stays None, on all ranks; what is None on only some
                counts as zeros there, and all get a mean.
            scale: the factor of the loss, such as a ``LossScaleOptimizer``'s ``dynamic_scale``: memories are then kept in
                units without it. Means have the same factor.

        Raises:
            ConfigurationError: XLA compiles the step (``jit_compile=True``), or several replicas.
            InputError: another number of gradients than of variables, or other shapes or dtypes.
            What the exchange raises: see above, and :meth:`grace.adapters.handover.Handover.mean`.
        """
        try:
            refuse_xla()
            refuse_replicas()
            given = self._densify(list(gradients))
        except (ConfigurationError, InputError) as error:
            self._handover.fail(error)
            raise
        here = [g is not None for g in given]
        common = [not none for none in self._handover.agree_absent([not there for there in here])]

        def exchange(lent: Sequence[Tensor], scale: float, lr: float | None = None) -> list[Tensor]:
            tensors = iter(lent)
            means = self._handover.mean([next(tensors) if there else None for there in here], lr=lr, scale=scale)
            return [mean for mean in means if mean is not None]

        present = [g for g in given if g is not None]
        like = [v for v, there in zip(self.variables, common, strict=True) if there]
        if not like:  # on all ranks alike
            raise InputError("no variable has a gradient on any rank: the loss depends on none of them")
        numbers = [scale] if self._learning_rate is None else [scale, self._read_learning_rate()]
        means = iter(call_host(exchange, present, *numbers, like=like))
        return [next(means) if there else None for there in common]

    @property
    def chooses(self) -> bool:
        """True if the method is, or was, chosen by ``auto``."""
        return self._handover.chooses

    def explain(self) -> Explanation | Adapted:
        """The choices of ``auto`` so far and their reasons; see :meth:`grace.adapters.choosing.Choosing.explain`."""
        return self._handover.explain()

    def switch(self, method: Policy | Method[Any] | Auto | Adaptive | str) -> None:
        """Uses another method or policy, or ``auto``, from the next step on; see
        :meth:`grace.adapters.choosing.Choosing.switch`.
        """
        self._handover.switch(method)

    def state_dict(self) -> dict[str, Any]:
        """The state that the next step depends on. Each rank saves and loads its own."""
        return self._handover.state_dict()

    def load_state_dict(self, saved: Any) -> None:
        """Goes on where ``saved`` stopped; see :meth:`grace.adapters.handover.Handover.load_state_dict`."""
        self._handover.load_state_dict(saved)

    def close(self) -> None:
        """Leaves the job: this rank makes no more steps. Ranks that still wait for it hear of it."""
        self._handover.close()

    # ---- within -----------------------------------------------------------------------------------------------------
    def _densify(self, gradients: list[Any]) -> list[Any]:
        """The gradients as dense tensors.

        Raises:
            InputError: of another number, shape or dtype than the variables, or sparse ones that are refused.
        """
        if len(gradients) != len(self.variables):
            raise InputError(
                f"{len(gradients)} gradients for {len(self.variables)} variables; give all of them in each step, in their "
                "order, and None where there is none. After creating more variables, make new Gradients"
            )
        dense: list[Any] = []
        for g, v, shape, name in zip(gradients, self.variables, self._shapes, self._handover.names, strict=True):
            if isinstance(g, tf.IndexedSlices):
                g = self._densify_slices(g, shape, name)
            if g is not None:
                dtype = tf.as_dtype(v.dtype)
                g = tf.convert_to_tensor(g)
                if g.dtype != dtype or not g.shape.is_compatible_with(shape):
                    raise InputError(
                        f"the gradient of {name!r} is {g.dtype.name} {tuple(g.shape)}, and the variable {dtype.name} {shape}"
                    )
            dense.append(g)
        return dense

    def _densify_slices(self, g: Any, shape: tuple[int, ...], name: str) -> Any:
        size = tf.TensorShape(shape).num_elements() * tf.as_dtype(g.dtype).size
        if self._sparse == "refuse":
            raise InputError(
                f"the gradient of {name!r} is tf.IndexedSlices, and sparse='refuse'; sparse='densify' makes a dense tensor of "
                f"{size:,} bytes of it"
            )
        if name not in self._said:
            self._said.add(name)
            warnings.warn(
                f"the gradient of {name!r} is tf.IndexedSlices, and is exchanged as a dense tensor of {size:,} bytes",
                stacklevel=5,
            )
        return tf.math.unsorted_segment_sum(g.values, g.indices, shape[0])

    def _read_learning_rate(self) -> Any:
        source = self._learning_rate
        if hasattr(source, "learning_rate"):
            return source.learning_rate
        return source() if callable(source) else source


def name_of(variable: Any) -> str:
    """The name of a variable: Keras's path, or TensorFlow's name without the number of the output."""
    return str(getattr(variable, "path", None) or variable.name.partition(":")[0])


def _read_shape(variable: Any) -> tuple[int, ...]:
    shape = tf.TensorShape(variable.shape)
    if not shape.is_fully_defined():
        raise InputError(f"{name_of(variable)!r} has the shape {shape}; legal: variables whose shape is known")
    return tuple(shape.as_list())
