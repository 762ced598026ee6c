"""Keras on three backends, and optax, train a ConvNet on real data with 1 % of the gradients as well as with all of them.

A backend takes most of a minute: two of Keras's run where GRACE_TEST_DIGITS is 1.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

from tests.adapters.toolkits.digits import METHODS, STEPS, WORLD, read
from tests.distributed.processes import run_under_mpi

FOLDER = Path(__file__).parent / "toolkits"
NEEDS = {  # of each script
    "digits_with_keras.py": ("keras", "mpi4py"),
    "digits_with_optax.py": ("flax", "optax", "mpi4py"),
}
ONE_THREAD = {
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
}
TAKES_LONG = pytest.mark.skipif(os.environ.get("GRACE_TEST_DIGITS") != "1", reason="set GRACE_TEST_DIGITS=1: a minute")
ON_CPU = {"CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu"}


# Its doors give the simulator's bits (test_same_answer.py), and with these methods the same task is learned (tests/fidelity).
@pytest.mark.night("raw gradient", "last tensor skipped", "NeverUpdated")
@pytest.mark.parametrize(
    ("script", "toolkit"),
    [
        ("digits_with_keras.py", "tensorflow"),
        pytest.param("digits_with_keras.py", "torch", marks=TAKES_LONG),
        pytest.param("digits_with_keras.py", "jax", marks=TAKES_LONG),
        ("digits_with_optax.py", "jax"),
    ],
)
def test_topk_reaches_what_none_reaches_to_within_a_point(script: str, toolkit: str) -> None:
    for package in (toolkit, *NEEDS[script]):
        if importlib.util.find_spec(package) is None:  # to import it here would cost seconds
            pytest.skip(f"pip install {package}")
    env = {**ONE_THREAD, **ON_CPU, "KERAS_BACKEND": toolkit, "PYTHONPATH": str(FOLDER.parents[2])}
    done = run_under_mpi(FOLDER / script, "0", workers=WORLD, env=env)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
    told = read(done.stdout)
    for ranks in told.values():
        assert [(report.rank, report.steps) for report in ranks] == [(rank, STEPS) for rank in range(WORLD)], ranks
        assert len({report.accuracy for report in ranks}) == 1, ranks
    plain, compressed = (told[method][0] for method in METHODS)
    assert plain.accuracy >= 0.95, plain
    assert compressed.accuracy >= plain.accuracy - 0.01, (compressed, plain)
    assert compressed.sent < plain.sent / 10, (compressed, plain)
