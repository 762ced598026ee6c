"""Horovod's scripts with Grace's methods, over Horovod or over the stand-in for it: one argument or one name changes.

- ``hvd.DistributedOptimizer(..., compression=grace.horovod.compression("fp16"))``: Horovod sums what is sent. That fits a
  method whose wires the network may sum, that keeps nothing and draws nothing: Horovod tells a compression neither the name of
  the tensor nor the step.
- ``grace.horovod.DistributedOptimizer(...)``: everything else, with torch.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from grace.adapters import torch_optimizer
from grace.adapters.torch_optimizer import KEY
from grace.communicators import Allreduce
from grace.contract.compressor import Compressor
from grace.contract.method import Method
from grace.errors import ConfigurationError
from grace.random import Stream
from grace.registry import method as read_method
from grace.registry import spell
from grace.registry.policy import Policy
from grace.transports.horovod import HorovodTransport

if TYPE_CHECKING:
    _Base = torch.optim.Optimizer
else:
    _Base = object
Some = TypeVar("Some", bound=torch.optim.Optimizer)
__all__ = ["DistributedOptimizer", "compression", "shape_as_horovods"]
_SUMMABLE = (torch.float16, torch.float32, torch.float64, torch.int32, torch.int64)  # by Horovod
_REMEDY = (
    "use grace.horovod.DistributedOptimizer(optimizer, named_parameters, {!r}) instead of hvd.DistributedOptimizer. As "
    "compression= there are 'none' and 'fp16'"
)


def compression(method: Method[Any] | str) -> type:
    """A class for Horovod's ``compression=``, torch's tensors and TensorFlow's.

    Args:
        method: one whose wires the network sums, without a memory and without random numbers, such as "fp16".

    Returns:
        A class with static ``compress(tensor) -> (tensor, context)`` and ``decompress(tensor, context) -> tensor``, and the
        method as ``method``.

    Raises:
        ConfigurationError: another method; the message says why, and what to use instead.

    Example:
        >>> half = compression("fp16")
        >>> wire, context = half.compress(torch.ones(2))
        >>> wire.dtype, half.decompress(wire, context)
        (torch.float16, tensor([1., 1.]))
    """
    chosen = read_method(method) if isinstance(method, str) else method
    name = spell(chosen)
    compressor = _find_summable(chosen, name)

    def to_wire(x: Tensor) -> Tensor:
        if compressor.transparent:
            return x
        rows = x.detach().reshape(1, -1).float().clone()
        if compressor.predivide:
            rows.mul_(1 / _world())
        return compressor.compress_(rows, _stream(name), False).view(-1)

    def from_wire(wire: Tensor, like: Tensor) -> Tensor:
        if compressor.transparent:
            return wire
        out = torch.zeros(1, like.numel(), dtype=torch.float32, device=wire.device)
        scale = float(_world()) if compressor.predivide else 1.0
        compressor.decompress_add_(wire.view(1, -1), out, scale, _stream(name))
        return out.view(like.shape).to(like.dtype)

    def compress(tensor: Any) -> tuple[Any, Any]:
        if isinstance(tensor, Tensor):
            return to_wire(tensor), tensor
        import tensorflow as tf

        if compressor.transparent:
            return tensor, None
        return _on_host(to_wire, [tensor], tf.TensorSpec([None], _wire_dtype(compressor, name))), tensor

    def decompress(tensor: Any, context: Any) -> Any:
        if isinstance(tensor, Tensor):
            return from_wire(tensor, context)
        return tensor if context is None else _on_host(from_wire, [tensor, context], context)

    members = {
        "method": chosen, "compress": staticmethod(compress), "decompress": staticmethod(decompress), "__module__": __name__,
    }  # fmt: skip
    return type(f"Compression({name})", (), members)


def _find_summable(chosen: Method[Any], name: str) -> Compressor:
    if not isinstance(chosen, Allreduce):
        raise ConfigurationError(
            f"{name!r} sends what cannot be summed, or keeps a memory, and Horovod's compression= sums what is sent; "
            + _REMEDY.format(name)
        )
    if not chosen.compressor.facts(64).deterministic or chosen.compressor.randomness == "shared":
        raise ConfigurationError(
            f"{name!r} draws random numbers by the tensor's name and the step, which Horovod's compression= does not know; "
            + _REMEDY.format(name)
        )
    dtype = _wire_dtype(chosen.compressor, name)
    if getattr(torch, dtype) not in _SUMMABLE:
        raise ConfigurationError(f"{name!r} sends {dtype}, which Horovod does not sum; " + _REMEDY.format(name))
    return chosen.compressor


def _wire_dtype(compressor: Compressor, name: str) -> str:
    return str(
        compressor.compress_(torch.zeros(1, 64, dtype=torch.float32, device="cpu"), _stream(name), False).dtype
    ).removeprefix("torch.")


def _stream(name: str) -> Stream:
    return Stream(0, name, "", None, 0)  # nothing is drawn from it


def _on_host(function: Any, tensors: list[Any], like: Any) -> Any:
    import importlib

    call_host = importlib.import_module("grace.tensorflow.calls").call_host
    return call_host(lambda xs: [function(*xs).contiguous()], tensors, like=[like])[0]


def _find_started() -> Any:
    """Horovod, or what stands in for it, as the script has initialized it; None if it has not."""
    for name in ("horovod.torch", "horovod.tensorflow"):
        module = sys.modules.get(name)
        if module is not None and module.is_initialized():
            return module
    return None


def _world() -> int:
    hvd = _find_started()
    return 1 if hvd is None else int(hvd.size())


def DistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, Tensor]] | None = None,
    compression: Policy | Method[Any] | str | type = "none",
    backward_passes_per_step: int = 1,
    op: Any = None,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    sparse_as_dense: bool = False,
    process_set: Any = None,
    **options: Any,
) -> Any:
    """``hvd.DistributedOptimizer`` of ``horovod.torch`` with any method of Grace's, over Horovod or its stand-in.

    Args:
        optimizer: of torch.
        named_parameters: ``model.named_parameters()``.
        compression: a method, the string that makes it, a :class:`grace.Policy`, a class that :func:`compression` made,
            ``hvd.Compression.none`` or ``hvd.Compression.fp16``.
        backward_passes_per_step: how often each gradient is accumulated before it is exchanged.
        op: ``hvd.Average``, which is the default; no other.
        gradient_predivide_factor: 1; means are already divided before they are summed.
        num_groups: Horovod's; Grace has no use for it.
        groups: likewise.
        sparse_as_dense: likewise.
        process_set: ranks of Horovod; None is all. Not of the stand-in, which has none.
        **options: of :func:`grace.DistributedOptimizer`, such as ``seed``.

    Returns:
        The optimizer; see :func:`grace.DistributedOptimizer`, and :func:`shape_as_horovods`.

    Raises:
        ConfigurationError: Horovod is not initialized, the optimizer is not torch's, or an ``op`` or option does not exist;
            and what :func:`grace.DistributedOptimizer` raises.
    """
    hvd = _find_started()
    if hvd is None:
        raise ConfigurationError("Horovod is not initialized; call hvd.init() first, on all ranks")
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ConfigurationError(
            f"grace.horovod.DistributedOptimizer takes an optimizer of torch, got {type(optimizer).__name__}; with Keras use "
            "grace.keras.attach(model, method) after hvd.init(), with a tape grace.tensorflow.Gradients: both go over Horovod"
        )
    average = getattr(hvd, "Average", None)
    if op is not None and op != average:
        raise ConfigurationError(
            f"op={op}: an optimizer of Grace's steps with the mean (hvd.Average); for a sum multiply the learning rate by "
            "hvd.size()"
        )
    if gradient_predivide_factor != 1.0:
        raise ConfigurationError(f"gradient_predivide_factor={gradient_predivide_factor}; legal: 1.0")
    wanted: Any = compression
    if compression in (hvd.Compression.none, hvd.Compression.fp16):
        wanted = "none" if compression == hvd.Compression.none else "fp16"
    elif isinstance(compression, type):
        if not hasattr(compression, "method"):
            raise ConfigurationError(
                f"compression={compression.__name__}: a class of somebody else's; legal: a method of Grace's, such as 'fp16', "
                "hvd.Compression.none and hvd.Compression.fp16"
            )
        wanted = compression.method
    over = "auto" if process_set is None else HorovodTransport(process_set)  # which stays open, as the set does
    return shape_as_horovods(torch_optimizer.DistributedOptimizer(
        optimizer, wanted, named_parameters, transport=over,
        backward_passes_per_step=backward_passes_per_step, **options,
    ))  # fmt: skip


def shape_as_horovods(optimizer: Some) -> Some:
    """The same distributed optimizer, which now tolerates what scripts for Horovod do with theirs.

    They save and load on rank 0 alone, and then broadcast: so its ``state_dict()`` has no memories, which are each rank's own;
    ``handle.checkpoint()`` has them. And ``hvd.broadcast_optimizer_state`` may step with zeros on some ranks, to create a
    state: then nothing is exchanged.
    """

    def step(self: Any, *args: Any, **knobs: Any) -> Any:
        return super(_AsHorovods, self).step(*args, **knobs)

    step.hooked = True  # type: ignore[attr-defined] # the step of the optimizer's own class calls the hooks
    own = type(optimizer)
    members = {"__module__": _WHERE_HOROVODS_ARE, "step": step}
    optimizer.__class__ = type(own.__name__, (_AsHorovods, own), members)
    return optimizer


_WHERE_HOROVODS_ARE = "horovod.torch.optimizer"


class _AsHorovods(_Base):
    """Above the class that :func:`shape_as_horovods` makes. If an optimizer's class says that it is from Horovod's module,
    Horovod's broadcast calls the ``step`` of the class above it, which is this one; everybody else calls that of the class
    itself.
    """

    def step(self, closure: Any = None) -> Any:
        """Steps without the hook that exchanges."""
        hooks, self._optimizer_step_pre_hooks = self._optimizer_step_pre_hooks, OrderedDict()
        try:
            return super().step(closure)
        finally:
            self._optimizer_step_pre_hooks = hooks

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's own, without memories."""
        return _drop_memories(super().state_dict())

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The optimizer's own, without memories."""
        super().load_state_dict(_drop_memories(state_dict))


def _drop_memories(state: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in state.items() if key != KEY}
