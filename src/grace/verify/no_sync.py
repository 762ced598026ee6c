"""The law of accelerators: an exchange does not ask the host about numbers, and has the same bits as where it may ask."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from grace.compute import backends
from grace.contract.method import Exchanged, Method
from grace.flags import finite
from grace.flags.refusals import Refusals
from grace.run import simulate
from grace.verify import laws

_ASKING = ("_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_dim", "equal", "is_nonzero")
# What a tensor on the CPU answers without an operation, and what moves numbers between an accelerator and the host.
_READING = ("tolist", "numpy", "__array__", "cpu", "pin_memory")


@functools.cache
def _name(func: Any) -> str:
    """An operation's name, which torch puts together at each call."""
    return str(func.overloadpacket).removeprefix("aten.")


class Unread(TorchFunctionMode):
    """Fails where the host reads a tensor, or makes pinned memory or a tensor out of numbers that it has."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        assert name not in _READING, f"no sync: the host is asked by {name}"
        assert name not in ("tensor", "from_numpy"), f"no sync: {name} copies numbers of the host"
        assert not (kwargs or {}).get("pin_memory"), f"no sync: {name} makes pinned memory"
        if name == "__setitem__" and isinstance(args[2], int | float):
            assert not _is_copied(args[0], args[1]), (
                "no sync: a number for one place, or for a list of them, is copied there"
            )
        return func(*args, **(kwargs or {}))


def _is_copied(x: Tensor, index: Any) -> bool:
    """True if a number that is put there becomes a tensor on the host first, which is copied, instead of filling a part."""
    parts = index if isinstance(index, tuple) else (index,)
    return any(isinstance(part, Tensor | list) for part in parts) or x[index].dim() == 0


class WithoutSync(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Fails where the host would have to wait for a number."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = _name(func)
        assert name not in _ASKING, f"no sync: the host is asked by {name}"
        if name.startswith("index") and len(args) > 1 and isinstance(args[1], list | tuple):
            masks = [mask for mask in args[1] if isinstance(mask, Tensor) and mask.dtype == torch.bool]
            assert not masks, f"no sync: the host is asked how many are set in the mask of {name}"
        return func(*args, **(kwargs or {}))


def host_is_not_asked(method: Method[Any], steps: Sequence[Sequence[Tensor]]) -> None:
    """No operation makes the host wait for a number, and means, states and flags have the same bits as on the host.

    ``steps``: the gradients of all workers, step by step; some may be inf or NaN. Tensors on the CPU stand in for an
    accelerator's, and the reference for its kernels. What a method makes once and keeps, such as a table, is made before.
    """
    with backends.using("reference"):
        expected = _go(method, steps, simulate)
        with finite.cpu_as_accelerator(), Unread(), WithoutSync():  # type: ignore[no-untyped-call]
            actual = _go(method, steps, lambda runs: simulate([Refusals().watch(run) for run in runs]))
    for step, (outs, others) in enumerate(zip(expected, actual, strict=True)):
        for rank, (out, other) in enumerate(zip(outs, others, strict=True)):
            where = f"no sync: step {step}, rank {rank}:"
            assert bool(out.finite) == bool(other.finite), (
                f"{where} finite is {bool(other.finite)}, on the host it is not"
            )
            assert laws.same_bits(out.mean, other.mean), f"{where} the mean differs from the host's"
            assert _same(out.state, other.state), f"{where} the state differs from the host's"


def _same(a: Any, b: Any) -> bool:
    """True if two states are equal, where a number of one may be a 0-d tensor of the other."""
    if isinstance(a, tuple):
        return isinstance(b, tuple) and all(_same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and laws.same_bits(a, b)
    return bool(a == b)


def _go(
    method: Method[Any], steps: Sequence[Sequence[Tensor]], runner: Callable[[list[Any]], list[Any]]
) -> list[list[Exchanged[Any]]]:
    """The results of all steps, for all ranks; their states are copies."""
    states, out = [method.init(x) for x in steps[0]], []
    for step, xs in enumerate(steps):
        outs = laws.run(method, xs, states, step=step, runner=runner)
        states = [out.state for out in outs]
        copies = [laws.clone_state(state) for state in states]
        out.append([Exchanged(out.mean, None, copy, out.finite) for out, copy in zip(outs, copies, strict=True)])
    return out
