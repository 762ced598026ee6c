"""True if all numbers are finite, without asking the host: flags that stay on the device, and what they select.

On the CPU a flag is a Python bool, and costs nothing. On an accelerator it is a 0-d bool tensor that the host has not read:
reading it would wait until all submitted work has ended. There everything is computed as if all were well, and the flag then
selects: the mean or NaN, a memory's successor or the memory as it was. The bits are the same.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from grace.flags.capturing import refuse_capture

Flag: TypeAlias = bool | Tensor
_cpu_is_host = True
_IS_CPU = operator.attrgetter("is_cpu")


def on_host(device: torch.device) -> bool:
    """True if the host may read tensors of this device at no cost."""
    return _cpu_is_host and device.type == "cpu"


def all_on_host(tensors: Iterable[Tensor]) -> bool:
    """True if the host may read all of these tensors, of any shapes, at no cost."""
    return _cpu_is_host and all(map(_IS_CPU, tensors))


@contextlib.contextmanager
def cpu_as_accelerator() -> Iterator[None]:
    """A context in which tensors on the CPU are treated as an accelerator's: nothing asks the host. For tests."""
    global _cpu_is_host
    _cpu_is_host = False
    try:
        yield
    finally:
        _cpu_is_host = True


def flag(answer: Tensor) -> Flag:
    """A flag from a 0-d bool tensor: a bool where the host may read it, else the tensor."""
    return bool(answer) if on_host(answer.device) else answer


def flags(answers: Tensor) -> Sequence[Flag]:
    """The flags of ``answers [T]`` bool: bools where the host may read them."""
    if on_host(answers.device):
        out: list[bool] = answers.tolist()
        return out
    return answers.unbind(0)


def and_(a: Flag, b: Flag) -> Flag:
    """True if both flags hold."""
    if a is True or b is False:
        return b
    if b is True or a is False:
        return a
    return torch.logical_and(a, b)


def or_(a: Flag, b: Flag) -> Flag:
    """True if at least one of two flags holds."""
    if a is False or b is True:
        return b
    if b is False or a is True:
        return a
    return torch.logical_or(a, b)


def not_(a: Flag) -> Flag:
    """True if a flag does not hold."""
    return ~a if isinstance(a, Tensor) else not a


def ask_host(a: Flag) -> bool:
    """The host's answer. On an accelerator this waits: only where what is yielded next depends on it."""
    if isinstance(a, Tensor) and not on_host(a.device):
        refuse_capture("what this method sends next depends on whether this step was finite")
    return bool(a)


def ask_host_of_all(flags: Sequence[Flag]) -> list[bool]:
    """As :func:`ask_host`, of several flags of one device at once: one question."""
    device = next((flag.device for flag in flags if isinstance(flag, Tensor) and not on_host(flag.device)), None)
    if device is None:
        return list(map(bool, flags))
    refuse_capture("what this method sends next depends on whether this step was finite")
    answers: list[bool] = torch.stack(
        [torch.as_tensor(flag, device=device, dtype=torch.bool) for flag in flags]
    ).tolist()
    return answers


def fill_unless_(a: Flag, x: Tensor, value: float) -> Tensor:
    """x, of any shape, filled with ``value`` in place unless ``a``."""
    if isinstance(a, Tensor):
        return x.masked_fill_(~a, value)
    return x if a else x.fill_(value)


def choose_(a: Flag, new: Tensor, old: Tensor) -> Tensor:
    """``new`` if ``a``, else ``old``, in new's storage, which must not overlap old's; of the same shape."""
    if isinstance(a, Tensor):
        return torch.where(a, new, old, out=new)
    return new if a else new.copy_(old)
