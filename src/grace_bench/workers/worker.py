"""One worker of some runs, one after the other: ``python -m grace_bench.workers.worker SCRATCH``, under torchrun."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from pathlib import Path

import msgspec

from grace_bench.files import write_atomically
from grace_bench.network.namespaces import INTERFACE, PORT, address
from grace_bench.runs.config import RunConfig
from grace_bench.runs.results import Failure, decode_as, encode
from grace_bench.workers.rendezvous import attend, open_store
from grace_bench.workers.scratch import Scratch


class Job(msgspec.Struct):
    """What workers are to do; ``command`` is what the user typed."""

    configs: list[RunConfig]
    command: list[str]


def main() -> None:
    """Takes part in each run; rank 0 leaves its document in the scratch folder."""
    scratch = Scratch(Path(sys.argv[1]))
    scratch.watch(functools.partial(os._exit, 1))
    job: Job = decode_as(scratch.job.read_bytes(), Job)
    first, rank = job.configs[0], int(os.environ["RANK"])
    if first.network.shaped:  # torchrun's own addresses are not of this namespace
        os.environ.update(MASTER_ADDR=address(0), MASTER_PORT=str(PORT), GLOO_SOCKET_IFNAME=INTERFACE)
    store = open_store(rank, first.workers, first.timeout)
    for index, config in enumerate(job.configs):
        report = functools.partial(scratch.report, index)
        outcome = attend(store, f"run{index}", config, rank, on_progress=report, command=job.command)
        if outcome is not None:
            write_atomically(scratch.outcome(index), encode(outcome))
        if isinstance(outcome, Failure):
            os._exit(1)  # threads of a group that has failed may keep the interpreter from exiting


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
