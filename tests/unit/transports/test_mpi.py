"""Refusals before a transport over MPI is made: each in a process that starts MPI anew."""

import os
import subprocess
import sys

import pytest

from tests.patience import PATIENCE

pytest.importorskip("mpi4py")
CODE = """
import sys
import mpi4py
mpi4py.rc.thread_level = sys.argv[1]
from grace.errors import ConfigurationError
from grace.transports.mpi import MPITransport
try:
    print("world", MPITransport().world)
except ConfigurationError as error:
    print(error)
"""
FOREIGN = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4"}  # from an mpirun that is not of mpi4py's MPI
CASES = [
    ("funneled", {}, "MPI was started without threads"),
    ("serialized", {}, "world 1"),
    ("multiple", FOREIGN, "this process is rank 1 of 4 (OMPI_COMM_WORLD_RANK), and MPI says that it is alone"),
]


def test_mpi_without_threads_and_the_launcher_of_another_mpi_are_refused() -> None:
    usual = {key: value for key, value in os.environ.items() if not key.startswith(("OMPI_", "PMI"))}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", CODE, level], stdout=subprocess.PIPE, text=True, env={**usual, **environment}
        )
        for level, environment, _ in CASES
    ]
    for process, (level, _, told) in zip(started, CASES, strict=True):
        out, _ = process.communicate(timeout=PATIENCE)
        if level == "funneled" and out.startswith("world"):
            continue  # an MPI that gives more threads than it is asked for
        assert told in out, (level, out)
