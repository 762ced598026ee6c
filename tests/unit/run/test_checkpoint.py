"""Checkpoints over changing numbers of workers: the mean of the memories is kept."""

from __future__ import annotations

import gc
import threading
from typing import Any

import pytest
import torch
from torch import Tensor

import grace
from grace.errors import ConfigurationError, StateError
from grace.run.checkpoint import Checkpoint, pack, unpack
from grace.run.options import Options
from grace.run.saved import copy_state
from grace.run.session import Session
from grace.run.simulator import Simulator
from tests.laws.cases import CASES, by_night
from tests.unit.networks import in_threads, returned

SHAPES = {"a": (16, 12), "b": (40,)}
COMPOSITIONS = [
    "topk:ratio=0.1", "efsignsgd", "powersgd:rank=2,min_rate=0.5", "acpsgd:rank=2,min_rate=0.5", "topk:memory=dgc",
    "topk:memory=distef", "topk:memory=ef21", "efsignsgd:communicator=scatterreduce,server_memory=true", "qsgd", "none",
    "varsparse", "topk:start=1",
]  # fmt: skip
LAYOUTS = [(4, 2), (4, 3), (4, 8), (4, 1), (1, 3), (2, 2)]


def gradients(rank: int, step: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


def begin(transport: Any, spec: str, granularity: Any = "parameter") -> Session:
    like = {name: torch.empty(shape) for name, shape in SHAPES.items()}
    return Session(like, grace.Policy([("*", spec)]), transport, Options(granularity=granularity))


def exchange(session: Session, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    means = {name: mean.clone() for name, mean in session.exchange(tensors).items()}
    session.advance()
    return means


def saves(world: int, spec: str, memories: Any, granularity: Any = "parameter") -> list[Any]:
    """State that each of ``world`` workers saves after three steps, and its debts."""

    def work(transport: Any, rank: int) -> Any:
        session = begin(transport, spec, granularity)
        for step in range(3):
            exchange(session, gradients(rank, step))
        debts = {name: x.clone() for name, x in session.worker.state.debts().items()}
        saved = Checkpoint(session, memories).state_dict()
        rest = [exchange(session, gradients(rank, step)) for step in range(3, 5)]
        return saved, debts, rest

    return returned(in_threads(world, work))


def merged(saved: list[dict[str, Any]]) -> dict[str, Any]:
    """Contents of a file of all ranks: equal keys are one rank's."""
    out: dict[str, Any] = {}
    for part in saved:
        out.update(part)
    return out


def mean_debt(debts: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    names = sorted({name for debt in debts for name in debt})
    return {name: sum(debt.get(name, torch.zeros(())) for debt in debts) / len(debts) for name in names}


@pytest.mark.parametrize("memories", ["mean", "all"])
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("spec", COMPOSITIONS)
def test_the_mean_of_what_is_owed_survives(spec: str, layout: tuple[int, int], memories: Any) -> None:
    old, new = layout
    saved = saves(old, spec, memories)
    expected = mean_debt([debts for _, debts, _ in saved])
    file = merged([state for state, *_ in saved])

    def load(transport: Any, rank: int) -> Any:
        session = begin(transport, spec)
        Checkpoint(session, memories, old if memories == "all" else None).load_state_dict(file)
        debts = {name: x.clone() for name, x in session.worker.state.debts().items()}
        assert session.worker.step == 3
        return debts, [exchange(session, gradients(rank, step)) for step in range(3, 5)]

    loaded = returned(in_threads(new, load))
    for name, debt in mean_debt([debts for debts, _ in loaded]).items():
        torch.testing.assert_close(debt, expected[name], atol=1e-6, rtol=1e-6)
    assert all(bool((x == 0).all()) for name, x in expected.items() if name not in loaded[0][0])
    if memories == "all" and old == new:
        for (_, _, straight), (_, resumed) in zip(saved, loaded, strict=True):
            assert all(torch.equal(a[n], b[n]) for a, b in zip(straight, resumed, strict=True) for n in SHAPES)


def test_another_method_and_granularity_take_the_debt_over() -> None:
    saved = saves(3, "topk:ratio=0.1", "mean")
    expected = mean_debt([debts for _, debts, _ in saved])

    def load(transport: Any, rank: int) -> Any:
        session = begin(transport, "efsignsgd", "model")
        Checkpoint(session).load_state_dict(saved[0][0])
        (debt,) = session.worker.state.debts().values()
        return debt.clone()

    for debt in returned(in_threads(2, load)):
        flat = torch.cat([expected[name].flatten() for name in ("b", "a")])  # last parameters first
        torch.testing.assert_close(debt, flat)


def test_a_file_that_keeps_one_ranks_tensors_is_right_with_mean() -> None:
    saved = [state for state, *_ in saves(3, "topk:ratio=0.1", "mean")]
    for name in SHAPES:
        assert all(torch.equal(state["owed"][name], saved[0]["owed"][name]) for state in saved), "replicas are equal"


def test_what_does_not_fit_changes_nothing_on_any_rank() -> None:
    mean, everything = (merged([state for state, *_ in saves(2, "topk:ratio=0.1", kind)]) for kind in ("mean", "all"))
    lacking = {key: value for key, value in everything.items() if key != "worker.1"}
    cases: list[tuple[Any, Any, str]] = [
        (mean, "all", "memories='mean'"), (everything, "mean", "memories='all'"), (None, "mean", "lacks 'about'"),
        ({"about": b"x", "owed": {}}, "mean", "not a checkpoint"), ({**mean, "owed": {}}, "mean", "other parameters"),
        ({**mean, "owed": {name: torch.zeros(2) for name in SHAPES}}, "mean", "shape of the parameter"),
        ({**mean, "about": pack({**unpack(mean["about"]), "afresh": 3})}, "mean", "afresh should be list"),
        (lacking, "all", r"lacks the states of workers \[1\]"),
    ]  # fmt: skip

    def load(transport: Any, rank: int) -> Any:
        session = begin(transport, "topk:ratio=0.1")
        exchange(session, gradients(rank, 0))
        before = session.state_dict()
        for file, memories, message in cases:
            with pytest.raises(StateError, match=message):
                Checkpoint(session, memories).load_state_dict(file)
            assert session.state_dict()["checksum"] == before["checksum"]
        return True

    assert returned(in_threads(2, load)) == [True, True]

    def load_on_three(transport: Any, rank: int) -> Any:
        with pytest.raises(StateError, match=r"2 workers saved this checkpoint, not 3; .*workers=2"):
            Checkpoint(begin(transport, "topk:ratio=0.1"), "all").load_state_dict(everything)

    returned(in_threads(3, load_on_three))


def test_bad_knobs() -> None:
    def work(transport: Any, rank: int) -> None:
        session = begin(transport, "topk")
        for knobs in ({"memories": "sum"}, {"workers": 2}, {"memories": "all", "workers": 0}):
            with pytest.raises(ConfigurationError, match="legal"):
                Checkpoint(session, **knobs)

    returned(in_threads(1, work))


@pytest.mark.parametrize("spec", by_night("Hidden"))
def test_kinds_are_a_tree_like_the_state_and_what_is_shared_is(spec: str) -> None:
    method = CASES[spec]
    simulator = Simulator(grace.Policy([("*", method)]), 3)
    for step in range(3):
        rows = [gradients(rank, step) for rank in range(3)]
        simulator.step({name: [row[name] for row in rows] for name in SHAPES}, lr=0.1)
    shared = [worker.state.shared_parts() for worker in simulator.workers]
    for other in shared[1:]:
        assert other.keys() == shared[0].keys()
        for name, (text, parts) in other.items():
            assert text == shared[0][name][0]
            for session, theirs in zip(parts, shared[0][name][1], strict=True):
                assert torch.equal(session, theirs) if isinstance(session, Tensor) else session == theirs
    for held, state in simulator.workers[0].state.states.values():
        check_tree(state, held.kinds(state))


def check_tree(state: Any, kinds: Any) -> None:
    if isinstance(kinds, tuple):
        assert isinstance(state, tuple | Tensor)
        assert len(kinds) == len(state)
        for part, kind in zip(state, kinds, strict=True):
            check_tree(part, kind)
    else:
        assert kinds in ("debt", "chunk", "shared", "together", "own")
        assert not isinstance(state, tuple)


def test_states_are_copied_while_another_thread_lists_all_objects() -> None:
    """As monitors and profilers do, which then hold a tuple that is not complete yet."""
    ended = threading.Event()

    def list_objects() -> None:
        while not ended.is_set():
            gc.get_objects(generation=0)

    watcher = threading.Thread(target=list_objects)
    watcher.start()
    state = (*[torch.full((100_000,), float(part)) for part in range(30)],)
    try:
        for _ in range(40):
            copied = copy_state(state)
    finally:
        ended.set()
        watcher.join()
    assert [float(part[0]) for part in copied] == list(range(30))
