"""A worker that prints what each method's means were; started with other kernels, threads and instruction sets on each rank.

One case of each method, and the mutants; with the argument ``all``, all cases.
"""

from __future__ import annotations

import datetime
import hashlib
import importlib
import json
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import grace
from grace.registry.policy import Policy
from grace.run.drive import drive
from grace.run.worker import Worker
from grace.transports.torch_distributed import TorchDistributed
from tests.laws.cases import CASES
from tests.patience import PATIENCE

STEPS = 3
SHAPES = {"matrix": (240, 170), "conv": (8, 3, 3, 3), "vector": (1000,)}
FIRST = {spec.partition(":")[0]: spec for spec in reversed(CASES)}  # of each method
SPECS = [*FIRST.values(), "powersgd:rank=1,min_rate=0.1,warm_start=false", "gradzip:rank=2,min_rate=0.1,alternate=true"]


def gradients(rank: int, step: int) -> dict[str, Tensor]:
    drawn = torch.Generator().manual_seed(1000 * step + rank)
    return {name: torch.randn(shape, generator=drawn) for name, shape in SHAPES.items()}


def digest(means: list[Tensor]) -> str:
    """Digest of all their bits."""
    out = hashlib.blake2b(digest_size=8)
    for mean in means:
        out.update(mean.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return out.hexdigest()


def orthonormalize_by_lapack(p: Tensor) -> Tensor:
    return torch.linalg.qr(p.mT).Q.mT.contiguous()


def split_by_blas(x: Tensor | None, p: Tensor, own: Tensor, q: Tensor, out: Tensor) -> None:
    if x is not None:
        x -= p.mT @ own
    torch.mm(p.mT, q, out=out)


def add_contracted(out: Tensor, x: Tensor, scale: float) -> None:
    out.add_(x, alpha=scale)


# name: the method, its module, and what it computes otherwise
MUTANTS: dict[str, tuple[str, str, dict[str, Callable[..., Any]]]] = {
    "blas": (
        "powersgd",
        "grace.kernels.low_rank",
        {"orthonormalize": orthonormalize_by_lapack, "split_low_rank": split_by_blas},
    ),
    "contracted": ("3lc", "grace.kernels.ternary.codes", {"add_scaled_": add_contracted}),
}


def run(spec: str, rank: int, world: int, transport: TorchDistributed) -> str:
    """The digest of all means of some steps."""
    worker, means = Worker(Policy([("*", CASES.get(spec) or grace.method(spec))]), rank, world), []
    for step in range(STEPS):
        outs = drive(worker.exchange(gradients(rank, step)), transport)
        means += [out.mean.clone() for out in outs.values()]
        worker.advance()
        worker.workspace.reset()
    return digest(means)


def main(what: str = "") -> None:
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=PATIENCE))
    rank, world, transport = dist.get_rank(), dist.get_world_size(), TorchDistributed()
    digests = {spec: run(spec, rank, world, transport) for spec in (CASES if what == "all" else SPECS)}
    for mutant, (name, module_name, functions) in MUTANTS.items():
        module = importlib.import_module(module_name)
        own = {function: getattr(module, function) for function in functions}
        vars(module).update(functions)
        digests[mutant] = run(FIRST[name], rank, world, transport)
        vars(module).update(own)
    sys.stdout.write(f"\nDIGESTS {json.dumps(digests)}\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
