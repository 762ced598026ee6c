"""A worker of some runs, one after the other: ``python -m grace_bench.workers.worker SCRATCH``."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import sys
from pathlib import Path

import msgspec

from grace_bench.files import write_atomically
from grace_bench.runs.config import RunConfig
from grace_bench.runs.results import Failure, decode_as, encode
from grace_bench.workers.rendezvous import attend, open_store
from grace_bench.workers.scratch import Scratch


class Job(msgspec.Struct):
    """The job of the workers; ``command`` is what the user typed."""

    configs: list[RunConfig]
    command: list[str]


def main() -> None:
    """Takes part in each run; rank 0 leaves its document in the scratch folder."""
    scratch = Scratch(Path(sys.argv[1]))

    def leave() -> None:
        shutil.rmtree(scratch.folder, ignore_errors=True)  # the command that made it is gone
        os._exit(1)

    scratch.watch(leave)
    job: Job = decode_as(scratch.job.read_bytes(), Job)
    first, rank = job.configs[0], int(os.environ["RANK"])
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
