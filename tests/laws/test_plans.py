"""A batch is as many exchanges: the same bytes travel, and means, states and traffic are the same to the bit."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from grace import wire as wires
from grace.collectives import AllGather, Collective, Exchange
from grace.communicators.bound import BoundEncoder
from grace.communicators.bucket import BucketPlan
from grace.compute import backends, native
from grace.contract import together as fusing
from grace.contract.method import Method
from grace.contract.workspace import Workspace
from grace.errors import GraceError, TransportError
from grace.kernels.finite.many import Sums
from grace.kernels.low_rank.many import LowRankMany
from grace.kernels.noting import Table
from grace.memories.turns import Turns
from grace.methods.common import low_rank_bucket
from grace.methods.common.low_rank_bucket import LowRankBucket
from grace.registry.policy import Policy
from grace.run.options import Options
from grace.run.simulate import answers
from grace.run.worker import Worker
from grace.transports.traced import Tracer
from tests.laws.cases import CASES

WORLDS = (2, 3, 1, 5)
SMALL = ((1,), (2,), (15, 17), (3, 41), (7,), (256,), (8, 8), (257,))
LARGE = ((4095,), (3, 401), (4096,), (4097,), (70_000,), (255,))
BATCHED = [spec for spec, method in CASES.items() if method.batches(torch.empty(0))]
ALONE = {
    spec.partition(":")[0]: spec for spec in CASES if spec not in BATCHED
}  # one case of each stands for the others
FAST = ("none", "topk:ratio=0.2", "efsignsgd:block=32", "qsgd:bits=4,bucket=32")
Shapes = tuple[tuple[int, ...], ...]
Plans = Callable[[int], bool]


def ALL(rank: int) -> bool:
    """Every rank makes batches."""
    return True


def SOME(rank: int) -> bool:
    """Every other rank does: the network cannot tell."""
    return rank % 2 == 0


def gradients(rank: int, step: int, shapes: Shapes) -> dict[str, Tensor]:
    """Tensors side by side that begin at odd addresses: normal numbers; -0 and denormals, twice; an inf on one rank."""
    sizes = [torch.Size(shape).numel() for shape in shapes]
    flat = torch.randn(sum(sizes) + 1, generator=torch.Generator().manual_seed(1000 * step + rank))[1:]
    if step in (1, 2):
        flat[::3], flat[1::5] = -0.0, 1e-41
    parts = flat.split(sizes)
    if step == 2 and rank == 0:
        parts[-2][0] = torch.inf
    return {f"layer{i}": part.view(shape) for i, (part, shape) in enumerate(zip(parts, shapes, strict=True))}


def in_bytes(x: Any) -> Any:
    """A tree with the bytes of its tensors."""
    if isinstance(x, Tensor):
        return x.dtype, tuple(x.shape), x.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    if isinstance(x, dict):
        return {key: in_bytes(value) for key, value in x.items()}
    return tuple(map(in_bytes, x)) if isinstance(x, tuple | list) else x


class Run:
    """W workers in lock step, over a network that keeps what it is given; ``plans`` says which ranks make batches."""

    def __init__(self, policy: Policy, world: int, shapes: Shapes, plans: Plans):
        self.policy, self.shapes, self.plans = policy, shapes, plans
        self.seen: list[Any] = []  # for each collective, what each rank gave
        self.tracers = [Tracer(rank, world) for rank in range(world)]
        self.workers = [self._make(rank, world) for rank in range(world)]

    def _make(self, rank: int, world: int) -> Worker:
        worker = Worker(self.policy, rank, world, Options(seed=3))
        worker.plans = self.plans(rank)
        return worker

    def states(self) -> Any:
        return [in_bytes(worker.state_dict()) for worker in self.workers]

    def step(self, fail_at: int | None = None) -> Any:
        """Means and states after a step, and the traffic so far; None if there was a collective ``fail_at``: it failed."""
        runs: list[Exchange[Any]] = []
        for worker, tracer in zip(self.workers, self.tracers, strict=True):
            runs.append(tracer.trace(worker.exchange(gradients(worker.rank, worker.step, self.shapes))))
        ops, means = self._hear(runs, [None] * len(runs))
        while ops:
            if fail_at == 0:
                for run in runs:
                    with pytest.raises(TransportError):
                        run.throw(TransportError("a worker died"))
                return None
            fail_at = None if fail_at is None else fail_at - 1
            ops, means = self._hear(runs, _in_place(ops))
        for worker in self.workers:
            worker.workspace.reset()
            worker.advance()
        return means, self.states(), [tracer.traffic for tracer in self.tracers]

    def _hear(self, runs: list[Exchange[Any]], inbox: list[Any]) -> tuple[list[Collective], list[Any]]:
        ops, means = [], []
        for run, message in zip(runs, inbox, strict=True):
            try:
                ops.append(next(run) if message is None else run.send(message))
            except StopIteration as stop:
                means.append({name: in_bytes(out.mean) for name, out in stop.value.items()})
        self.seen.append([(type(op).__name__, in_bytes(op.buf)) for op in ops])
        return ops, means

    def reload(self) -> None:
        """New workers go on from the states of these."""
        fresh = []
        for worker in self.workers:
            new = self._make(worker.rank, worker.world)
            new.load_state_dict(worker.state_dict(), gradients(0, 0, self.shapes))
            fresh.append(new)
        self.workers = fresh

    def switch(self, policy: Policy) -> None:
        self.policy = policy
        for worker in self.workers:
            worker.switch(policy)


def _in_place(ops: list[Collective]) -> list[Tensor]:
    """The answers; every other network puts them where it may."""
    given = answers(ops)
    return [
        op.into.copy_(answer) if rank % 2 == 0 and isinstance(op, AllGather) and op.into is not None else answer
        for rank, (op, answer) in enumerate(zip(ops, given, strict=True))
    ]


def story(run: Run, other: Policy | None = None) -> Iterator[Any]:
    """Five steps: with ugly numbers, a save, another policy for a step, and a network that fails at each round in turn."""
    for _ in range(3):
        yield run.step()
    run.reload()
    before, policy, number = run.states(), run.policy, 0
    while (done := run.step(fail_at=number)) is None:
        assert run.states() == before, f"a failure in round {number} changed a state"
        number += 1
    yield done
    if other is not None:
        run.switch(other)
        yield run.step()
        run.switch(policy)
    yield run.step()


def assert_same(policy: Policy, world: int, shapes: Shapes, other: Policy | None = None, plans: Plans = ALL) -> None:
    alone, batched = Run(policy, world, shapes, lambda _: False), Run(policy, world, shapes, plans)
    for step, (a, b) in enumerate(zip(story(alone, other), story(batched, other), strict=True)):
        assert a == b, step
    assert alone.seen == batched.seen


def policy_of(spec: str) -> Policy:
    """A method for most tensors, and none for two of them, which stand in between."""
    return Policy([("layer1", "none"), ("layer5", "none"), ("*", CASES[spec])], strict=False)


@pytest.mark.parametrize("spec", BATCHED)
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
        (plan,) = (plan for plan in kept.values() if isinstance(plan, BucketPlan))
        assert any(isinstance(turns, Turns) for turns in kept.values()) == ("qsgd" not in spec)
        if native.isas():
            assert plan.encoder is not None
            assert plan.encoder.bound, spec
            assert plan.decoder[1] is not None, spec


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
    write, read = wires.write_bucket_headers, wires.read_bucket_headers
    monkeypatch.setattr(wires, "write_bucket_headers", lambda row, words, fine, step: write(row, words, fine, step - 1))
    monkeypatch.setattr(wires, "read_bucket_headers", lambda rows, words, step: read(rows, words, step - 1))


def headers_of_rank_0_only(monkeypatch: pytest.MonkeyPatch) -> None:
    read = wires.read_bucket_headers
    monkeypatch.setattr(wires, "read_bucket_headers", lambda rows, words, step: read(rows[-1:], words, step))


def pointers_reversed(monkeypatch: pytest.MonkeyPatch) -> None:
    make = wires.Gathered.__init__

    def reverse(self: wires.Gathered, rows: Tensor, *args: Any) -> None:
        make(self, rows, *args)
        self.pointers = type(self.pointers)(*reversed(self.pointers))

    monkeypatch.setattr(wires.Gathered, "__init__", reverse)


def memory_of_the_wrong_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    right = BoundEncoder.run

    def run(self: BoundEncoder, xs: Any, memories: Any, *args: Any) -> Any:
        first, *others = memories
        same = [other for other in others if other.shape == first.shape]
        return right(self, xs, [*(same or memories)[:1], *others], *args)

    monkeypatch.setattr(BoundEncoder, "run", run)


def states_change_before_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    right = BoundEncoder.run

    def run(self: BoundEncoder, xs: Any, memories: Any, rests: Any, *args: Any) -> Any:
        out = right(self, xs, memories, rests, *args)
        for memory, rest in zip(memories, rests, strict=True):
            memory.copy_(rest)
        return out

    monkeypatch.setattr(BoundEncoder, "run", run)


def calls_of_another_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a compressor asks the step for is what it was at first."""
    right = BoundEncoder._table

    def table(self: BoundEncoder, step: int) -> Any:
        self._only = right(self, step)
        return self._only

    monkeypatch.setattr(BoundEncoder, "_table", table)


def keys_of_the_first_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Table.__init__
    monkeypatch.setattr(
        Table, "__init__", lambda self, calls, keys: right(self, calls, lambda _, forks: keys(0, forks))
    )


def step_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Table.run
    monkeypatch.setattr(Table, "run", lambda self, step: right(self, 0))


def everything_is_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    right = BoundEncoder.run
    monkeypatch.setattr(
        BoundEncoder, "run", lambda self, *args: None if right(self, *args) is None else [True] * len(args[0])
    )


def successor_over_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Turns, "rests", Turns.memories)


def turns_of_other_states(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Turns, "begin", lambda self, states: True)


def layout_of_another_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    """The key of a plan leaves out method and sizes."""
    monkeypatch.setattr(BucketPlan, "fits", lambda self, made: True)
    get = dict.get

    def forget(key: Any) -> Any:
        return Method if isinstance(key, tuple) and isinstance(key[0], Method) else key

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
    """What stands between the tensors of a batch comes after them."""

    def ask(asked: Any, layouts: Any, workspace: Any, labels: bool) -> Exchange[list[Tensor]]:
        return fusing.one_collective([one.op for one in asked], layouts, workspace)

    monkeypatch.setattr(fusing, "_one_of_kind", ask)


# ---- of low rank ------------------------------------------------------------------------------------------------------
LOW_RANK = Policy([("layer[15]", "none"), ("*", "powersgd:rank=2,min_rate=0.1")])
MATRICES = ((6, 9), (3,), (8, 8), (6, 9), (5,), (7,), (17, 9), (40, 30), (4, 3, 5))


def factors_of_another_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    right = LowRankMany.project_columns

    def project(self: LowRankMany, matrices: list[int], lefts: list[int], outs: list[int]) -> None:
        right(self, matrices, [*lefts[1:], lefts[0]], outs)

    monkeypatch.setattr(LowRankMany, "project_columns", project)


def nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    right = LowRankMany.split
    monkeypatch.setattr(LowRankMany, "split", lambda self, matrices, *args: right(self, None, *args))


def own_factor_as_the_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    right = LowRankMany.split

    def split(self: LowRankMany, matrices: Any, lefts: Any, owns: Any, rights: Any, outs: Any) -> None:
        right(self, matrices, lefts, owns, owns, outs)

    monkeypatch.setattr(LowRankMany, "split", split)


def zeros_keep_their_sign(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Sums.run
    monkeypatch.setattr(
        Sums, "run", lambda self, xs, memories, outs: [ctypes.memmove(o, x, 4) for o, x in zip(outs, xs, strict=True)]
        if isinstance(memories, int) and memories else right(self, xs, memories, outs),
    )  # fmt: skip


def factors_are_all_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(low_rank_bucket, "all_finite", lambda x: True)


def basis_of_the_last_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(low_rank_bucket, "succeed", lambda finite, new, old, lent: old)


LOW_RANK_MUTANTS = [
    factors_of_another_matrix, nothing_is_left, own_factor_as_the_mean, zeros_keep_their_sign, factors_are_all_finite,
    basis_of_the_last_step,
]  # fmt: skip


@pytest.mark.skipif(not native.isas(), reason="no native kernels")
@pytest.mark.parametrize("mutant", LOW_RANK_MUTANTS, ids=lambda mutant: mutant.__name__)
def test_each_mutant_of_low_rank_is_caught(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
):
    mutant(monkeypatch)
    with pytest.raises((AssertionError, ValueError, RuntimeError, GraceError)):
        assert_same(LOW_RANK, 3, MATRICES)


@pytest.mark.skipif(not native.isas(), reason="no native kernels")
def test_matrices_and_what_stands_between_them_go_as_one():
    assert_same(LOW_RANK, 3, MATRICES, plans=SOME)
    run = Run(LOW_RANK, 2, MATRICES, ALL)
    run.step()
    rounds = [ops for ops in run.seen if ops]
    assert len(rounds) == 2, "one all-reduce for all P and what is not compressed, one for all Q"
    assert any(isinstance(key, tuple) and key[0] is LowRankBucket for key in run.workers[0].workspace.kept)


@pytest.mark.skipif(not native.isas(), reason="no native kernels")
@pytest.mark.parametrize("memory", ["residual", "none"])
def test_products_that_overflow(memory: str, monkeypatch: pytest.MonkeyPatch):
    """Some of the time a factor or a mean does."""
    normal = gradients

    def huge(rank: int, step: int, shapes: Shapes) -> dict[str, Tensor]:
        given = normal(rank, step, shapes)
        for i, x in enumerate(given.values()):
            if (i + step) % 2:
                x.mul_(1e38)
            elif (i, step) == (3, 3):
                x.fill_(3.4e38)
        return given

    policy = Policy([("layer1", "none"), ("*", f"powersgd:rank=2,min_rate=0.1,memory={memory}")])
    alone, batched = Run(policy, 2, MATRICES, lambda _: False), Run(policy, 2, MATRICES, ALL)
    monkeypatch.setattr(sys.modules[__name__], "gradients", huge)
    for _ in range(5):
        assert alone.step() == batched.step()
    assert alone.seen == batched.seen


MUTANTS = [
    padding_not_zeroed, header_of_the_last_step, headers_of_rank_0_only, pointers_reversed, memory_of_the_wrong_tensor,
    states_change_before_the_answer, layout_of_another_bucket, calls_of_another_step, keys_of_the_first_tensor,
    step_of_the_table, everything_is_finite, successor_over_the_memory, turns_of_other_states,
    parts_in_the_order_of_batches,
]  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_each_mutant_is_caught(mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch):
    rules = [("layer4", "qsgd"), ("layer[89]", "qsgd:bits=4,memory=residual"), ("*", "efsignsgd:block=32")]
    policy, shapes = Policy(rules), ((2,), (2,), (15, 17), (3, 41), (7,), (5,), (8, 8), (257,), (40,), (40,))
    assert_same(policy, 3, shapes)
    mutant(monkeypatch)
    with pytest.raises((AssertionError, ValueError, RuntimeError, GraceError)):
        assert_same(policy, 3, shapes)
