"""A worker's side: what it refuses, what it does with an inf or NaN, what survives a switch, and its state."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from grace import Policy, Rule
from grace.collectives import AllGather
from grace.errors import InputError, NonFiniteError, StateError, TransportError
from grace.run import Simulator, Worker, simulate
from grace.run.options import Options

TOP1 = "topk:ratio=0.25"


def only(method: Any) -> Policy:
    return Policy([("*", method)])


def step(worker: Worker, **tensors: Tensor) -> dict[str, Tensor]:
    """A step of a lone worker."""
    (outs,) = simulate([worker.exchange({name: x.clone() for name, x in tensors.items()})])
    worker.advance()
    return {name: out.mean.clone() for name, out in outs.items()}


def vector(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float32)


# ---- what it refuses ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.ones(3, dtype=torch.complex64), "'emb.weight' is complex64; .*view_as_real"),
        (torch.ones(3, dtype=torch.int64), "'emb.weight' is int64; legal: float16, bfloat16, float32, float64"),
        (torch.ones(3, dtype=torch.bool), "'emb.weight' is bool"),
        (torch.eye(3).to_sparse(), "'emb.weight' is torch.sparse_coo; .*use sparse=False"),
    ],
)
def test_tensors_that_are_not_exchanged_are_refused_by_name(x: Tensor, message: str):
    with pytest.raises(InputError, match=message):
        next(Worker(only("none"), 0, 1).exchange({"emb.weight": x}))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_tensors_that_are(dtype: torch.dtype):
    x = vector(1, 2, 3, 4).to(dtype)
    assert torch.equal(step(Worker(only("none"), 0, 1), w=x)["w"], x)


# ---- inf and NaN ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("method", ["none", "fp16", TOP1, "qsgd", "powersgd:rank=1,min_rate=0.1"])
@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_propagate_skip_and_error(method: str, bad: float):
    good, spoiled = torch.ones(6, 6), torch.ones(6, 6)
    spoiled[2, 3] = bad
    outs = step(Worker(only(method), 0, 1), v=good, w=spoiled)
    assert not bool(outs["w"].isfinite().all())
    assert bool(outs["v"].isfinite().all()), "other tensors are not touched"
    outs = step(Worker(only(method), 0, 1, Options(nonfinite="skip")), v=good, w=spoiled)
    assert not outs["w"].any()
    assert outs["v"].any()
    with pytest.raises(NonFiniteError, match=r"step 0: an inf or NaN in the gradients of 'w'(?!,)"):
        step(Worker(only(method), 0, 1, Options(nonfinite="error")), v=good, w=spoiled)


def test_all_ranks_raise():
    sim = Simulator(only(TOP1), 3, nonfinite="error")
    xs = [torch.ones(4) for _ in range(3)]
    xs[1][0] = math.nan
    with pytest.raises(NonFiniteError):
        sim.step({"w": xs, "v": [torch.ones(4)] * 3})
    memories = [worker.state_dict()["states"]["v"] for worker in sim.workers if "v" in worker._states]
    assert len(memories) == 3, "no rank was left behind"


def test_half_precision_overflow_reads_as_non_finite():
    assert not step(Worker(only("fp16"), 0, 1), w=torch.full((4,), 1e6))["w"].isfinite().any()
    assert not step(Worker(only("fp16"), 0, 1, Options(nonfinite="skip")), w=torch.full((4,), 1e6))["w"].any()


# ---- switching ------------------------------------------------------------------------------------------------------
def test_a_switch_carries_what_is_owed():
    worker = Worker(only(TOP1), 0, 1)
    assert step(worker, w=vector(1, 2, 3, 4))["w"].tolist() == [0, 0, 0, 4]
    worker.switch(only("none"))
    assert step(worker, w=vector(10, 0, 0, 0))["w"].tolist() == [11, 2, 3, 0]
    assert step(worker, w=vector(0, 0, 0, 1))["w"].tolist() == [0, 0, 0, 1], "and only once"


def test_a_switch_between_memories_loses_nothing():
    worker = Worker(only(TOP1), 0, 1)
    step(worker, w=vector(1, 2, 3, 4))
    worker.switch(only("topk:ratio=0.5"))
    assert step(worker, w=vector(0, 0, 0, 0.5))["w"].tolist() == [0, 2, 3, 0]
    assert worker.take_debts()["w"].tolist() == [1, 0, 0, 0.5]


def test_a_policy_in_steps_switches_by_itself():
    worker = Worker(Policy([Rule("*", TOP1, until_step=1), Rule("*", "none")]), 0, 1)
    step(worker, w=vector(1, 2, 3, 4))
    assert step(worker, w=vector(0, 0, 0, 0))["w"].tolist() == [1, 2, 3, 0]


@pytest.mark.parametrize("method", ["none", "topk:ratio=1"])
@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_what_is_owed_survives_a_nan(method: str, bad: float):
    """The step with the NaN is skipped by the training loop, so what went with it is still owed."""
    worker = Worker(only(TOP1), 0, 1)
    step(worker, w=vector(1, 2, 3, 4))
    worker.switch(only(method))
    assert not bool(step(worker, w=vector(0, bad, 0, 0))["w"].isfinite().all())
    assert step(worker, w=vector(0, 0, 0, 0))["w"].tolist() == [1, 2, 3, 0]


def test_an_equal_policy_keeps_the_state():
    worker = Worker(only(TOP1), 0, 1)
    step(worker, w=vector(1, 2, 3, 4))
    worker.switch(only(TOP1))
    assert not worker._owed
    assert step(worker, w=vector(0, 0, 0, 0))["w"].tolist() == [0, 0, 3, 0]


def test_debts_are_taken_and_added():
    worker = Worker(only(TOP1), 0, 1)
    step(worker, w=vector(1, 2, 3, 4))
    owed = worker.take_debts()
    assert {name: x.tolist() for name, x in owed.items()} == {"w": [1, 2, 3, 0]}
    assert worker.take_debts() == {}
    worker.add_debts(owed)
    assert step(worker, w=vector(0, 0, 0, 0))["w"].tolist() == [0, 0, 3, 0]


# ---- state ----------------------------------------------------------------------------------------------------------
def saved() -> tuple[dict[str, Any], dict[str, Tensor]]:
    worker = Worker(only(TOP1), 0, 1, Options(seed=9))
    step(worker, w=vector(1, 2, 3, 4), v=vector(4, 3, 2, 1))
    return worker.state_dict(), {"w": vector(0, 0, 0, 0), "v": vector(0, 0, 0, 0)}


def test_debts_are_added_to_what_is_owed_already():
    worker = Worker(only("none"), 0, 1)
    worker.late({"w": vector(1, 2)})
    worker.add_debts({"w": vector(10, 20)})
    assert step(worker, w=vector(0, 0))["w"].tolist() == [11, 22]


def test_load_goes_on():
    state, like = saved()
    worker = Worker(only(TOP1), 0, 1)
    worker.load_state_dict(state, like)
    assert (worker.step, worker.seed) == (1, 9)
    assert step(worker, w=vector(0, 0, 0, 0))["w"].tolist() == [0, 0, 3, 0]


def test_a_saved_state_is_a_copy():
    state, like = saved()
    before = copy.deepcopy(state)
    worker = Worker(only(TOP1), 0, 1)
    worker.load_state_dict(state, like)
    step(worker, w=vector(9, 9, 9, 9))
    assert torch.equal(state["states"]["w"][0], before["states"]["w"][0])


def test_what_is_owed_is_saved():
    worker = Worker(only(TOP1), 0, 1)
    step(worker, w=vector(1, 2, 3, 4))
    owed = worker.take_debts()
    worker.add_debts(owed)
    state = worker.state_dict()
    other = Worker(only(TOP1), 0, 1)
    other.load_state_dict(state, {"w": vector(0, 0, 0, 0)})
    assert step(other, w=vector(0, 0, 0, 0))["w"].tolist() == [0, 0, 3, 0]


def lacking(key: str) -> Any:
    return lambda state: {k: v for k, v in state.items() if k != key}


def with_(key: str, value: Any) -> Any:
    return lambda state: {**state, key: value}


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lacking("states"), "not a Grace state: it lacks states"),
        (lambda state: {}, "not a Grace state: the dictionary is empty"),
        (lambda state: {"step": 1}, "not a Grace state: it lacks checksum, methods, owed, policy, rank"),
        (with_("version", 99), "the state is of version 99"),
        (with_("rank", 3), "the state is of rank 3, this is rank 0; each rank loads its own"),
        (with_("world", 8), "the state is of world 8"),
        (with_("policy", "Policy('*' -> none)"), "was saved under Policy"),
        (with_("states", {"x": (vector(1),)}), "a tensor 'x' that this run does not have"),
        (with_("owed", {"x": vector(1)}), "owes to tensors that this run does not have: x"),
        (
            with_("owed", {"w": vector(1)}),
            r"the state of 'w' should hold torch.float32 \(4,\), got torch.float32 \(1,\)",
        ),
        (with_("states", {"w": (vector(1), None)}), r"'w' should hold torch.float32 \(4,\), got torch.float32 \(1,\)"),
        (with_("states", {"w": (vector(1, 2, 3, 4).double(), None)}), "got torch.float64"),
        (with_("states", {"w": (vector(1, 2, 3, 4),)}), "'w' should have 2 parts"),
        (with_("states", {"w": None}), "'w' should have 2 parts"),
        (with_("states", {"w": (3, None)}), "'w' should hold torch.float32"),
        (with_("states", {"w": (vector(1, 2, 3, 4), vector(1))}), "the state of 'w' should be None"),
        (with_("methods", {"w": "topkk", "v": "topkk"}), "was saved under topkk, which is neither"),
        (lambda state: None, "not a Grace state: a dictionary is needed, got NoneType"),
        (lambda state: [state], "not a Grace state: a dictionary is needed, got list"),
        (with_("step", "3"), "its step should be int, got '3'"),
        (with_("step", True), "its step should be int, got True"),
        (with_("step", -1), "its step should be at least 0"),
        (with_("seed", None), "its seed should be int"),
        (with_("states", [1]), "its states should be Mapping"),
        (with_("states", {}), "lacks what it has a method for: 'v', 'w'"),
        (with_("methods", {}), "'w' was saved under None, which is not the text"),
        (with_("methods", {"w": 3, "v": 3}), "'w' was saved under 3, which is not the text"),
        (with_("owed", {"w": "x"}), "'w' should hold torch.float32"),
        (with_("step", 2), "not those that rank 0 saved"),
        (with_("checksum", 0), "not those that rank 0 saved"),
        (lambda s: {**s, "states": {**s["states"], "w": (vector(9, 9, 9, 9), None)}}, "not those that rank 0 saved"),
    ],
)
def test_a_state_that_does_not_fit_changes_nothing(spoil: Any, message: str):
    state, like = saved()
    worker = Worker(only(TOP1), 0, 1)
    step(worker, w=vector(5, 6, 7, 8))
    before = worker.state_dict()
    with pytest.raises(StateError, match=message):
        worker.load_state_dict(spoil(state), like)
    after = worker.state_dict()
    assert (after["step"], after["seed"]) == (before["step"], before["seed"])
    assert torch.equal(after["states"]["w"][0], before["states"]["w"][0])


def test_peers_know_the_step_and_the_name():
    worker = Worker(only("randomk:ratio=0.25,memory=none"), 0, 1)
    x = torch.arange(1.0, 65.0)
    means = [step(worker, w=x)["w"] for _ in range(3)]
    assert not torch.equal(means[0], means[1]), "each step has positions of its own"
    outs = step(worker, a=x, b=x)
    assert not torch.equal(outs["a"], outs["b"]), "each tensor has positions of its own"


# ---- a collective that fails -----------------------------------------------------------------------------------------
def test_a_later_round_that_fails_leaves_every_memory_whole():
    """A tensor has finished when the second round of another fails: the step did not happen for either."""
    policy = Policy([("long", f"{TOP1},communicator=scatterreduce"), ("*", TOP1)])
    tensors = {"short": vector(4, 1, 2, -3), "long": vector(1, -5, 2, 3)}
    worker, twin = Worker(policy, 0, 1), Worker(policy, 0, 1)
    for either in (worker, twin):
        step(either, **tensors)
        either.workspace.reset()
    before = worker.state_dict()

    failing = worker.exchange({name: x.clone() for name, x in tensors.items()})
    op = next(failing)
    gathers = 0
    while gathers < 2:  # the second one is the second round of "long"
        gathers += isinstance(op, AllGather)
        if gathers < 2:
            op = failing.send(op.buf[None].clone() if isinstance(op, AllGather) else op.buf.clone())
    with pytest.raises(TransportError):
        failing.throw(TransportError("a worker died"))

    after = worker.state_dict()
    for name, (memory, _) in before["states"].items():
        assert torch.equal(after["states"][name][0], memory)
    worker.workspace.reset()
    tensors = {"other": vector(9, 8, 7, 6), **tensors}  # comes first, and wants storage of the same size
    for _ in range(3):  # the storage of a memory that is still in use is lent to nobody
        own, other = step(worker, **tensors), step(twin, **tensors)
        worker.workspace.reset()
        twin.workspace.reset()
        assert all(torch.equal(own[name], other[name]) for name in tensors)


@pytest.mark.parametrize("spec", ["none", Policy([("*.bias", "none"), ("*", "none")])])
def test_gradients_side_by_side_are_summed_where_they_are(spec: Any):
    """As a bucket of DistributedDataParallel holds them, biases between matrices: no method's tensors are copied for it."""
    flat = torch.arange(2140.0)
    tensors, at = {}, 0
    for name, shape in (("a.weight", (30, 35)), ("a.bias", (20,)), ("b.weight", (30, 35)), ("b.bias", (20,))):
        size = math.prod(shape)
        tensors[name] = flat[at : at + size].view(shape)
        at += size
    exchange = Worker(Policy.of(spec), 0, 1).exchange(tensors)
    op = next(exchange)
    assert (op.buf.data_ptr(), op.buf.numel()) == (flat.data_ptr(), flat.numel())
    exchange.close()
