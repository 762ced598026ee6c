"""One worker of some runs, one after the other: ``python -m grace.bench.worker SCRATCH``, under torchrun."""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import os
import shutil
import sys
import threading
import time
from pathlib import Path

import torch.distributed as dist

from grace.bench.config import RunConfig
from grace.bench.network.namespaces import INTERFACE, PORT, address
from grace.bench.network.probe import probed
from grace.bench.rendezvous import group, store_of
from grace.bench.results import encode
from grace.bench.scratch import Scratch, write_atomically
from grace.bench.training import Training

_WATCH_SECONDS = 0.5


def main() -> None:
    """Trains; an error goes to the parent through the scratch folder."""
    scratch = Scratch(Path(sys.argv[1]))
    asked = json.loads(scratch.config.read_text())
    rank = int(os.environ["RANK"])
    scratch.register(rank)
    _watch(int(asked["parent"]), scratch.folder)
    try:
        runs = [RunConfig(**config) for config in asked["configs"]]
        if runs[0].network.shaped:  # torchrun's own addresses are not of this namespace
            os.environ.update(MASTER_ADDR=address(0), MASTER_PORT=str(PORT), GLOO_SOCKET_IFNAME=INTERFACE)
        store = store_of(rank, runs[0].workers, runs[0].timeout)
        for index, config in enumerate(runs):
            with group(store, f"run{index}", rank, config):
                probe = probed(config)  # anew for each run: others may have come to use the machine, or left it
                training = Training(config, rank, functools.partial(scratch.report, index), probe)
                result = training.run(asked["command"])
                if result is not None:
                    write_atomically(scratch.result(index), encode(result))
                del training, result
                dist.barrier()
            gc.collect()
    except Exception as error:
        scratch.fail(rank, error)
        sys.stderr.flush()
        os._exit(1)  # threads of a group that has failed may keep the interpreter from exiting


def _watch(parent: int, folder: Path) -> None:
    """Ends this process when the parent is gone without having said so: nobody is waiting for the result."""

    def look() -> None:
        while True:
            time.sleep(_WATCH_SECONDS)
            try:
                os.kill(parent, 0)
            except ProcessLookupError:
                shutil.rmtree(folder, ignore_errors=True)  # the parent could not
                os._exit(1)

    threading.Thread(target=look, name="parent-watch", daemon=True).start()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
