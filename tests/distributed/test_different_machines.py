"""Real processes that compute differently: other kernels, numbers of threads, instruction sets of torch and of BLAS."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

from grace.compute import backends
from tests.distributed import different_machines
from tests.distributed.processes import launch

ROOT = Path(__file__).parents[2]
LEVELS = ["default", "avx2", "avx512"]  # of ATEN_CPU_CAPABILITY
BLAS = ["COMPATIBLE", "AVX2", "AVX512"]  # of MKL_CBWR


def environments() -> tuple[dict[str, str], ...]:
    """Environments of three ranks, as different as this processor can be."""
    best = torch.backends.cpu.get_cpu_capability().lower()
    levels = LEVELS[: LEVELS.index(best) + 1] if best in LEVELS else [best]
    kernels = [backends.available()[i] for i in (0, len(backends.available()) // 2, -1)]
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return tuple(
        {
            "PYTHONPATH": path,
            "GRACE_KERNELS": kernels[rank],
            "OMP_NUM_THREADS": str(rank + 1),
            "MKL_NUM_THREADS": str(rank + 1),
            **({"ATEN_CPU_CAPABILITY": levels[rank % len(levels)]} if len(levels) > 1 else {}),
            "MKL_CBWR": BLAS[rank % len(levels)],
        }
        for rank in range(3)
    )


@pytest.fixture(scope="module")
def digests() -> dict[str, list[str]]:
    """Digests of each rank, by method or mutant."""
    by_spec: dict[str, list[str]] = {}
    for status, output in launch(Path(different_machines.__file__), workers=3, env=environments()):
        assert status == 0, output
        line = next(line for line in output.splitlines() if line.startswith("DIGESTS "))
        for spec, digest in json.loads(line.removeprefix("DIGESTS ")).items():
            by_spec.setdefault(spec, []).append(digest)
    return by_spec


def test_replicas_agree(digests: dict[str, list[str]]) -> None:
    assert digests.keys() == {*different_machines.SPECS, *different_machines.MUTANTS}
    apart = [spec for spec in different_machines.SPECS if len(set(digests[spec])) > 1]
    assert apart == [], "replicas differ"


@pytest.mark.skipif(torch.backends.cpu.get_cpu_capability() == "DEFAULT", reason="there is only one instruction set")
@pytest.mark.parametrize("mutant", different_machines.MUTANTS)
def test_other_arithmetic_differs(mutant: str, digests: dict[str, list[str]]) -> None:
    assert len(set(digests[mutant])) > 1
