"""Rendezvous of the workers of a run, and their run together."""

from __future__ import annotations

import contextlib
import datetime
import gc
import os
import traceback
from collections.abc import Callable, Iterator, Sequence

import msgspec
import torch
import torch.distributed as dist

from grace.errors import GraceError, TransportError
from grace.predict.probe import Probe
from grace.transports.torch_distributed import TorchDistributed, guard_exit
from grace_bench.extras import TORCH
from grace_bench.runs.config import RunConfig
from grace_bench.runs.record import failure_of
from grace_bench.runs.results import Document, Result
from grace_bench.runs.training import Training, place_worker

_GRACE_SECONDS = 60.0  # beyond the run's own time-out, until the slowest worker must have said how it ended


class RunEnding(msgspec.Struct):
    """End of a worker's part in a run. ``consequence``: its error follows from another worker's."""

    rank: int
    error: str | None = None
    consequence: bool = False


def open_store(rank: int, world: int, timeout: float) -> dist.Store:
    """The store at MASTER_ADDR and MASTER_PORT, over which workers find each other; rank 0 or torchrun's agent holds it."""
    agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return dist.TCPStore(
        os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), world, is_master=rank == 0 and not agent,
        timeout=datetime.timedelta(seconds=timeout),
    )  # fmt: skip


@contextlib.contextmanager
def _group(store: dist.Store, name: str, rank: int, config: RunConfig) -> Iterator[None]:
    """The default process group, for one run: the next one inherits nothing from it, not even dead connections."""
    guard_exit()
    named = dist.PrefixStore(name, store)
    timeout = datetime.timedelta(seconds=config.timeout)
    placement = place_worker(config, rank)
    if placement.device.type == "cuda":
        torch.cuda.set_device(placement.device)
    dist.init_process_group(placement.backend, store=named, rank=rank, world_size=config.workers, timeout=timeout)
    yield
    dist.destroy_process_group()


def attend(
    store: dist.Store,
    name: str,
    config: RunConfig,
    rank: int,
    *,
    on_progress: Callable[[int, int], None],
    command: list[str],
) -> Document | None:
    """Takes part in a run. All workers call this in the same way, and outlive it.

    Returns:
        On rank 0 the run's document: a failure gives the first error of any rank, a lost connection only if there is no
        other. None on other ranks.
    """
    result: Result | None = None
    ending = RunEnding(rank)
    try:
        with _group(store, name, rank, config):
            training = _training_of(config)(config, rank, on_progress, _find_probe(config))
            result = training.run(command)
            del training
            dist.barrier()
    except Exception as error:
        ending = _describe(rank, error)
        traceback.clear_frames(error.__traceback__)  # they hold the group, and with it connections others wait on
        error.__traceback__ = None
        if dist.is_initialized():
            with contextlib.suppress(RuntimeError, ValueError, AssertionError):
                dist.destroy_process_group()
    gc.collect()
    store.set(f"{name}/ending/{rank}", msgspec.json.encode(ending).decode())
    if rank != 0:
        return None
    wait = datetime.timedelta(seconds=config.timeout + _GRACE_SECONDS)
    keys = [f"{name}/ending/{other}" for other in range(config.workers)]
    try:
        store.wait(keys, wait)
    except RuntimeError:
        message = f"{config.method}: a worker did not say within {wait.total_seconds():.0f} s how the run ended"
        return failure_of(config, message, command)
    endings = [msgspec.json.decode(store.get(key), type=RunEnding) for key in keys]
    first = find_cause(endings)
    if first is None:
        return result
    return failure_of(config, f"{config.method}: rank {first.rank} of {config.workers} failed: {first.error}", command)


def _training_of(config: RunConfig) -> type[Training]:
    if config.toolkit == TORCH:
        return Training
    from grace_bench.toolkits.training import ToolkitTraining

    return ToolkitTraining


def _find_probe(config: RunConfig) -> Probe | None:
    """A probe for this run alone, as the machine's other users come and go. None where it is not known how many workers
    share a machine's cores.
    """
    local = os.environ.get("LOCAL_WORLD_SIZE")
    if local is None or config.device != "cpu":  # the model of links knows no device beside the network
        return None
    cores = (os.cpu_count() or 1) * config.workers // int(local)
    return Probe(TorchDistributed(), cores, config.network)


def find_cause(endings: Sequence[RunEnding]) -> RunEnding | None:
    """The cause of a run's end: an error, or a lost connection only if there is no other; None if there is none."""
    return min(
        (ending for ending in endings if ending.error is not None), key=lambda ending: ending.consequence, default=None
    )


def _describe(rank: int, error: BaseException) -> RunEnding:
    """An error that Grace raises on purpose needs only its message, others their traceback."""
    expected = isinstance(error, GraceError)
    text = f"{type(error).__name__}: {error}" if expected else "".join(traceback.format_exception(error)).rstrip()
    # torch has no class of its own for gloo's lost connections
    return RunEnding(rank, text, isinstance(error, TransportError) or "gloo" in str(error).lower())
