"""Networks without a network: of one, and of threads in this process."""

from __future__ import annotations

import threading
from typing import Any

from torch import Tensor

from grace.collectives import Collective
from grace.errors import TransportError
from grace.run import threads
from grace.run.simulate import answers
from tests.patience import PATIENCE


class Loopback:
    """A network of one, that fails in round ``fail_at``."""

    rank, world = 0, 1

    def __init__(self, fail_at: int = -1):
        self.left, self.closed = fail_at, False
        self.error: BaseException | None = None
        self.asked: list[Collective] = []

    def run(self, op: Collective) -> Tensor:
        if self.left == 0:
            raise TransportError("a worker died")
        self.left -= 1
        self.asked.append(op)
        return answers([op])[0]

    def all_gather_text(self, text: str, *, seconds: float) -> list[str]:
        return [text]

    def close(self, error: BaseException | None = None) -> None:
        self.closed = True
        self.error = error


class Threads(threads.Threads):
    """A network of threads in this process. Nobody comes too late: how long a machine lets a thread wait is not asked."""

    def __init__(self, world: int):
        super().__init__(world, PATIENCE)


def in_threads(world: int, job: Any) -> list[Any]:
    """Results of ``job(member, rank)``, or its errors, in a thread for each rank, over a network of their own."""
    hub = Threads(world)
    return run_threads(world, lambda rank: job(hub.member(rank), rank), hub)


def run_threads(world: int, job: Any, *hubs: Threads) -> list[Any]:
    """Results of ``job(rank)``, or its errors, in a thread for each rank. If one fails, nobody waits for it in these
    networks.
    """
    results: list[Any] = [None] * world

    def work(rank: int) -> None:
        try:
            results[rank] = job(rank)
        except BaseException as error:  # pytest's own are no Exception
            results[rank] = error
            for hub in hubs:
                hub.barrier.abort()

    workers = [threading.Thread(target=work, args=(rank,)) for rank in range(world)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return results


def returned(results: list[Any]) -> list[Any]:
    """These, if nobody has failed; else raises what somebody has: who waited in vain is not who failed."""
    failed = [result for result in results if isinstance(result, BaseException)]
    threads.raise_first(failed)
    return results
