"""Tables of the host on their way to a device: never from memory that a graph would read later, and there for every stream."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

pytest.importorskip("triton", reason="needs the package triton")

import grace.kernels
from grace.compute.host import host_int64, to_device
from grace.errors import ConfigurationError
from grace.flags.capturing import pretend_capturing
from grace.flags.finite import cpu_as_accelerator
from grace.kernels.dynamic_8bit import Codebook

META = torch.device("meta")
BOOK = Codebook.of(torch.arange(128) / 127)
# What is kept for the process, on a device: the arguments before it.
KEPT: dict[str, tuple[Any, ...]] = {
    "dynamic_8bit.book._copy": (BOOK,),
    "dynamic_8bit.triton._middle_on": (BOOK,),
    "rotation.reference._book": (4,),
    "rotation.triton._book": (4,),
    "lookup_table.reference._on": ((0, 1, 3), torch.int64),
    "lookup_table.triton._numbers": ((0, 1, 3), torch.int64),
    "lookup_table.triton._shares": ((0, 1, 3), 6),
}


class OnTheDevice(TorchDispatchMode):  # type: ignore[misc]
    """Notes what is submitted to the device, but for copies for which the host waits."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if out.device == META and not (func is torch.ops.aten._to_copy.default and not kwargs.get("non_blocking")):
            self.seen.append(str(func))
        return out


def kept_on_devices() -> dict[str, Any]:
    """The functions of kernels that keep for the process what they have made for a device."""
    keepers = {}
    for module in pkgutil.walk_packages(grace.kernels.__path__, "grace.kernels."):
        for name, value in vars(importlib.import_module(module.name)).items():
            if (
                hasattr(value, "cache_info")
                and value.__module__ == module.name
                and "device" in inspect.signature(value).parameters
            ):
                keepers[f"{module.name.removeprefix('grace.kernels.')}.{name}"] = value
    return keepers


def test_what_the_process_keeps_is_there_before_another_stream_reads_it() -> None:
    """Nothing is submitted behind the copy, which the host waits for; and nothing is freed that a stream may still read."""
    keepers = kept_on_devices()
    assert keepers.keys() == KEPT.keys()
    for name, function in keepers.items():
        assert function.cache_info().maxsize is None, name
        with OnTheDevice() as device:
            function(*KEPT[name], META)
        assert device.seen == [], name


@pytest.mark.parametrize("make", [lambda: torch.zeros(1, device=META), lambda: to_device(host_int64([1]), META)])
def test_what_is_submitted_behind_a_copy_is_noticed(make: Callable[[], Any]) -> None:
    with OnTheDevice() as device:
        make()
    assert device.seen


def test_a_table_is_not_copied_into_a_graph() -> None:
    table = host_int64([1, 2])
    with pretend_capturing():
        assert to_device(table, table.device) is table, "on the host it is there"
        with cpu_as_accelerator(), pytest.raises(ConfigurationError, match="one step as usual before each capture"):
            to_device(table, table.device)
