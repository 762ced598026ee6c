"""Steps of workers of which one dies, in each round of a step: it counts on all who are left, or on none."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import grace
from grace.errors import AbsentError, ConfigurationError, InputError, NonFiniteError, TransportError
from grace.run.drive import drive
from grace.run.elastic import Elastic
from grace.run.members import carry
from grace.run.options import Options
from grace.run.session import Session
from grace.run.worker import Worker
from grace.transports.alone import Alone
from tests.unit.networks import Threads, returned, run_threads

SHAPES = {"w": (8, 6), "b": (5,)}
SPECS = ["topk:ratio=0.1", "powersgd:rank=1,min_rate=0.5", "efsignsgd:communicator=scatterreduce,server_memory=true",
         "topk:ratio=0.2,memory=ef21"]  # fmt: skip


def gradients(rank: int, step: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


def begin(spec: str, **options: Any) -> Elastic:
    like = {name: torch.empty(shape) for name, shape in SHAPES.items()}
    return Elastic(Session(like, grace.Policy([("*", spec)]), Alone(), Options(**options)))


def in_threads(world: int, job: Any, *hubs: Threads) -> list[Any]:
    return returned(run_threads(world, job, *hubs))


class Dying:
    """A member of a network that dies before collective ``at``; or, if ``deaf``, fails where others have their answers."""

    def __init__(self, member: Any, hub: Threads, at: int, deaf: bool):
        self.member, self.hub, self.left, self.deaf = member, hub, at, deaf
        self.rank, self.world = member.rank, member.world
        self.dead = False

    def run(self, op: Any) -> Tensor:
        if self.dead:
            raise TransportError("a worker died")
        self.left -= 1
        if self.left != 0:
            return self.member.run(op)
        if not self.deaf:  # the one who dies
            self.hub.barrier.abort()
        else:  # one whose connection breaks before it has the answer, while another has it
            self.member.run(op)
        self.dead = True
        raise TransportError("a worker died")

    def all_gather_text(self, text: str, *, seconds: float) -> list[str]:
        return self.member.all_gather_text(text, seconds=seconds)

    def close(self, error: BaseException | None = None) -> None:
        if error is not None:
            self.hub.barrier.abort()


def run(spec: str, at: int, how: str) -> tuple[float, list[Any]]:
    """Worker 2 of 3 dies in collective ``at`` of the third step, and worker 3 joins: applied + owed + lost - computed, and who
    goes on. ``how``: "dies", or "deaf": then worker 1 does not hear the last answer that worker 0 has.
    """
    first, second = Threads(3), Threads(3)
    sum_of: dict[str, Any] = {"applied": 0.0, "computed": 0.0, "debts": [None] * 4, "said": [None] * 4}

    def job(rank: int) -> Any:
        elastic = begin(spec)
        model = {name: torch.zeros(shape) for name, shape in SHAPES.items()}
        if rank == 3:
            report = elastic.regroup(second.member(2), list(model.values()))
        else:
            member = first.member(rank)
            faulty = rank == (2 if how == "dies" else 1)
            transport = Dying(member, first, at if faulty else -1, how == "deaf")
            elastic.regroup(transport)  # type: ignore[arg-type]
            transport.left = at if faulty else -1
            report = None
            try:
                for step in range(3):
                    if step == 2:
                        transport.left = at if faulty else -1
                        sum_of["debts"][rank] = {n: x.clone() for n, x in elastic.session.worker.debts().items()}
                    else:
                        transport.left = -1
                    for name, mean in elastic.step(gradients(rank, step)).items():
                        model[name] += mean
            except TransportError:
                pass
            if rank == 2:
                elastic.session.close(TransportError("died"))
                return None
            report = elastic.regroup(second.member(rank), list(model.values()))
        for step in range(report.step, 6):
            for name, mean in elastic.step(gradients(rank, step)).items():
                model[name] += mean
        return model, elastic.session.worker.debts(), report

    ends = in_threads(4, job, first, second)
    kept = [end for end in ends if end is not None]
    step = kept[0][2].step
    assert all(end[2].step == step for end in kept), "they do not agree on what counts"
    assert all(torch.equal(end[0][name], kept[0][0][name]) for end in kept for name in SHAPES), "replicas"
    apart = 0.0
    for name in SHAPES:
        computed = sum(sum(gradients(r, s)[name] for r in range(3)) / 3 for s in range(step))
        computed = computed + sum(sum(gradients(r, s)[name] for r in (0, 1, 3)) / 3 for s in range(step, 6))
        owed = sum(end[1].get(name, torch.zeros(())) for end in kept)
        lost = sum_of["debts"][2].get(name, torch.zeros(())) if step == 2 else None
        if lost is None:
            continue  # it took along what it owed after a step that nobody else knows all of
        apart = max(apart, float((kept[0][0][name] + owed + lost - computed).abs().max()))
    return apart, [end[2] for end in kept]


@pytest.mark.parametrize("spec", SPECS[:3])
@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_step_counts_on_all_or_on_none(spec: str, at: int) -> None:
    apart, report = run(spec, at, "dies")
    assert apart < 1e-5
    if report[0].step == 2:
        assert (report[0].survivors, report[0].others, report[0].lost) == ((0, 1), (2,), 1)
        assert "step 2: 2 workers go on, 1 join; 1 are lost, with what they owed: about 33%" in str(report[0])


def test_who_missed_the_last_answer_hears_that_the_step_counts() -> None:
    _, report = run("topk:ratio=0.1", 2, "deaf")  # the second collective of a step of one round is the vote
    assert [end.applied for end in report] == [False, True, False]
    assert [end.step for end in report] == [3, 3, 3]


def test_a_step_that_one_has_not_made_counts_on_nobody() -> None:
    _, report = run("topk:ratio=0.1", 1, "deaf")
    assert [(end.step, end.survivors, end.others) for end in report] == [(2, (0, 1), (2,))] * 3


@pytest.mark.parametrize("which", ["commits at once", "a step that counts on some only"])
def test_a_step_with_a_defect_is_caught(which: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if which == "commits at once":
        monkeypatch.setattr(Worker, "abandon", Worker.commit)
        apart, _ = run("topk:ratio=0.1", 2, "dies")
        assert apart > 1e-3
    else:
        monkeypatch.setattr("grace.run.elastic._most", unsaid)
        with pytest.raises(AssertionError):
            test_a_step_that_one_has_not_made_counts_on_nobody()


def unsaid(flag: bool) -> Any:
    """A vote that nobody asks for."""
    yield from ()
    return torch.tensor([flag])


def test_the_mean_is_over_those_who_take_part() -> None:
    hub = Threads(3)

    def job(rank: int) -> Any:
        elastic = begin("topk:ratio=1.0")
        elastic.regroup(hub.member(rank))
        given = {name: torch.full(shape, [3.0, 6.0, 9.0][rank]) for name, shape in SHAPES.items()}
        first = {name: x.clone() for name, x in elastic.step(given, part=rank < 2).items()}
        debts = elastic.session.worker.debts()
        zeros = {name: torch.zeros(shape) for name, shape in SHAPES.items()}
        return first["w"][0, 0].item(), debts.get("w"), elastic.step(zeros, part=True)["w"][0, 0].item()

    ends = in_threads(3, job, hub)
    assert [end[0] for end in ends] == [4.5] * 3
    assert float(ends[2][1][0, 0]) == 3, "what came too late is owed"
    assert [end[2] for end in ends] == [3.0] * 3


def test_a_step_without_anyone_is_refused() -> None:
    elastic = begin("none")
    with pytest.raises(InputError, match="no worker takes part in this step; at least one must"):
        elastic.step(gradients(0, 0), part=False)


def test_leaving_hands_over_what_is_owed() -> None:
    hub, smaller = Threads(3), Threads(2)

    def job(rank: int) -> Any:
        elastic = begin("topk:ratio=0.05")
        elastic.regroup(hub.member(rank))
        for step in range(3):
            elastic.step(gradients(rank, step))
        before = elastic.session.worker.debts()
        elastic.hand_over([1])
        if rank == 1:
            assert not elastic.session.worker.debts()
            elastic.session.close()
            return before, None
        report = elastic.regroup(smaller.member(rank // 2))
        return before, elastic.session.worker.debts(), report

    ends = in_threads(3, job, hub, smaller)
    for name in SHAPES:
        before = sum(end[0][name] for end in ends)
        torch.testing.assert_close(ends[0][1][name] + ends[2][1][name], before)
    with pytest.raises(InputError, match=r"leaving=\[0\]: legal: some of the ranks 0 to 0, not all"):
        begin("none").hand_over([0])


def test_who_joins_has_the_weights_and_what_is_shared() -> None:
    two, three = Threads(2), Threads(3)

    def job(rank: int) -> Any:
        elastic, weights = begin("powersgd:rank=1,min_rate=0.5"), torch.full((3,), 1.0 + rank)
        if rank < 2:
            elastic.regroup(two.member(rank))
            for step in range(2):
                elastic.step(gradients(rank, step))
            weights.fill_(9.0)
        elastic.regroup(three.member(rank), [weights])
        return weights, elastic.step(gradients(rank, 2))["w"]

    for weights, mean in (ends := in_threads(3, job, two, three)):
        assert weights.tolist() == [9.0] * 3
        assert torch.equal(mean, ends[0][1])


@pytest.mark.parametrize("which", ["debts of the old number of workers", "debts for nobody", "weights of its own"])
def test_a_regrouping_with_a_defect_is_caught(which: str, monkeypatch: pytest.MonkeyPatch) -> None:
    law = test_leaving_hands_over_what_is_owed
    if which == "debts of the old number of workers":
        monkeypatch.setattr("grace.run.worker.carry", lambda state, factor: carry(state, 1.0))
    elif which == "debts for nobody":
        monkeypatch.setattr(Worker, "late", lambda *_: None)
    else:
        monkeypatch.setattr(Session, "broadcast_", lambda *_: None)
        law = test_who_joins_has_the_weights_and_what_is_shared
    with pytest.raises(AssertionError):
        law()


def test_a_step_with_a_nan_is_undone() -> None:
    elastic = begin("topk:ratio=0.1", nonfinite="error")
    elastic.step(gradients(0, 0))
    before = {name: x.clone() for name, x in elastic.session.worker.debts().items()}
    bad = gradients(0, 1)
    bad["b"][0] = float("nan")
    with pytest.raises(NonFiniteError):
        elastic.step(bad)
    after = elastic.session.worker.debts()
    assert all(torch.equal(before[name], after[name]) for name in SHAPES)
    elastic.step(gradients(0, 2))


def test_what_is_paid_in_instalments_is_undone_with_the_step() -> None:
    worker = begin("none").session.worker
    worker.late({"w": torch.ones(8, 6)})
    worker._owed.instalments["w"] = 4
    for _ in range(2):
        assert worker.debts()["w"][0, 0] == 1
        outs = drive(worker.exchange({"w": torch.zeros(8, 6)}), Alone())
        assert outs["w"].mean[0, 0] == 0.25
        assert worker.debts()["w"][0, 0] == 0.75
        worker.abandon()
    drive(worker.exchange({"w": torch.zeros(8, 6)}), Alone())
    worker.commit()
    worker.abandon()
    assert worker.debts()["w"][0, 0] == 0.75


def test_choices_are_refused() -> None:
    elastic = begin("topk:ratio=0.1")
    elastic.session.offer(["topk:ratio=0.1", "none"])
    with pytest.raises(ConfigurationError, match=r"use switch\(...\) between steps"):
        elastic.step(gradients(0, 0))


def test_one_that_dies_before_it_has_said_anything_is_a_transport_error() -> None:
    class Absent(Alone):
        def all_gather_text(self, text: str, *, seconds: float) -> list[str]:
            assert seconds == 5
            raise AbsentError([1], "rank 1 did not come")

    elastic = begin("topk:ratio=0.1")
    elastic.step(gradients(0, 0))
    elastic.seconds = 5.0
    before = elastic.session.worker.debts()
    with pytest.raises(AbsentError, match="rank 1 did not come"):
        elastic.regroup(Absent())
    assert str(elastic.regroup(Alone())) == "step 1: 1 workers go on, 0 join; nothing is lost"
    assert all(torch.equal(before[name], x) for name, x in elastic.session.worker.debts().items())
