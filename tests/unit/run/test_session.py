"""A session: any of the tensors at any time, exchanges of one's own, and one way to fail."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import grace
from grace.collectives import AllReduce, Exchange
from grace.errors import GraceError, InputError, NonFiniteError, RoundMismatch, TransportError
from grace.run.inputs import refuse_devices
from grace.run.options import DEFAULTS, Options
from grace.run.session import Session
from grace.run.simulator import Simulator
from grace.transports.alone import Alone
from tests.unit.networks import Loopback, in_threads

POLICY = grace.Policy([("*", "topk:ratio=0.25")])
NAMES = ("a", "b", "c")


def begin(transport: Any, options: Options = DEFAULTS, method: Any = POLICY) -> Session:
    return Session({name: torch.empty(8) for name in NAMES}, method, transport, options)


def gradient(name: str, rank: int, step: int) -> Tensor:
    return torch.randn(8, generator=torch.Generator().manual_seed(100 * step + 10 * rank + NAMES.index(name)))


def in_turn(step: int) -> tuple[str, ...]:
    """The names of a step: one fragment, or two."""
    return (NAMES[step % 3],) if step % 2 else (NAMES[step % 3], NAMES[(step + 1) % 3])


@pytest.mark.parametrize("method", ["topk:ratio=0.25", "qsgd:bits=4,memory=residual", "none"])
def test_fragments_in_turn_are_what_the_simulator_says(method: str) -> None:
    policy = grace.Policy([("*", method)])

    def work(transport: Any, rank: int) -> Any:
        session, means = begin(transport, method=policy), []
        for step in range(7):
            out = session.exchange({name: gradient(name, rank, step) for name in in_turn(step)})
            means.append({name: mean.tolist() for name, mean in out.items()})
            session.advance()
        return means

    simulator = Simulator(policy, 3)
    expected = [
        {name: mean.tolist() for name, mean in simulator.step(
            {name: [gradient(name, rank, step) for rank in range(3)] for name in in_turn(step)}
        ).items()} for step in range(7)
    ]  # fmt: skip
    assert in_threads(3, work) == [expected] * 3


def test_what_is_not_exchanged_keeps_its_memory() -> None:
    session = begin(Loopback())
    session.exchange({"a": torch.tensor([4.0, 3, 2, 1, 0, 0, 0, 0])})  # 4 and 3 go
    session.advance()
    for _ in range(3):
        session.exchange({"b": torch.ones(8)})
        session.advance()
    assert session.exchange({"a": torch.zeros(8)})["a"].tolist() == [0, 0, 2, 1, 0, 0, 0, 0]
    assert session.worker.step == 4


def test_the_same_tensor_twice_in_a_step() -> None:
    session = begin(Loopback())
    session.exchange({"a": torch.tensor([4.0, 3, 2, 1, 0, 0, 0, 0])})
    assert session.exchange({"a": torch.zeros(8)})["a"].tolist() == [0, 0, 2, 1, 0, 0, 0, 0]


@pytest.mark.parametrize("granularity", ["bucket", "model"])
def test_a_group_is_exchanged_whole_or_not_at_all(granularity: Any) -> None:
    session = begin(Loopback(), Options(granularity=granularity))
    with pytest.raises(
        InputError, match=r"'b' did not come, .* as one tensor .*'c', 'b', 'a'.*granularity='parameter'"
    ):
        session.exchange({"a": torch.ones(8), "c": torch.ones(8)})
    assert isinstance(session.error, InputError), "the others should hear of it"
    session = begin(Loopback(), Options(granularity=granularity))
    assert list(session.exchange({name: torch.ones(8) for name in NAMES})) == ["c", "b", "a"]


def test_scale_and_learning_rate_are_of_one_exchange() -> None:
    session = begin(Loopback(), method=grace.Policy([("*", "topk:ratio=0.25,follow_lr=true")]))
    x = torch.tensor([8.0, 6, 4, 2, 0, 0, 0, 0])
    assert session.exchange({"a": x.clone()}, scale=2.0, lr=1.0)["a"].tolist() == [8, 6, 0, 0, 0, 0, 0, 0]
    assert session.worker.state.debts()["a"].tolist() == [0, 0, 2, 1, 0, 0, 0, 0], "in units without the scale"
    means = session.exchange({"a": torch.zeros(8)}, lr=0.5)
    assert means["a"].tolist() == [0, 0, 4, 2, 0, 0, 0, 0], "owed at a rate of 1, applied at a half"


class Operations(TorchDispatchMode):  # type: ignore[misc]
    """Counts products, and questions to the device."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[func._schema.name.rpartition("::")[2]] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("given", [True, False], ids=["in place", "apart"])
def test_a_scale_takes_one_operation_for_all_tensors_and_is_not_read(given: bool) -> None:
    """A scale that lies on the device gives the bits of the number, also where it is no power of two."""
    xs = {name: torch.randn(8) for name in NAMES}
    seen = []
    for scale in (1000.0, torch.tensor(1000.0)):
        session, own = begin(Loopback()), {name: x.clone() for name, x in xs.items()}
        with Operations() as operations:
            means = session.exchange(own, into=own if given else None, scale=scale)
        seen.append((means, operations.counts["_local_scalar_dense"]))
        products = {name: count for name, count in operations.counts.items() if "mul" in name}
        assert products == ({"_foreach_mul_": 2} if given else {"_foreach_mul_": 1, "_foreach_mul": 1})
    (number, reads), (tensor, others) = seen
    assert reads == others
    assert all(torch.equal(number[name], tensor[name]) for name in NAMES)


def average(x: Tensor) -> Exchange[Tensor]:
    return (yield AllReduce(x, donate=True))


def test_an_exchange_of_ones_own_counts_where_it_should() -> None:
    session = begin(Loopback())
    assert session.run(average(torch.ones(5))).tolist() == [1.0] * 5
    assert (session.stats.traffic.rounds, session.stats.exchange_seconds) == (0, 0.0)
    assert session.run(average(torch.ones(5)), counted=True).tolist() == [1.0] * 5
    assert session.stats.traffic.rounds == 1
    assert session.stats.exchange_seconds > 0
    assert session.stats.collectives["AllReduce"].bytes == 20


def test_one_that_counts_is_compared() -> None:
    def work(transport: Any, rank: int) -> None:
        begin(transport, Options(check=True)).run(average(torch.ones(2 + rank)), counted=True)

    assert all(isinstance(error, RoundMismatch) for error in in_threads(2, work))


@pytest.mark.parametrize("counted", [True, False])
def test_one_that_counts_ends_the_session_where_it_fails(counted: bool) -> None:
    network = Loopback(fail_at=0)
    session = begin(network)
    with pytest.raises(TransportError) as raised:
        session.run(average(torch.ones(2)), counted=counted)
    assert (session.error is raised.value is network.error) is counted


def test_a_turn_is_one_threads_and_may_be_entered_again() -> None:
    session, errors = begin(Loopback()), []

    def elsewhere() -> None:
        try:
            session.exchange({"a": torch.ones(8)})
        except GraceError as error:
            errors.append(str(error))

    with session.turn():
        assert session.exchange({"a": torch.ones(8)}).keys() == {"a"}
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
    (text,) = errors
    assert "another thread is in a step" in text
    assert session.error is None


def test_a_failed_turn_ends_the_session_but_for_what_all_ranks_raise() -> None:
    network = Loopback()
    session = begin(network)
    with pytest.raises(NonFiniteError), session.turn():
        raise NonFiniteError("on all ranks", ["a"])
    assert session.error is None
    with pytest.raises(KeyError) as raised, session.turn():
        raise KeyError("here")
    assert session.error is raised.value is network.error
    with pytest.raises(KeyError), session.turn():
        pass


def test_who_a_worker_is() -> None:
    session = begin(Loopback(), Options(seed=5))
    session.advance()
    peer = session.peer("a")
    assert (peer.rank, peer.world, peer.step, peer.name, peer.seed) == (0, 1, 1, "a", 5)


def test_tensors_on_two_devices_are_refused_by_name():
    two = {"a": torch.empty(3), "b": torch.empty(3, device="meta")}
    session = Session(two, "none", Alone())
    with pytest.raises(InputError, match="'b' is on meta, and what is exchanged with it on cpu"):
        session.exchange({"a": torch.ones(3), "b": torch.ones(3, device="meta")})


class Elsewhere:
    """Stands in for a tensor on a device that this machine does not have."""

    def __init__(self, place: str):
        self.device = torch.device(place)


def test_a_model_on_two_devices_is_refused():
    refuse_devices({"a": Elsewhere("cuda:0"), "b": Elsewhere("meta"), "c": Elsewhere("cuda:0")})
    with pytest.raises(InputError, match=r"'a' is on cuda:0 and 'c' on cuda:1; .* \(model.to\('cuda:0'\)\)"):
        refuse_devices({"a": Elsewhere("cuda:0"), "b": Elsewhere("cuda:0"), "c": Elsewhere("cuda:1")})


def test_a_failure_says_how_many_steps_were_made() -> None:
    """So that a rank that has made fewer, one of two causes, is found."""

    class Left(Loopback):
        def run(self, op: Any) -> Tensor:
            if len(self.asked) == 2:
                raise TransportError("A worker has died, or has left because it made fewer steps.")
            return super().run(op)

    session = Session({"w": torch.empty(8, 8)}, "none", Left())
    for _ in range(2):
        session.exchange({"w": torch.ones(8, 8)})
        session.advance()
    with pytest.raises(TransportError, match=r"fewer steps\. This rank had made 2 steps"):
        session.exchange({"w": torch.ones(8, 8)})
