"""How the workers of a run find each other, and run it together."""

from __future__ import annotations

import contextlib
import datetime
import gc
import json
import os
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import torch.distributed as dist

from grace.bench.config import RunConfig
from grace.bench.network.probe import Probe
from grace.bench.results import Result
from grace.bench.training import Training
from grace.errors import GraceError, TransportError
from grace.transports.torch_distributed import guard_exit

_GRACE_SECONDS = 60.0  # beyond the run's own time-out, for the slowest worker to say how it ended


def store_of(rank: int, world: int, timeout: float) -> dist.Store:
    """The store at MASTER_ADDR and MASTER_PORT, over which workers find each other; rank 0 has it, or torchrun's agent."""
    agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return dist.TCPStore(
        os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), world, is_master=rank == 0 and not agent,
        timeout=datetime.timedelta(seconds=timeout),
    )  # fmt: skip


@contextlib.contextmanager
def group(store: dist.Store, name: str, rank: int, config: RunConfig) -> Iterator[None]:
    """The default process group, for one run: what one leaves behind, dead connections even, is not the next one's."""
    guard_exit()
    named = dist.PrefixStore(name, store)
    timeout = datetime.timedelta(seconds=config.timeout)
    dist.init_process_group("gloo", store=named, rank=rank, world_size=config.workers, timeout=timeout)
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
) -> Result | str | None:
    """Takes part in a run among workers that outlive it. All call this alike.

    Returns:
        On rank 0 the result, or why the run failed: the first error of any rank, a lost connection only if there is no
        other. None on other ranks.
    """
    result, mine = None, None
    try:
        with group(store, name, rank, config):
            training = Training(config, rank, on_progress, _probe(config))
            result = training.run(command)
            del training
            dist.barrier()
    except Exception as error:
        mine = _described(rank, error)
        traceback.clear_frames(error.__traceback__)  # they hold the group, and with it connections others wait on
        error.__traceback__ = None
        if dist.is_initialized():
            with contextlib.suppress(RuntimeError, ValueError, AssertionError):
                dist.destroy_process_group()
    gc.collect()
    store.set(f"{name}/outcome/{rank}", json.dumps(mine))
    if rank != 0:
        return None
    wait = datetime.timedelta(seconds=config.timeout + _GRACE_SECONDS)
    keys = [f"{name}/outcome/{other}" for other in range(config.workers)]
    try:
        store.wait(keys, wait)
    except RuntimeError:
        return f"{config.method}: a worker did not say within {wait.total_seconds():.0f} s how the run ended"
    errors = [found for key in keys if (found := json.loads(store.get(key))) is not None]
    if not errors:
        return result
    first = min(errors, key=lambda e: bool(e["consequence"]))
    return f"{config.method}: rank {first['rank']} of {config.workers} failed: {first['text']}"


def _probe(config: RunConfig) -> Probe | None:
    """None where it is not known how many workers share a machine's cores."""
    local = os.environ.get("LOCAL_WORLD_SIZE")
    if local is None:
        return None
    return Probe(config.network, config.workers, (os.cpu_count() or 1) * config.workers // int(local))


def _described(rank: int, error: BaseException) -> dict[str, Any]:
    expected = isinstance(error, GraceError)
    text = f"{type(error).__name__}: {error}" if expected else "".join(traceback.format_exception(error)).rstrip()
    consequence = isinstance(error, TransportError) or "gloo" in str(error).lower()
    return {"rank": rank, "text": text, "consequence": consequence}
