"""A network of threads."""

from __future__ import annotations

import threading

import pytest
import torch

from grace.collectives import AllGather, AllReduce
from grace.errors import TransportError
from grace.run.threads import Threads, ThreadTransport, run_threads


def test_workers_get_what_a_network_would_give_them() -> None:
    def job(member: ThreadTransport) -> tuple[list[float], list[str], list[list[int]]]:
        total = member.run(AllReduce(torch.full((2,), float(member.rank))))
        texts = member.all_gather_text(f"rank {member.rank}", seconds=1)
        return total.tolist(), texts, member.run(AllGather(torch.tensor([member.rank]))).tolist()

    for total, texts, gathered in run_threads(job, Threads(3)):
        assert total == [1.0, 1.0]  # the mean
        assert texts == ["rank 0", "rank 1", "rank 2"]
        assert gathered == [[0], [1], [2]]


@pytest.mark.parametrize("asks", ["run", "text"])
def test_who_fails_leaves_nobody_waiting_and_is_who_is_told(asks: str) -> None:
    heard: list[BaseException] = []

    def job(first: ThreadTransport, second: ThreadTransport) -> None:
        if first.rank == 1:
            raise ValueError("out of paper")
        try:
            second.run(AllReduce(torch.ones(1))) if asks == "run" else second.all_gather_text("", seconds=1)
        except TransportError as error:
            heard.append(error)
            raise

    with pytest.raises(ValueError, match="out of paper"):
        run_threads(job, Threads(3), Threads(3))
    assert [str(error).partition(":")[2] for error in heard] == [" another worker has failed"] * 2


def test_a_handle_that_closes_with_an_error_wakes_the_others() -> None:
    def job(member: ThreadTransport) -> None:
        if member.rank == 0:
            member.close(ValueError("strange gradients"))
            assert isinstance(member.error, ValueError)
        else:
            with pytest.raises(TransportError, match="rank 1: another worker has failed"):
                member.run(AllReduce(torch.ones(1)))

    run_threads(job, Threads(2))


def test_an_interrupted_caller_ends_its_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()

    def job(member: ThreadTransport) -> None:
        if member.rank == 0:
            try:
                member.run(AllReduce(torch.ones(1)))  # rank 1 never comes
            except TransportError:
                ended.set()
        else:
            ended.wait(60)

    def join(thread: threading.Thread, timeout: float | None = None) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "join", join)
        with pytest.raises(KeyboardInterrupt):
            run_threads(job, Threads(2))
    assert ended.wait(60)
