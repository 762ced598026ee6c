"""A batch is as many exchanges: the same bytes travel, and means, states and traffic are the same to the bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from grace import wire as wires
from grace.collectives import Exchange
from grace.communicators.bucket import BucketPlan
from grace.communicators.many import Prepared
from grace.compute import backends, native
from grace.contract import together as fusing
from grace.contract.workspace import Workspace
from grace.errors import GraceError
from grace.kernels import calling_many, tensor_list
from grace.kernels.call_table import CallTable
from grace.kernels.calling_many import _Decoders, _Encoders
from grace.kernels.tensor_list import TensorList
from grace.memories.turns import Turns
from grace.registry.policy import Policy
from tests.laws.bucket_runs import ALL, SOME, Run, assert_same
from tests.laws.cases import CASES, by_night

WORLDS = (2, 3, 1, 5)
SMALL = ((1,), (2,), (15, 17), (3, 41), (7,), (256,), (8, 8), (257,))
LARGE = ((4095,), (3, 401), (4096,), (4097,), (70_000,), (255,))
BATCHED = [spec for spec, method in CASES.items() if method.batches(torch.empty(0))]
ALONE = {
    spec.partition(":")[0]: spec for spec in CASES if spec not in BATCHED
}  # one case of each stands for the others
FAST = ("none", "topk:ratio=0.2", "efsignsgd:block=32", "qsgd:bits=4,bucket=32")


def policy_of(spec: str) -> Policy:
    """A method for most tensors, and none for two of them, which stand in between."""
    return Policy([("layer1", "none"), ("layer5", "none"), ("*", CASES[spec])], strict=False)


@pytest.mark.parametrize("spec", by_night("padding_not_zeroed", of=BATCHED))
def test_batches_have_the_bytes_of_single_exchanges(spec: str):
    world = WORLDS[BATCHED.index(spec) % len(WORLDS)]
    assert_same(policy_of(spec), world, SMALL, policy_of("topk:ratio=0.2"))


@pytest.mark.parametrize("spec", ALONE.values())
def test_methods_without_batches_are_left_as_they_are(spec: str):
    assert_same(policy_of(spec), 2, ((5, 7), (3,), (8, 8)))


@pytest.mark.parametrize("spec", FAST)
def test_ranks_need_not_choose_alike(spec: str):
    assert_same(policy_of(spec), 3, SMALL, plans=SOME)


@pytest.mark.parametrize("spec", FAST)
def test_sizes_around_blocks(spec: str):
    assert_same(policy_of(spec), 3, LARGE)


def test_methods_in_turn_keep_the_order_of_bytes():
    rules = [("layer2", "qsgd"), ("layer6", "powersgd:rank=1"), ("layer[47]", "none"), ("*", "topk:ratio=0.2")]
    assert_same(Policy(rules, strict=False), 3, SMALL)


def test_batches_are_what_runs():
    """Otherwise all of this would compare a thing with itself."""
    assert {"topk:ratio=0.2", "none", "efsignsgd:block=32", "qsgd:bits=4,bucket=32"} <= set(BATCHED)
    for spec in FAST[1:]:
        run = Run(policy_of(spec), 2, SMALL, ALL)
        for _ in range(3):
            run.step()
        kept = run.workers[0].workspace.kept
        (many,) = (prepared[0] for key, prepared in kept.items() if isinstance(key, tuple) and key[0] is Prepared)
        assert any(isinstance(turns, Turns) for turns in kept.values()) == ("qsgd" not in spec)
        if native.isas():
            tables = {type(made).__name__ for made in many._made.values()}
            assert {"_Encoders", "_Decoders"} <= tables, spec


@pytest.mark.parametrize("backend", ["reference", "native"])
def test_on_both_backends(backend: str, monkeypatch: pytest.MonkeyPatch):
    if backend == "native" and not native.isas():
        pytest.skip("no native kernels")
    with backends.using(backend):
        for spec in FAST:
            assert_same(policy_of(spec), 2, SMALL)


# ---- mutants --------------------------------------------------------------------------------------------------------
def padding_not_zeroed(monkeypatch: pytest.MonkeyPatch) -> None:
    def take(self: BucketPlan, workspace: Workspace, device: torch.device) -> Tensor:
        return workspace.take(self.size, torch.uint8, device).fill_(255)

    monkeypatch.setattr(BucketPlan, "take", take)


def header_of_the_last_step(monkeypatch: pytest.MonkeyPatch) -> None:
    write = wires.write_bucket_flags
    monkeypatch.setattr(wires, "write_bucket_flags", lambda row, words, fine, step: write(row, words, fine, step - 1))


def headers_of_rank_0_only(monkeypatch: pytest.MonkeyPatch) -> None:
    agree = tensor_list.agree_many
    monkeypatch.setattr(
        "grace.communicators.many.agree_many", lambda rows, *args, **more: agree(rows[-1:], *args, **more)
    )


def pointers_reversed(monkeypatch: pytest.MonkeyPatch) -> None:
    make = _Decoders.__init__

    def reverse(self: _Decoders, *args: Any) -> None:
        make(self, *args)
        self._senders = self._senders.flip(0)

    monkeypatch.setattr(_Decoders, "__init__", reverse)


def memory_of_the_wrong_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    right = TensorList.point

    def point(self: TensorList, xs: Any, memories: Any = None, rests: Any = None) -> bool:
        same = memories and self.sizes[0] == self.sizes[1]
        return right(self, xs, [memories[1], *memories[1:]] if same else memories, rests)

    monkeypatch.setattr(TensorList, "point", point)


def states_change_before_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    right = _Encoders.run

    def run(self: _Encoders, message: Tensor, many: TensorList, step: int) -> Tensor:
        out = right(self, message, many, step)
        for memory, rest in zip(many.memories or (), many.rests or (), strict=True):
            memory.copy_(rest)
        return out

    monkeypatch.setattr(_Encoders, "run", run)


def calls_of_another_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compressor that asks for its step gets that of the first."""
    right = calling_many.encode_rows
    monkeypatch.setattr(
        calling_many,
        "encode_rows",
        lambda kernel, message, many, layout, spec, *more: right(kernel, message, many, layout, None, *more),
    )


def keys_of_the_first_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    right = calling_many.keys_of
    monkeypatch.setattr(
        "grace.kernels.stochastic_levels.native.keys_of", lambda many, step: lambda t: right(many, step)(0)
    )


def step_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    right = CallTable.run
    monkeypatch.setattr(CallTable, "run", lambda self, step=0: right(self, 0))


def everything_is_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    right = _Encoders.run
    monkeypatch.setattr(
        _Encoders, "run", lambda self, message, many, step: right(self, message, many, step) | many.all_set
    )


def successor_over_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Turns, "rests", Turns.memories)


def turns_of_other_states(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Turns, "begin", lambda self, states: True)


def layout_of_another_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    """The key of a plan leaves out method and sizes."""
    get = dict.get

    def forget(key: Any) -> Any:
        return Prepared if isinstance(key, tuple) and key[0] is Prepared else key

    class Forgetful(dict[Any, Any]):
        def get(self, key: Any, default: Any = None) -> Any:
            return get(self, forget(key), default)

        def __setitem__(self, key: Any, value: Any) -> None:
            super().__setitem__(forget(key), value)

    make = Workspace.__init__

    def init(self: Workspace) -> None:
        make(self)
        self.kept = Forgetful()

    monkeypatch.setattr(Workspace, "__init__", init)


def parts_in_the_order_of_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors that stand between those of a batch come after them."""

    def ask(asked: Any, layouts: Any, workspace: Any, labels: bool) -> Exchange[list[Tensor]]:
        return fusing.one_collective([question.op for question in asked], layouts, workspace)

    monkeypatch.setattr(fusing, "_one_of_kind", ask)


MUTANTS = [
    padding_not_zeroed, header_of_the_last_step, headers_of_rank_0_only, pointers_reversed, memory_of_the_wrong_tensor,
    states_change_before_the_answer, layout_of_another_bucket, calls_of_another_step, keys_of_the_first_tensor,
    step_of_the_table, everything_is_finite, successor_over_the_memory, turns_of_other_states,
    parts_in_the_order_of_batches,
]  # fmt: skip


RULES = [("layer4", "qsgd"), ("layer[89]", "qsgd:bits=4,memory=residual"), ("*", "efsignsgd:block=32")]
UNDER, MIXED = Policy(RULES), ((2,), (2,), (15, 17), (3, 41), (7,), (5,), (8, 8), (257,), (40,), (40,))


def test_without_a_mutant_nothing_differs():
    assert_same(UNDER, 3, MIXED)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_each_mutant_is_caught(mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch):
    mutant(monkeypatch)
    with pytest.raises((AssertionError, ValueError, RuntimeError, GraceError)):
        assert_same(UNDER, 3, MIXED)
