"""A network of threads in this process, a worker in each, without a real one: handles run over it as over any transport."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from torch import Tensor

from grace.collectives import Collective
from grace.errors import TransportError
from grace.run.simulate import answers

T = TypeVar("T")


class Threads:
    """A network whose workers are threads, one for each rank; :meth:`member` gives the transport of one.

    Args:
        world: number of workers, >= 1.
        timeout: seconds that a worker waits for the others; None: until they come, or one has failed.

    Example:
        >>> import torch
        >>> from grace.collectives import AllReduce
        >>> run_threads(lambda member: member.run(AllReduce(torch.ones(2) * member.rank)).tolist(), Threads(2))
        [[0.5, 0.5], [0.5, 0.5]]
    """

    def __init__(self, world: int, timeout: float | None = None):
        self.ops: list[Any] = [None] * world
        self.texts: list[Any] = [None] * world
        self.barrier = threading.Barrier(world, timeout=timeout)

    def meet(self) -> None:
        """Waits for the others, unless one of them has gone on, and failed, before this one woke up."""
        with contextlib.suppress(threading.BrokenBarrierError):
            self.barrier.wait()

    def member(self, rank: int) -> ThreadTransport:
        """The transport of the worker with this rank."""
        return ThreadTransport(self, rank)


class ThreadTransport:
    """The transport of one worker of :class:`Threads`. One thread at a time uses it: the worker's own, or its lane's."""

    name = "threads"
    why = ""

    def __init__(self, hub: Threads, rank: int):
        self._hub, self.rank, self.world = hub, rank, len(hub.ops)
        self.error: BaseException | None = None

    def run(self, op: Collective) -> Tensor:
        """The answer to a collective for which all workers ask.

        Raises:
            TransportError: a worker has failed.
        """
        hub = self._hub
        hub.ops[self.rank] = op
        self._wait()
        answer = answers(list(hub.ops))[self.rank]
        hub.meet()  # so that nobody asks for more before all have their answers
        return answer

    def all_gather_text(self, text: str, *, seconds: float) -> list[str]:
        """The texts of all workers, in the order of the ranks; ``seconds`` are not asked, since threads share a machine."""
        hub = self._hub
        hub.texts[self.rank] = text
        self._wait()
        texts = list(hub.texts)
        hub.meet()
        return texts

    def _wait(self) -> None:
        try:
            self._hub.barrier.wait()
        except threading.BrokenBarrierError as error:
            raise TransportError(f"rank {self.rank}: another worker has failed") from error

    def close(self, error: BaseException | None = None) -> None:
        """Leaves; with an error, workers that wait hear of it."""
        self.error = error
        if error is not None:
            self._hub.barrier.abort()


def run_threads(job: Callable[..., T], *hubs: Threads) -> list[T]:
    """The results of ``job(member, ...)``, in a thread for each rank of these networks, of as many workers each. Where a job
    fails, or is interrupted, nobody waits any more.

    Raises:
        What a job raised: not what those did that waited for it in vain.
    """
    ranks = range(len(hubs[0].ops))
    results: list[Any] = [None] * len(ranks)
    errors: list[BaseException | None] = [None] * len(ranks)

    def work(rank: int) -> None:
        try:
            results[rank] = job(*(hub.member(rank) for hub in hubs))
        except BaseException as error:
            errors[rank] = error
            abort()

    def abort() -> None:
        for hub in hubs:
            hub.barrier.abort()

    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in ranks]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except BaseException:
        abort()
        raise
    raise_first(errors)
    return results


def raise_first(errors: Sequence[BaseException | None]) -> None:
    """Raises one of these errors, if there are any: one that is nobody else's before those of workers that waited."""
    there = [error for error in errors if error is not None]
    waited = [error for error in there if isinstance(error.__cause__, threading.BrokenBarrierError)]
    first = next((error for error in there if error not in waited), None) or next(iter(waited), None)
    if first is not None:
        raise first
