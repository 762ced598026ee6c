"""Steps of training above a session: parts of steps, where means go, errors, statistics, switch and state."""

from __future__ import annotations

import gc
import math
import threading
from typing import Any

import pytest
import torch
from torch import Tensor

import grace
from grace import wire
from grace.collectives import Collective
from grace.errors import ConfigurationError, FingerprintMismatch, GraceError, InputError, NonFiniteError, StateError
from grace.run.fingerprint import fingerprint
from grace.run.options import DEFAULTS, Options
from grace.run.session import Session
from grace.run.steps import Steps
from grace.state import flat, nested
from tests.patience import PATIENCE
from tests.unit.networks import Loopback, in_threads

TOP1 = grace.Policy([("*", "topk:ratio=0.25")])


def vector(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float32)


def like(**shapes: tuple[int, ...]) -> dict[str, Tensor]:
    return {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}


def begin(names: dict[str, Tensor], transport: Any, options: Options = DEFAULTS) -> Steps:
    return Steps(Session(names, TOP1, transport, options))


def two(counted: bool = True, **options: Any) -> Steps:
    return Steps(Session(like(v=(4,), w=(4,)), TOP1, Loopback(), Options(**options)), counted=counted)


# ---- a step ---------------------------------------------------------------------------------------------------------
def test_means_and_what_is_counted() -> None:
    training = two()
    means = training.step({"w": vector(1, 2, 3, 4), "v": vector(4, 3, 2, 1)})
    assert means["w"].tolist() == [0, 0, 0, 4]
    assert means["v"].tolist() == [4, 0, 0, 0]
    assert training.step({"w": vector(0, 0, 0, 0), "v": vector(0, 0, 0, 0)})["w"].tolist() == [0, 0, 3, 0]
    stats = training.session.stats
    assert (stats.steps, stats.dense_bytes, stats.nonfinite) == (2, 64, 0)
    assert stats.traffic.rounds == 2
    assert stats.codec_seconds > 0 < stats.exchange_seconds


def test_means_go_where_they_should() -> None:
    training = two()
    own, outside = vector(1, 2, 3, 4), torch.full((4,), 9.0)
    means = training.step({"w": own, "v": vector(4, 3, 2, 1)}, into={"w": own, "v": outside})
    assert means["w"] is own
    assert means["v"] is outside
    assert own.tolist() == [0, 0, 0, 4]
    assert outside.tolist() == [4, 0, 0, 0]


def test_a_step_in_parts_is_the_same_step() -> None:
    whole, parts = two(), two()
    for step in range(3):
        xs = {"w": vector(1, 2, 3, step), "v": vector(step, 3, 2, 1)}
        expected = {name: x.clone() for name, x in whole.step({n: x.clone() for n, x in xs.items()}).items()}
        first = parts.step({"w": xs["w"].clone()}, last=False)
        assert torch.equal(first["w"], expected["w"])
        assert torch.equal(parts.step({"v": xs["v"].clone()})["v"], expected["v"])
    assert parts.session.stats.steps == whole.session.stats.steps == 3


def test_a_group_waits_for_its_members() -> None:
    training = begin(like(a=(2, 2), b=(3,)), Loopback(), Options(granularity="model"))
    a = torch.ones(2, 2)
    assert training.step({"a": a}, last=False, into={"a": a}) == {}
    means = training.step({"b": vector(5, 0, 0)})
    assert means["a"] is a
    assert torch.cat([a.flatten(), means["b"]]).count_nonzero() == 2, "a quarter of seven numbers"


def test_steps_of_an_adapter_that_counts_for_itself() -> None:
    training = two(counted=False)
    training.step({"w": vector(1, 2, 3, 4), "v": vector(4, 3, 2, 1)})
    assert training.session.stats.steps == 0
    training.session.count_step()
    training.session.count_step(dense_bytes=3)
    assert (training.session.stats.steps, training.session.stats.dense_bytes) == (2, 32 + 3)


# ---- what it refuses ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"x": vector(1)}, "'x' was not there"),
        ({"w": vector(1, 2)}, r"'w' is torch.float32 \(2,\), and was torch.float32 \(4,\)"),
        ({"w": vector(1, 2, 3, 4).double()}, "'w' is torch.float64"),
        ({"w": vector(1, 2, 3, 4).to_sparse()}, "sparse=False"),
        ({"w": vector(1, 2, 3, 4)}, "step 0 ended without 'v'"),
    ],
)
def test_tensors_that_do_not_fit_end_it(tensors: dict[str, Tensor], message: str) -> None:
    network = Loopback()
    training = begin(like(v=(4,), w=(4,)), network)
    with pytest.raises(InputError, match=message) as caught:
        training.step(tensors)
    assert training.session.error is caught.value is network.error, "the others should hear of it"
    with pytest.raises(InputError, match=message):
        training.step({"w": vector(1, 2, 3, 4), "v": vector(1, 2, 3, 4)})


def test_a_name_that_comes_twice() -> None:
    training = two()
    training.step({"w": vector(1, 2, 3, 4)}, last=False)
    with pytest.raises(InputError, match="'w' comes a second time in step 0"):
        training.step({"w": vector(1, 2, 3, 4)}, last=False)


def test_nothing_to_exchange_and_what_cannot_be() -> None:
    with pytest.raises(ConfigurationError, match="nothing to exchange"):
        begin({}, Loopback())
    with pytest.raises(InputError, match="'w' is complex64"):
        begin({"w": torch.zeros(3, dtype=torch.complex64)}, Loopback())


def test_a_second_thread_is_an_error_not_a_wait() -> None:
    inside, go_on = threading.Event(), threading.Event()

    class Slow(Loopback):
        def run(self, op: Collective) -> Tensor:
            inside.set()
            go_on.wait(PATIENCE)
            return super().run(op)

    training = begin(like(w=(4,)), Slow())
    done: list[Any] = []
    thread = threading.Thread(target=lambda: done.append(training.step({"w": vector(1, 2, 3, 4)})))
    thread.start()
    assert inside.wait(PATIENCE)
    with pytest.raises(GraceError, match="another thread"):
        training.step({"w": vector(1, 2, 3, 4)})
    go_on.set()
    thread.join()
    assert done[0]["w"].tolist() == [0, 0, 0, 4]
    assert training.session.error is None


def test_ranks_that_differ() -> None:
    def begin(transport: Any, rank: int) -> Any:
        names = ("v", "w") if rank == 0 else ("w", "v")
        return Session(like(**dict.fromkeys(names, (4,))), TOP1, transport, knobs={"speed": rank})

    for error in in_threads(2, begin):
        assert isinstance(error, FingerprintMismatch)
        assert "speed: 0 on ranks [0], 1 on ranks [1]" in str(error)
        assert "place of parameter v: 0 on ranks [0], 1 on ranks [1]" in str(error)


def test_versions_are_compared() -> None:
    prints = fingerprint(TOP1, like(w=(4,)), {"seed": 3})
    assert prints["version of Grace"] == grace.__version__
    assert prints["version of torch"] == str(torch.__version__)
    assert prints["version of the wire format"] == str(wire.VERSION)
    assert prints["seed"] == "3"


# ---- inf and NaN ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("nonfinite", ["propagate", "skip", "error"])
def test_inf_and_nan_are_counted(nonfinite: Any) -> None:
    training = two(nonfinite=nonfinite)
    xs = {"w": vector(1, math.nan, 3, 4), "v": vector(4, 3, 2, 1)}
    if nonfinite == "error":
        with pytest.raises(NonFiniteError, match=r"step 0.*'w'"):
            training.step(xs)
    else:
        training.step(xs)
    assert training.session.stats.nonfinite == 1
    assert training.step({"w": vector(1, 2, 3, 4), "v": vector(0, 0, 0, 0)})["w"].tolist() == [0, 0, 0, 4]
    assert training.session.stats.steps == 2


def test_the_rest_of_a_spoiled_step_is_left_out() -> None:
    training = two(nonfinite="error")
    with pytest.raises(NonFiniteError):
        training.step({"w": vector(1, math.inf, 3, 4)}, last=False)
    rounds = training.session.stats.traffic.rounds
    assert training.step({"v": vector(4, 3, 2, 1)}) == {}
    assert training.session.stats.traffic.rounds == rounds
    assert training.step({"w": vector(1, 2, 3, 4), "v": vector(4, 3, 2, 1)})["v"].tolist() == [4, 0, 0, 0]
    assert training.session.stats.steps == 2


# ---- switch, state, end ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("granularity", ["parameter", "model"])
def test_a_switch_loses_nothing(granularity: Any) -> None:
    training = begin(like(a=(2, 2), b=(4,)), Loopback(), Options(granularity=granularity))
    xs = {"a": torch.arange(4.0).view(2, 2), "b": vector(4, 5, 6, 7)}
    total = {name: x.clone() for name, x in training.step({n: x.clone() for n, x in xs.items()}).items()}
    training.session.switch("none")
    for name, x in training.step({n: torch.zeros_like(x) for n, x in xs.items()}).items():
        assert torch.equal(total[name] + x, xs[name])


def test_state_goes_on_and_changes_nothing_where_it_does_not_fit() -> None:
    def steps(training: Steps, first: int) -> list[list[float]]:
        xs = [{"w": vector(1, 2, 3, i), "v": vector(i, 3, 2, 1)} for i in range(first, first + 2)]
        return [training.step(x)["w"].tolist() for x in xs]

    straight, stopped, resumed = two(), two(), two()
    expected = steps(straight, 0) + steps(straight, 2)
    assert steps(stopped, 0) == expected[:2]
    saved = stopped.session.state_dict()
    with pytest.raises(StateError, match="granularity"):
        resumed.session.load_state_dict({**saved, "groups": {}})
    resumed.session.load_state_dict(saved)
    assert steps(resumed, 2) == expected[2:]


def test_a_state_survives_as_plain_arrays() -> None:
    stopped, resumed, again = two(), two(), two()
    stopped.step({"w": vector(1, 2, 3, 4), "v": vector(4, 3, 2, 1)})
    saved = stopped.session.state_dict()
    resumed.session.load_state_dict(nested(flat(saved)))
    again.session.load_state_dict(saved)
    xs = {"w": vector(0, 0, 0, 1), "v": vector(1, 0, 0, 0)}
    means = [result.step({n: x.clone() for n, x in xs.items()}) for result in (stopped, resumed, again)]
    assert all(torch.equal(result[name], means[0][name]) for result in means for name in xs)


def test_closed() -> None:
    network = Loopback()
    training = begin(like(w=(4,)), network)
    training.session.close()
    assert network.error is None
    with pytest.raises(GraceError, match="closed"):
        training.step({"w": vector(1, 2, 3, 4)})


def test_one_that_is_dropped_closes_its_transport() -> None:
    network = Loopback()
    training = begin(like(w=(4,)), network)
    del training
    gc.collect()
    assert network.closed


def test_means_are_the_same_on_all_ranks_with_checks() -> None:
    def run(transport: Any, rank: int) -> Any:
        training = begin(like(v=(4,), w=(4,)), transport, Options(check=True))
        x = torch.empty(3)
        x.fill_(rank)
        training.session.broadcast_([x])
        assert x.tolist() == [0, 0, 0]
        means = training.step({"w": vector(1, 2, 3, 4) * (rank + 1), "v": vector(4, 3, 2, 1)})
        return {name: mean.tolist() for name, mean in means.items()}

    assert in_threads(3, run) == [{"w": [0, 0, 0, 8], "v": [4, 0, 0, 0]}] * 3
