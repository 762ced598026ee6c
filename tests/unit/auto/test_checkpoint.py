"""The choice of ``auto`` goes into a checkpoint, and on from one: of it, of a fixed method, of other workers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from grace.errors import StateError
from grace.registry.policy import Policy, Rule
from grace.run.checkpoint import GIVEN, Checkpoint, Memories, pack, unpack
from grace.transports.alone import Alone
from tests.unit.auto.handles import AUTO, Handle, both, real
from tests.unit.networks import in_threads


def checkpoint_of(handle: Handle, memories: Memories = "mean", workers: int | None = None) -> Checkpoint:
    return Checkpoint(handle._session, memories, workers, chooser=handle._chooser)


def debts_of(handle: Handle) -> dict[str, Tensor]:
    return {name: x.clone() for name, x in handle._session.worker.state.debts().items()}


def saved_by(
    world: int, link: dict[str, float], auto: str | None = AUTO, method: Any = "none", memories: Memories = "mean"
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A checkpoint after 12 steps, all that the ranks have put into it, and the mean of what they owe."""

    def job(member: Any, rank: int) -> Any:
        handle = Handle(member, auto, method)
        handle.train(12, real(link))
        return checkpoint_of(handle, memories).state_dict(), debts_of(handle)

    told = in_threads(world, job)
    saved = {key: value for rank in told for key, value in rank[0].items()}
    return saved, {name: sum(owed[name] for _, owed in told) / world for name in told[0][1]}


def mean_of(told: list[dict[str, Tensor]], name: str) -> Tensor:
    return torch.stack([owed[name] for owed in told]).mean(0)


@pytest.mark.parametrize(("memories", "world"), [("mean", 3), ("all", 2), ("all", 3)])
def test_a_choice_goes_on_on_any_number_of_workers(link: dict[str, float], memories: Memories, world: int) -> None:
    saved, owed = saved_by(2, link, memories=memories)
    assert unpack(saved["about"])["methods"] == {"first": "topk", "bias": "none", "second": "topk"}

    def job(member: Any, rank: int) -> tuple[Handle, dict[str, Tensor]]:
        handle = Handle(member, AUTO)
        checkpoint_of(handle, memories, 2 if memories == "all" else None).load_state_dict(saved)
        before = debts_of(handle)
        handle.train(12, real(link))
        return handle, before

    told = in_threads(world, job)
    handle = told[0][0]
    assert handle.used[:6] == ["topk"] * 6
    assert str(handle.explain().candidates[handle.explain().chosen or 0].words) == "topk"
    assert "goes on with the methods of a state that was loaded, none, topk, until the model is known" in str(
        handle.explain()
    )
    for name in ("first", "second"):
        torch.testing.assert_close(mean_of([before for _, before in told], name), owed[name], atol=1e-5, rtol=1e-5)


def first_after(link: dict[str, float], forgets: bool) -> str:
    """The method of the first step after a checkpoint, where calibration has found another one the best."""
    saved, _ = saved_by(2, link)
    link["topk"] = 90.0

    def job(member: Any, rank: int) -> str:
        handle = Handle(member, AUTO)
        Checkpoint(handle._session, chooser=GIVEN if forgets else handle._chooser).load_state_dict(saved)
        handle.train(1, real(link))
        return handle.used[0]

    return both(job)[0]


def test_a_checkpoint_that_forgets_the_choice_is_caught(link: dict[str, float]) -> None:
    assert first_after(link, forgets=True) != "topk"


def test_a_choice_goes_on_where_the_link_looks_otherwise(link: dict[str, float]) -> None:
    assert first_after(link, forgets=False) == "topk"


@pytest.mark.parametrize("memories", ["mean", "all"])
def test_a_checkpoint_of_a_fixed_method_is_where_auto_goes_on(link: dict[str, float], memories: Memories) -> None:
    saved, owed = saved_by(2, link, None, "topk", memories)

    def job(member: Any, rank: int) -> tuple[Handle, dict[str, Tensor]]:
        handle = Handle(member, "auto:methods=(topk)")
        checkpoint_of(handle, memories).load_state_dict(saved)
        before = debts_of(handle)
        handle.train(2, real(link))
        return handle, before

    told = both(job)
    assert told[0][0].used == ["topk"] * 2
    assert handle_says(told[0][0], "goes on with the methods of a state that was loaded")
    torch.testing.assert_close(mean_of([before for _, before in told], "second"), owed["second"], atol=1e-5, rtol=1e-5)


def test_one_file_of_all_workers_keeps_the_choice(link: dict[str, float]) -> None:
    """As trainers of other libraries save: rank 0 writes what all read, and it says itself who saved it."""

    def save(member: Any, rank: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
        handle = Handle(member, AUTO)
        handle.train(12, real(link))
        saved = Checkpoint(handle._session, "all", whole=True, chooser=handle._chooser).state_dict()
        return saved, debts_of(handle)

    told = both(save)
    link["topk"] = 90.0

    def load(member: Any, rank: int) -> tuple[str, dict[str, Tensor]]:
        handle = Handle(member, AUTO)
        Checkpoint(handle._session, whole=True, chooser=handle._chooser).load_state_dict(told[0][0])
        before = debts_of(handle)
        handle.train(1, real(link))
        return handle.used[0], before

    for rank, (used, before) in enumerate(both(load)):
        assert used == "topk"
        assert torch.equal(before["second"], told[rank][1]["second"])


def handle_says(handle: Handle, words: str) -> bool:
    return any(words in text for _, text in handle.explain().history)


@pytest.mark.parametrize(("memories", "world"), [("mean", 3), ("all", 2)])
def test_a_fixed_method_takes_over_what_is_owed(link: dict[str, float], memories: Memories, world: int) -> None:
    saved, owed = saved_by(2, link, memories=memories)

    def job(member: Any, rank: int) -> tuple[dict[str, Tensor], list[str], dict[str, Tensor]]:
        handle = Handle(member, None, "bf16")
        checkpoint_of(handle, memories, 2 if memories == "all" else None).load_state_dict(saved)
        before = debts_of(handle)
        handle.train(25, real(link))
        return before, handle.used, debts_of(handle)

    told = in_threads(world, job)
    for before, used, left in told:
        assert set(used) == {"bf16"}
        assert not left, "all is paid"
        assert bool(before["second"].any())
    torch.testing.assert_close(mean_of([before for before, *_ in told], "second"), owed["second"], atol=1e-5, rtol=1e-5)


def test_methods_that_may_not_be_used_here_are_left_once_the_model_is_known(link: dict[str, float]) -> None:
    """The checkpoint is of another choice: of a class in which there is more."""
    saved, _ = saved_by(2, link)

    def job(member: Any, rank: int) -> Handle:
        handle = Handle(member, "auto:quality=exact")
        checkpoint_of(handle).load_state_dict(saved)
        handle.train(25, real(link))
        return handle

    handle = both(job)[0]
    assert handle.used[0] == "topk"
    assert set(handle.used[15:]) <= {"none", "bf16"}
    assert handle_says(handle, "leaves the methods of the state that was loaded, none, topk: not all are among")


def test_methods_of_nobodys_are_said_and_what_is_owed_goes_on(link: dict[str, float]) -> None:
    saved, owed = saved_by(2, link)
    about = unpack(saved["about"])
    about["methods"]["second"] = "of_my_own"

    def job(member: Any, rank: int) -> tuple[Handle, dict[str, Tensor]]:
        handle = Handle(member, AUTO)
        checkpoint_of(handle).load_state_dict({**saved, "about": pack(about)})
        before = debts_of(handle)
        handle.train(1, real(link))
        return handle, before

    told = both(job)
    assert handle_says(told[0][0], "cannot use the methods of the state that was loaded, and chooses anew: ")
    torch.testing.assert_close(mean_of([before for _, before in told], "second"), owed["second"], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "changed", [{"methods": 3}, {"methods": {"first": 3}}, {"auto": 3}, {"methods": {"first": "fp8"}}]
)
def test_a_damaged_choice_is_refused_on_all_ranks_and_nothing_has_changed(
    link: dict[str, float], changed: dict[str, Any]
) -> None:
    saved, _ = saved_by(2, link)

    def job(member: Any, rank: int) -> Handle:
        handle = Handle(member, AUTO)
        handle.train(3, real(link))
        before = handle._session.policy
        other = {**saved, "about": pack({**unpack(saved["about"]), **changed})}
        with pytest.raises(StateError):
            checkpoint_of(handle).load_state_dict(other if rank else saved)
        assert handle._session.policy is before
        assert handle._session.worker.step == 3
        return handle

    both(job)


def test_a_checkpoint_tells_the_methods_of_groups_by_parameter() -> None:
    handle = Handle(Alone(), None, Policy([Rule("bias", "none"), Rule("*", "qsgd", until_step=2), Rule("*", "topk")]))
    assert handle._session.methods() == {"first": "qsgd:bits=4", "bias": "none", "second": "qsgd:bits=4"}
    handle.train(2, lambda method, step: 0.0)
    assert handle._session.methods() == {"first": "topk", "bias": "none", "second": "topk"}
