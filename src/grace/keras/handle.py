"""Grace at work on one compiled Keras model.

A gradient is taken before the inner optimizer clips it. There it is unscaled (a memory in scaled units would be wrong once the
loss scale moves) and accumulated (one exchange for each update), and clipping sees the mean. All ranks first agree on whether
a step is finite: if one rank alone skipped an exchange, the others would wait for it.
"""

from __future__ import annotations

import pathlib
import warnings
import weakref
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import keras
import numpy as np
import torch
from torch import Tensor

from grace.adapters.handover import Handover
from grace.auto.settings import Auto
from grace.collectives import AllReduce, Collective, Exchange
from grace.contract.method import Method
from grace.errors import (
    ConfigurationError,
    GraceError,
    InputError,
    StateError,
    UnexchangedWarning,
    stack_level,
)
from grace.keras.checks import check_model, check_optimizer, find_optimizers
from grace.keras.files import read_state, write_state
from grace.keras.hooks import Hooks, is_hooked
from grace.keras.host import call_host, call_when, make_dense, wait_for_host
from grace.registry.adaptive import Adaptive
from grace.registry.policy import Policy
from grace.run.optimizer import Settings
from grace.run.options import Options
from grace.run.saved import OwnState
from grace.state import STRUCTURE, nested
from grace.transports.base import Transport

_GENERATOR = "seed_generator_state"  # the name of Keras's variables for random layers


class KerasHandle(Handover):
    """The exchange of one model's gradients. Made by :func:`grace.keras.attach`; all ranks call its methods alike.

    ``stats``: steps, bytes, ratio. ``rank``, ``world``: this worker, and how many there are. ``error``: what ended the
    exchange, if anything has. ``at_work`` holds those that are attached.
    """

    toolkit = "Keras"
    at_work: ClassVar[weakref.WeakSet[KerasHandle]] = weakref.WeakSet()

    def __init__(
        self,
        model: Any,
        method: Policy | Method[Any] | Auto | Adaptive | str,
        transport: Transport,
        options: Options,
        optimizer: Any = None,
    ):
        try:
            self._model, self._outer = model, check_model(model, optimizer)
            self._inner = getattr(self._outer, "inner_optimizer", self._outer)
            if is_hooked(self._inner, "_clip_gradients"):
                raise ConfigurationError(
                    "Grace is attached to this optimizer already; use handle.switch, or detach first"
                )
            check_optimizer(self._inner)
            if not self._outer.built:
                self._outer.build(model.trainable_variables)
            self._variables = list(self._inner._trainable_variables)
            if written := [v.path for v in self._variables if getattr(v, "overwrite_with_gradient", False)]:
                raise ConfigurationError(
                    f"{', '.join(map(repr, written))} are overwritten with their gradients, as in float8 training, which is "
                    "not averaged; train in another dtype"
                )
        except BaseException as error:
            transport.close(error)
            raise
        knobs = {
            "loss scaling": type(self._outer).__name__ if self._outer is not self._inner else None,
            "gradient_accumulation_steps": self._inner.gradient_accumulation_steps,
            "variables of model and optimizer": [(tuple(v.shape), str(v.dtype)) for v in self._all_variables()],
        }
        super().__init__(
            [self._name(v) for v in self._variables], [tuple(v.shape) for v in self._variables],
            [keras.backend.standardize_dtype(v.dtype) for v in self._variables],
            method, transport=transport, options=options, knobs=knobs,
        )  # fmt: skip
        self._present: list[int] | None = None  # while the optimizer applies gradients: which variables have one
        self._came = False
        self._hooks = Hooks()
        self._hooks.wrap(self._inner, "apply", self._wrap_apply)
        self._hooks.wrap(self._inner, "_clip_gradients", self._wrap_clipping)
        if self._outer is not self._inner:
            self._hooks.wrap(self._outer, "check_finite", self._wrap_check)
        self._refuse_compile()
        for name, other in find_optimizers(model, inside=True).items():
            inner = getattr(other, "inner_optimizer", other)
            if inner is not self._inner and not is_hooked(inner, "_clip_gradients"):
                self._hooks.wrap(inner, "apply", _wrap_other(name, inner))
        self.at_work.add(self)
        try:
            self.broadcast_from_rank0()
        except BaseException as error:
            self._remove_hooks()
            self.fail(error)
            raise
        self._renew_train_function()
        self._check_optimizer()

    # ---- what the optimizer calls -----------------------------------------------------------------------------------
    def _wrap_apply(self, own: Callable[..., None]) -> Callable[..., None]:
        """Gives every rank gradients of the same variables, and notes which they are."""

        def apply(grads: Sequence[Any], trainable_variables: Any = None) -> None:
            gradients = self._sort(list(grads), trainable_variables)
            wait_for_host()  # JAX may trace this step anew while the one before is still in its exchange
            absent = self.agree_absent([x is None for x in gradients])
            for i, (x, none) in enumerate(zip(gradients, absent, strict=True)):
                if x is None and not none:  # another rank has a gradient of it
                    gradients[i] = keras.ops.zeros(self.shapes[i], self._variables[i].dtype)
            self._present, self._came = [i for i, none in enumerate(absent) if not none], False
            try:
                own(gradients, self._variables)
            finally:
                self._present = None
            if not self._came and not self._inner.gradient_accumulation_steps:
                error = ConfigurationError(
                    f"{type(self._inner).__name__} of Keras {keras.__version__} has applied gradients without its "
                    "_clip_gradients, before which Grace averages them. Grace was tested with Keras 3.15"
                )
                self.fail(error)
                raise error

        return apply

    def _sort(self, grads: list[Any], variables: Any) -> list[Any]:
        """The gradients in the order of the variables; None where there is none."""
        gradients: list[Any] = [None] * len(self._variables)
        given = self._variables if variables is None else list(variables)
        if len(given) != len(grads):
            raise InputError(f"{len(grads)} gradients for {len(given)} variables")
        for x, v in zip(grads, given, strict=True):
            try:
                place = self._inner._get_variable_index(v)
            except KeyError:
                name = getattr(v, "path", getattr(v, "name", v))
                error = InputError(
                    f"{name!r} is not among the variables that the optimizer had when Grace was attached"
                )
                self.fail(error)
                raise error from None
            gradients[place] = x
        return gradients

    def _wrap_clipping(self, own: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda grads: own(self._average(list(grads)))

    def _average(self, gradients: list[Any]) -> list[Any]:
        """The means, as tensors of the backend; while a graph is traced, placeholders for them."""
        present = self._present
        if present is None or len(present) != len(gradients):
            raise GraceError(
                "gradients are clipped outside of optimizer.apply, where Grace does not know whose they are"
            )
        self._came = True
        kinds = [keras.backend.standardize_dtype(self._variables[i].dtype) for i in present]
        dense = [make_dense(x, kind) for x, kind in zip(gradients, kinds, strict=True)]

        def exchange() -> list[Any]:
            lr = keras.ops.convert_to_tensor(self._inner.learning_rate)
            return call_host(lambda xs, lr: self._step(present, xs, lr), dense, lr)

        steps = self._inner.gradient_accumulation_steps
        if steps and keras.backend.backend() == "jax":  # there Keras clips in every step, and discards most results
            return call_when((self._inner._iterations.value + 1) % steps == 0, exchange, dense)
        return exchange()

    def _step(self, present: Sequence[int], gradients: Sequence[Tensor], lr: float) -> list[Tensor]:
        """On the host: one exchange."""
        tensors: list[Tensor | None] = [None] * len(self.names)
        for i, x in zip(present, gradients, strict=True):
            tensors[i] = x
        means = self.mean(gradients if len(gradients) == len(tensors) else tensors, lr=lr)
        return [mean for i in present if (mean := means[i]) is not None]

    def _wrap_check(self, own: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """True if all gradients are finite on all ranks."""

        def check_finite(grads: Sequence[Any]) -> Any:
            nonfinite = keras.ops.reshape(keras.ops.cast(keras.ops.logical_not(own(grads)), "float32"), (1,))
            (worst,) = call_host(lambda xs: [self._find_worst(xs[0])], [nonfinite])
            return keras.ops.equal(keras.ops.reshape(worst, ()), 0.0)

        return check_finite

    def _find_worst(self, flag: Tensor) -> Tensor:
        try:
            worst: Tensor = self._session.run(_ask(AllReduce(flag.clone(), "max", donate=True)))
            return worst
        except BaseException as error:
            self.fail(error)
            raise

    # ---- for the user -----------------------------------------------------------------------------------------------
    def broadcast_from_rank0(self) -> None:
        """Copies rank 0's variables, of the model and of the optimizer, to all ranks: BatchNorm's averages and momenta, too.

        The states of random generators, as of Dropout, stay each rank's own.
        """
        self._check_attached()
        wait_for_host()
        arrays = [np.ascontiguousarray(keras.ops.convert_to_numpy(v.value)) for v in self._all_variables()]
        buffer = torch.from_numpy(np.concatenate([x.reshape(-1).view(np.uint8) for x in arrays]))
        self._session.broadcast_([buffer])
        start, raw = 0, buffer.numpy()
        for v, x in zip(self._all_variables(), arrays, strict=True):
            v.assign(raw[start : start + x.nbytes].view(x.dtype).reshape(tuple(v.shape)))
            start += x.nbytes

    def average(self, numbers: Mapping[str, float]) -> dict[str, float]:
        """The mean over all ranks of each number, such as a metric. All ranks call it, with the same names.

        Raises:
            InputError: the ranks have different names; on all of them.
        """
        self._check_attached()
        wait_for_host()
        return self._session.run(_average_numbers(numbers, self.world))

    def state_dict(self) -> dict[str, Any]:
        """The state that the next step depends on besides the model's own file: memories, the step, and random generators'
        states. Each rank saves and loads its own.
        """
        wait_for_host()
        states = [torch.from_numpy(_read_generator(v)) for v in self._generators()]
        return OwnState({**super().state_dict(), "generators": states})

    def load_state_dict(self, saved: Any) -> None:
        """Goes on where ``saved`` stopped, under the same method, model and number of workers. All ranks call it, each with
        its own state; either all of them load, or none.

        Args:
            saved: what :meth:`state_dict` gave, or the numpy arrays that :func:`grace.state.flat` made of it.

        Raises:
            StateError: one does not fit, or they do not belong together; on every rank. Nothing has changed then.
        """
        self._check_attached()
        wait_for_host()
        if isinstance(saved, Mapping) and STRUCTURE in saved:
            saved = nested(saved)
        super().load_state_dict(saved)
        for v, state in zip(self._generators(), saved["generators"], strict=True):
            v.assign(state.numpy().astype(_read_dtype(v)))

    def _load(self, saved: Any) -> None:
        self._session.load_state_dict(saved, also=self._check_generators)

    def save(self, path: str | pathlib.Path) -> None:
        """Writes :meth:`state_dict` to ``path``, which ends in ``.npz`` or ``.pt``. ``{rank}`` in it becomes this rank.

        Raises:
            ConfigurationError: another ending, or one file for several ranks.
        """
        write_state(path, self.state_dict(), self.rank, self.world)

    def load(self, path: str | pathlib.Path) -> None:
        """Goes on from what :meth:`save` wrote. All ranks call it; either all of them load, or none.

        Raises:
            ConfigurationError: another ending, or one file for several ranks.
            StateError: on every rank, if one cannot load. Nothing has changed then.
        """
        self._check_attached()
        try:
            saved = read_state(path, self.rank, self.world)
        except StateError as problem:
            self._session.compare_loads(problem, {})
        else:
            self.load_state_dict(saved)

    def switch(self, method: Policy | Method[Any] | Auto | Adaptive | str) -> None:
        self._check_attached()
        wait_for_host()
        super().switch(method)

    def detach(self) -> None:
        """The model goes on alone, as Keras would. What memories owe is dropped."""
        if not self._hooks:
            return
        wait_for_host()
        self._remove_hooks()
        self._renew_train_function()
        self.close()

    def _settings(self) -> Settings:
        inner = self._inner
        rate = getattr(inner, "_learning_rate", None)
        lr = float(getattr(rate, "initial_learning_rate", inner.learning_rate))  # the start of a schedule
        steps_by_lr = isinstance(inner, keras.optimizers.SGD)
        return Settings(getattr(inner, "momentum", None), lr if steps_by_lr else None, getattr(inner, "beta_1", None))

    # ---- within -----------------------------------------------------------------------------------------------------
    def _refuse_compile(self) -> None:
        """Until this handle is detached; one of several for a model does it for all."""
        if not is_hooked(self._model, "compile"):
            self._hooks.wrap(self._model, "compile", lambda _: lambda *args, **options: _refuse_to_compile())

    def _remove_hooks(self) -> None:
        self.at_work.discard(self)
        self._hooks.remove()
        for other in self.at_work:
            if other._model is self._model:
                other._refuse_compile()

    def _all_variables(self) -> list[Any]:
        """The variables of model and optimizer, without the states of random generators."""
        return [v for v in (*self._model.variables, *self._outer.variables) if v.name != _GENERATOR]

    def _name(self, variable: Any) -> str:
        """Its path, without the model's own name: models loaded from a file lack it in their paths, others may have it."""
        return str(variable.path.removeprefix(f"{self._model.name}/"))

    def _generators(self) -> list[Any]:
        return [v for v in self._model.variables if v.name == _GENERATOR]

    def _check_generators(self, saved: Mapping[str, Any]) -> Mapping[str, object]:
        states, shapes = saved.get("generators"), [tuple(v.shape) for v in self._generators()]
        saved_shapes = [tuple(x.shape) for x in states] if isinstance(states, list | tuple) else None
        if saved_shapes != shapes:
            raise StateError(f"the state has random generators of shapes {saved_shapes}, and this model {shapes}")
        return {}

    def _renew_train_function(self) -> None:
        """Drops steps that were traced earlier: they do not know what the optimizer does now."""
        if self._model.train_function is not None:
            self._model.make_train_function(force=True)

    def check_model(self, model: Any) -> None:
        """Checks that this handle is attached to that model.

        Raises:
            ConfigurationError: it is another model, or the handle is detached.
        """
        if model is not self._model or not self._hooks:
            raise ConfigurationError(
                "this callback's handle is not attached to the model that is trained: give it what "
                "grace.keras.attach(model, ...) returned for this model"
            )

    def _check_attached(self) -> None:
        if not self._hooks:
            raise GraceError("this handle is detached; attach again")


def _wrap_other(name: str, optimizer: Any) -> Callable[[Any], Any]:
    """Has an optimizer of the model that no handle is attached to say so, once, when it is applied."""
    told: list[str] = []

    def wrap(own: Callable[..., None]) -> Callable[..., None]:
        def apply(grads: Sequence[Any], trainable_variables: Any = None) -> None:
            if not told and not is_hooked(optimizer, "_clip_gradients"):
                given = optimizer._trainable_variables if trainable_variables is None else trainable_variables
                trainable_variables = None if trainable_variables is None else list(given)
                told.extend(v.path for v, x in zip(given, grads, strict=False) if x is not None)
                more = f" and {len(told) - 5} more" if len(told) > 5 else ""
                warnings.warn(
                    f"the optimizer {name!r} changes {', '.join(map(repr, told[:5]))}{more} on this rank alone: Grace is "
                    "attached to another one of this model, and ranks drift apart from here on. Attach to each: "
                    f"grace.keras.attach(model, method, optimizer=model.{name})",
                    UnexchangedWarning,
                    stacklevel=stack_level(),
                )
            own(grads, trainable_variables)

        return apply

    return wrap


def _refuse_to_compile() -> None:
    raise ConfigurationError(
        "Grace is attached to this model's optimizer, and compile would put another in its place: "
        "handle.detach(), model.compile(...), then attach again"
    )


def _ask(op: Collective) -> Exchange[Tensor]:
    return (yield op)


def _average_numbers(numbers: Mapping[str, float], world: int) -> Exchange[dict[str, float]]:
    """Compares names first: tensors of different sizes would end the job without a reason."""
    names = sorted(numbers)
    code = float(zlib.crc32("\n".join(names).encode()))
    low, high = (yield AllReduce(torch.tensor([-code, code], dtype=torch.float64, device="cpu"), "max")).tolist()
    if -low != high:
        raise InputError(f"the ranks have different metrics; this one has {', '.join(names) or 'none'}")
    total = yield AllReduce(torch.tensor([numbers[name] for name in names], dtype=torch.float64, device="cpu"), "sum")
    return {name: float(x) / world for name, x in zip(names, total, strict=True)}


def _read_dtype(variable: Any) -> str:
    return str(keras.backend.standardize_dtype(variable.dtype))


def _read_generator(variable: Any) -> Any:
    return keras.ops.convert_to_numpy(variable.value).astype(np.int64)
