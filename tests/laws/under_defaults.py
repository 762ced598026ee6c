"""Runs every case in a process of its own, whose default dtype or default device is the user's, and tells the bits."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib
import warnings
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection
from typing import Any

import torch

from tests.distributed.processes import SERVER

SHAPES = ((15, 17), (7,), (64, 40), (1,))
STEPS, WORLD = 3, 2  # the third step has an inf
PATIENCE = 240.0  # seconds for one case
Bits = dict[tuple[str, bool], str]


def digest(spec: str, plans: bool) -> str:
    """A hash of what the workers send, of their means and of their states, with and without plans."""
    from grace.registry.policy import Policy
    from tests.laws.bucket_runs import Run
    from tests.laws.cases import CASES

    run = Run(Policy([("*", CASES[spec])]), WORLD, SHAPES, lambda _: plans)
    told = [run.step() for _ in range(STEPS)]
    return hashlib.sha256(repr((told, run.seen)).encode()).hexdigest()


def set_default(name: str) -> None:
    """Sets the default dtype of this name, or the default device ``device:NAME``."""
    kind, _, device = name.partition(":")
    if device:
        torch.set_default_device(device)
    else:
        torch.set_default_dtype(getattr(torch, kind))


def bits_under(default: str, specs: Iterable[str], defect: str | None = None) -> tuple[Bits, str]:
    """The digests under this default, and what went wrong; "" if nothing did."""
    ours, theirs = SERVER.Pipe()
    process = SERVER.Process(target=_work, args=(theirs, default, list(specs), defect), daemon=True)
    process.start()
    theirs.close()
    bits: Bits = {}
    at = "the start"
    try:
        while ours.poll(PATIENCE):
            kind, *rest = ours.recv()
            if kind == "end":
                return bits, rest[0]
            if kind == "at":
                at = f"{rest[0]}, plans {rest[1]}"
            else:
                bits[rest[0], rest[1]] = rest[2]
        return bits, f"no answer for {PATIENCE} s at {at}"
    except EOFError:
        process.join()
        return bits, f"the process died with {process.exitcode} at {at}"
    finally:
        process.kill()
        process.join()


def _work(pipe: Connection, default: str, specs: list[str], defect: str | None) -> None:
    torch.set_num_threads(1)
    set_default(default)
    warnings.simplefilter("ignore")
    if defect is not None:
        DEFECTS[defect]()
    problems = []
    for spec in specs:
        for plans in (False, True):
            pipe.send(("at", spec, int(plans)))
            try:
                pipe.send(("bits", spec, plans, digest(spec, plans)))
            except Exception as error:
                problems.append(f"{spec}, plans {int(plans)}: {type(error).__name__}: {error}")
    pipe.send(("end", "\n".join(problems)))


# ---- defects --------------------------------------------------------------------------------------------------------
def _replace(module: str, name: str, make: Callable[[Any], Callable[..., Any]]) -> None:
    place = importlib.import_module(module)
    right = getattr(place, name)
    setattr(place, name, functools.wraps(right)(make(right)))


def _round_to_default() -> None:
    """A factor whose dtype is torch's default."""

    def make(right: Callable[..., Any]) -> Callable[..., Any]:
        def project(message: torch.Tensor, *args: Any) -> Any:
            out = right(message, *args)
            message.copy_(message.to(torch.get_default_dtype()))
            return out

        return project

    _replace("grace.kernels.low_rank.grouped.native", "project_rows_many", make)


def _wire_on_default_device() -> None:
    """Bytes on torch's default device."""
    _replace("grace.kernels.calling", "new_wire", lambda _: lambda b, width: torch.empty(b, width, dtype=torch.uint8))


def _crash() -> None:
    """Memory that is not there."""
    _replace("grace.kernels.random_masks.native", "take_subset", lambda _: lambda *args: ctypes.string_at(0))


DEFECTS = {"rounded": _round_to_default, "placed": _wire_on_default_device, "crash": _crash}
