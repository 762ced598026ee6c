"""Batches of methods that need more than one round: low rank, and two hops. Bytes, means and states as without batches."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from grace.communicators import rows, scatter_reduce, scattered_many, server_debts
from grace.communicators.scattered_many import ScatterBucket, ScatterTables
from grace.communicators.server_debts import ServerDebts
from grace.errors import GraceError
from grace.kernels.finite.many import Sums
from grace.kernels.low_rank.many import LowRankMany
from grace.kernels.tensor_list import TensorList
from grace.methods.common import low_rank_bucket
from grace.methods.common.low_rank_bucket import LowRankBucket
from grace.methods.common.projection_bucket import ProjectionBucket, ProjectionPlan
from grace.registry.policy import Policy
from tests.laws import bucket_runs
from tests.laws.bucket_runs import ALL, SOME, Run, Shapes, assert_same, gradients
from tests.unit.kernels.native_checks import needs_native

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


@needs_native
@pytest.mark.parametrize("mutant", LOW_RANK_MUTANTS, ids=lambda mutant: mutant.__name__)
def test_each_mutant_of_low_rank_is_caught(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
):
    mutant(monkeypatch)
    with pytest.raises((AssertionError, ValueError, RuntimeError, GraceError)):
        assert_same(LOW_RANK, 3, MATRICES)


# ---- of one factor at a time ------------------------------------------------------------------------------------------
ALTERNATING = Policy([("layer[15]", "none"), ("*", "acpsgd:rank=2,min_rate=0.1")])


def what_was_sent_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    right = LowRankMany.add
    monkeypatch.setattr(LowRankMany, "add", lambda self, *args: right(self, *args) if args[-1] > 0 else None)


def factors_of_the_next_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    """Factors of the next matrix where it is as large."""
    right = ProjectionBucket.restore

    def restore(self: ProjectionBucket) -> Any:
        outs, factors = right(self)
        return outs, [factors[2] if factor.shape == factors[2].shape else factor for factor in factors]

    monkeypatch.setattr(ProjectionBucket, "restore", restore)


def factors_as_they_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    """The basis is as wide where it encodes as where it decodes."""
    right = ProjectionPlan.__init__

    def init(self: ProjectionPlan, *args: Any) -> None:
        right(self, *args)
        self.down = self.up

    monkeypatch.setattr(ProjectionPlan, "__init__", init)


@needs_native
@pytest.mark.parametrize(
    "mutant",
    [what_was_sent_is_kept, factors_of_the_next_matrix, factors_as_they_lie],
    ids=lambda mutant: mutant.__name__,
)
def test_each_mutant_of_alternating_factors_is_caught(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
):
    mutant(monkeypatch)
    with pytest.raises((AssertionError, ValueError, RuntimeError, GraceError)):
        assert_same(ALTERNATING, 3, MATRICES)


@needs_native
@pytest.mark.parametrize(("policy", "bucket"), [(LOW_RANK, LowRankBucket), (ALTERNATING, ProjectionBucket)])
def test_matrices_and_what_stands_between_them_go_as_one(policy: Policy, bucket: type):
    assert_same(policy, 3, MATRICES, plans=SOME)
    run = Run(policy, 2, MATRICES, ALL)
    run.step()
    rounds = [ops for ops in run.seen if ops]
    run.step()
    assert len(rounds) == (2 if policy is LOW_RANK else 1), "all factors of a round, and what is not compressed"
    assert any(isinstance(key, tuple) and key[0] is bucket for key in run.workers[0].workspace.kept)


@needs_native
@pytest.mark.parametrize("memory", ["residual", "none"])
@pytest.mark.parametrize("method", ["powersgd", "acpsgd"])
def test_products_that_overflow(method: str, memory: str, monkeypatch: pytest.MonkeyPatch):
    """Some of the time a factor or a mean does."""

    def huge(rank: int, step: int, shapes: Shapes) -> dict[str, Tensor]:
        given = gradients(rank, step, shapes)
        for i, x in enumerate(given.values()):
            if (i + step) % 2:
                x.mul_(1e38)
            elif (i, step) == (3, 3):
                x.fill_(3.4e38)
        return given

    policy = Policy([("layer1", "none"), ("*", f"{method}:rank=2,min_rate=0.1,memory={memory}")])
    alone, batched = Run(policy, 2, MATRICES, lambda _: False), Run(policy, 2, MATRICES, ALL)
    monkeypatch.setattr(bucket_runs, "gradients", huge)
    for _ in range(5):
        assert alone.step() == batched.step()
    assert alone.seen == batched.seen


# ---- in two hops ------------------------------------------------------------------------------------------------------
TWO_HOPS = Policy([("layer1", "none"), ("*", "qsgd:bits=4,bucket=32,communicator=scatterreduce,memory=residual")])
UNEVEN = ((2,), (3,), (15, 17), (12,), (7,), (3, 41), (40,))


def second_rounding_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "_foreach_add_", lambda *args, **more: None)


def debt_of_the_next_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    right = ScatterTables.__init__

    def init(self: ScatterTables, *args: Any) -> None:
        right(self, *args)
        self.rank = (self.rank + 1) % self.world

    monkeypatch.setattr(ScatterTables, "__init__", init)


def one_stream_for_both_hops(monkeypatch: pytest.MonkeyPatch) -> None:
    right = scatter_reduce.prepare_scattered

    def prepare(hops: Any, stream: Any, *args: Any, **more: Any) -> Any:
        return right(hops, lambda compressor, peer, hop: stream(compressor, peer, 0), *args, **more)

    monkeypatch.setattr(scatter_reduce, "prepare_scattered", prepare)


def averages_of_what_is_not_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    right = rows.agree

    def agree(received: Tensor, words: Tensor, legal: Tensor, many: TensorList, *args: Any, **more: Any) -> Tensor:
        averages = [x.clone() for x in many.xs]
        finite = right(received, words, legal, many, *args, **more)
        torch._foreach_copy_(list(many.xs), averages)
        return finite

    monkeypatch.setattr(rows, "agree", agree)


def tails_that_are_not_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tails that are not zero follow the last number of a tensor in its last chunk."""
    right = scattered_many.pad_many

    def pad(storage: Tensor, many: TensorList, rooms: TensorList) -> None:
        right(storage, many, rooms)
        for x, room in zip(many.xs, rooms.xs, strict=True):
            room[:, x.shape[1] :] = 1.0

    monkeypatch.setattr(scattered_many, "pad_many", pad)


HOP_MUTANTS = [
    second_rounding_is_forgotten, debt_of_the_next_rank, one_stream_for_both_hops, averages_of_what_is_not_finite,
    tails_that_are_not_zero,
]  # fmt: skip


def tables_of(run: Run) -> ScatterTables:
    """The tables of the one bucket of rank 0, whose hops are calls of native kernels."""
    (bucket,) = (bucket for bucket in run.workers[0].workspace.kept.values() if isinstance(bucket, ScatterBucket))
    tables = bucket.tables
    assert calls_of(tables.first.rows) == {"_Encoders"}
    assert calls_of(tables.first.averages) == {"_Encoders", "_Decoders"}
    assert calls_of(tables.last) == {"_Decoders"}
    return tables


def calls_of(many: TensorList) -> set[str]:
    return {type(made).__name__ for made in many._made.values()} & {"_Encoders", "_Decoders"}


@needs_native
@pytest.mark.parametrize("mutant", HOP_MUTANTS, ids=lambda mutant: mutant.__name__)
def test_each_mutant_of_two_hops_is_caught(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
):
    mutant(monkeypatch)
    with pytest.raises((AssertionError, ValueError, RuntimeError, GraceError)):
        assert_same(TWO_HOPS, 3, UNEVEN)


@needs_native
@pytest.mark.parametrize("memory", ["residual", "none"])
@pytest.mark.parametrize("method", ["qsgd:bits=4,bucket=32", "drive:block=16,rotation=shared"])
def test_two_hops_of_uneven_tensors_go_as_one(method: str, memory: str):
    policy = Policy([("layer1", "none"), ("*", f"{method},communicator=scatterreduce,memory={memory}")])
    assert_same(policy, 3, UNEVEN, plans=SOME)
    run = Run(policy, 3, UNEVEN, ALL)
    run.step()
    tables = tables_of(run)
    assert tables.odd_places, "some are padded"
    assert len(tables.odd_places) < len(tables.padded_sizes)


# ---- with a server memory ---------------------------------------------------------------------------------------------
def serving(method: str) -> Policy:
    return Policy([("layer1", "none"), ("*", f"{method},communicator=scatterreduce,server_memory=true")])


ONE_BIT = serving("efsignsgd:block=32")  # of OneBitAdam


def server_owes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ServerDebts, "add", lambda self, lr: None)


def server_keeps_what_it_had(monkeypatch: pytest.MonkeyPatch) -> None:
    right = server_debts.settle_many
    monkeypatch.setattr(
        server_debts, "settle_many", lambda finite, many, **more: right(torch.zeros_like(finite), many, **more)
    )


def padding_is_owed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "_foreach_zero_", lambda tensors: None)


def server_of_the_next_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    right = ServerDebts.__init__

    def init(self: ServerDebts, sizes: Any, starts: Any, world: int, device: torch.device) -> None:
        right(self, sizes, [(start + c) % (world * c) for start, c in zip(starts, sizes, strict=True)], world, device)

    monkeypatch.setattr(ServerDebts, "__init__", init)


def server_of_the_first_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    right = ServerDebts.commit
    monkeypatch.setattr(
        ServerDebts, "commit", lambda self, finite, *args: [right(self, finite, *args)[0]] * len(finite)
    )


SERVER_MUTANTS = [
    server_owes_nothing, server_keeps_what_it_had, padding_is_owed, server_of_the_next_rank,
    server_of_the_first_tensor,
]  # fmt: skip


@needs_native
@pytest.mark.parametrize("mutant", SERVER_MUTANTS, ids=lambda mutant: mutant.__name__)
def test_each_mutant_of_server_memories_is_caught(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
):
    mutant(monkeypatch)
    with pytest.raises((AssertionError, ValueError, RuntimeError, GraceError)):
        assert_same(ONE_BIT, 3, UNEVEN)


@needs_native
@pytest.mark.parametrize("memory", ["residual", "none"])
@pytest.mark.parametrize("method", ["efsignsgd:block=32", "qsgd:bits=4,bucket=32", "drive:block=16,rotation=shared"])
def test_server_memories_go_as_one(method: str, memory: str, monkeypatch: pytest.MonkeyPatch):
    """They follow the learning rate where no memory is around them; a step with one of 0 changes nothing."""
    monkeypatch.setattr(Run, "rate", lambda self, step: 0.0 if step == 1 else 0.1 / (1 + step))
    policy = serving(f"{method},memory={memory}")
    assert_same(policy, 3, UNEVEN, plans=SOME)
    run = Run(policy, 3, UNEVEN, ALL)
    run.step()
    assert tables_of(run).debts is not None


@needs_native
@pytest.mark.parametrize("bad", [0, 1])
def test_a_first_step_that_is_not_finite_leaves_no_server_behind(bad: int, monkeypatch: pytest.MonkeyPatch):
    """Servers have no states after it."""

    def broken(rank: int, step: int, shapes: Shapes) -> dict[str, Tensor]:
        given = gradients(rank, step, shapes)
        if step <= bad:
            for x in given.values():
                x.view(-1)[0] = torch.nan
        return given

    monkeypatch.setattr(bucket_runs, "gradients", broken)
    alone, batched = Run(ONE_BIT, 2, UNEVEN, lambda _: False), Run(ONE_BIT, 2, UNEVEN, ALL)
    for _ in range(5):
        assert alone.step() == batched.step()
    assert alone.seen == batched.seen
