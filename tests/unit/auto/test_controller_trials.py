"""Trials that meet a stall, and trials that go on later."""

from __future__ import annotations

import pytest

from grace.auto.controller import SCOUTS, Controller
from grace.auto.trial import Trial


class Hasty(Controller):
    """Believes one step."""

    def _scout(self) -> None:
        super()._scout()
        self._scouts = SCOUTS


@pytest.mark.parametrize(("kind", "tried"), [(Controller, True), (Hasty, False)])
def test_a_stall_in_the_first_step_of_a_trial_is_not_believed(kind: type[Controller], tried: bool) -> None:
    controller, stalls = kind([200_000_000, 160_000_000], 0, [1], baselines=1), 2
    while not controller.trials:
        slow, stalls = controller.plan == 1 and stalls > 0, stalls - (controller.plan == 1)
        record = controller.ended(1_000_000 * (600 if slow else (200, 160)[controller.plan]), controller.step)
        if record is not None:
            controller.heard([record])
    assert controller.trials[0].won is tried


def test_a_stalled_pair_does_not_end_a_trial_that_is_almost_won() -> None:
    controller = Controller([200_000_000, 160_000_000], 0, [1], baselines=1)
    while not controller.trials:
        stalled = controller.trying and controller.plan == 1 and controller._now.count == 3
        record = controller.ended(1_000_000 * (600 if stalled else (200, 160)[controller.plan]), controller.step)
        if record is not None:
            controller.heard([record])
    assert controller.trials[0].words == "8 of 9 pairs for it"


@pytest.mark.parametrize(("predicted", "steps"), [(350, 2), (250, 4)])
def test_what_is_much_slower_has_lost_after_two_steps_or_four(predicted: int, steps: int) -> None:
    controller, seen = Controller([200_000_000, 1_000_000 * predicted], 0, [1], baselines=1), 0
    while not controller.trials:
        seen += controller.plan
        record = controller.ended(1_000_000 * (350 if controller.plan else 200), controller.step)
        if record is not None:
            controller.heard([record])
    assert seen == steps
    assert controller.trials[0].words == "350.0 ms a step, and 200.0 before it: much slower"
    assert controller.trials[0].pairs == []  # the two are of different times


# ---- trials that go on later ----------------------------------------------------------------------------------------
class Forgetful(Controller):
    """Begins again with nothing."""

    def _next(self) -> None:
        self._open_trials = {pair: Trial(*pair, "again") for pair in self._open_trials}
        super()._next()


def open_trial(kind: type[Controller] = Controller) -> list[Controller]:
    """Two ranks at the end of a trial that 16 pairs have not decided, two of three for the challenger; another one waits."""
    ranks = [kind([200_000_000, 190_000_000, 195_000_000], 0, [1, 2], baselines=1, seed=5) for _ in range(2)]
    while not ranks[0].trials:
        ratio = 1.08 if ranks[0].trying and ranks[0]._now.count % 3 == 1 else 0.9
        advance(ranks, [200, int(200 * ratio), 230])
    return ranks


def advance(ranks: list[Controller], ms: list[int]) -> None:
    """Takes a step, under each plan of so many milliseconds."""
    assert len({(rank.plan, rank.trying) for rank in ranks}) == 1, "alike on all ranks"
    told = [rank.ended(1_000_000 * ms[rank.plan], 200_000_000 * rank.step + k) for k, rank in enumerate(ranks)]
    rows = [row for row in told if row is not None]
    for controller in ranks if rows else []:
        controller.heard(rows)


def test_what_16_pairs_leave_open_waits_until_others_have_been_tried() -> None:
    ranks = open_trial()
    for controller in ranks:
        assert [trial.won for trial in controller.trials] == [False]
        assert controller.trials[0].words == "11 of 16 pairs for it: it is tried again, with these counted"
        assert (controller.plan, controller.waits) == (
            2,
            {1: "11 of 16 pairs for it, and it is tried again after others"},
        )
        assert controller.verified_at is None


@pytest.mark.parametrize(("kind", "pairs"), [(Controller, 19), (Forgetful, 6)])
def test_it_goes_on_with_the_pairs_that_it_has(kind: type[Controller], pairs: int) -> None:
    ranks = open_trial(kind)
    while ranks[0].current == 0:
        advance(ranks, [200, 180, 230])
    for controller in ranks:
        assert [(trial.rival, trial.won, trial.count) for trial in controller.trials[1:]] == [
            (2, False, 2),
            (1, True, pairs),
        ]
        assert not controller.waits
        assert not controller.queue
    assert ranks[0].trials == ranks[1].trials
    assert kind is Forgetful or ranks[0].trials[-1].words == "14 of 19 pairs for it"


def test_what_stays_open_ends() -> None:
    ranks = open_trial()
    while ranks[0].queue or ranks[0].trying:
        advance(ranks, [200, 220 if ranks[0].trying and ranks[0]._now.count % 2 else 180, 230])
    assert [trial.count for trial in ranks[0].trials] == [16, 2, 32]
    assert ranks[0].trials[-1].words == "19 of 32 pairs for it, which decides nothing"
    assert ranks[0].current == 0


def test_a_look_forgets_earlier_pairs() -> None:
    """The link, or the machine, is another one."""
    ranks = open_trial()
    for controller in ranks:
        controller.looked(controller.predicted, [1], "the link has changed")
    while ranks[0].current == 0:
        advance(ranks, [200, 180, 230])
    assert [trial.count for trial in ranks[0].trials] == [16, 6]


def test_a_trial_that_the_budget_has_ended_goes_on() -> None:
    """Half a second more in each of its steps than was predicted, and then as fast."""
    controller = Controller([2_000_000_000, 1_990_000_000], 0, [1], baselines=1)
    while not controller.trials:
        slow = controller.trying and controller.plan == 1 and controller._now.count < 1
        record = controller.ended(2_800_000_000 if slow else 2_000_000_000 - 200 * controller.plan, controller.step)
        if record is not None:
            controller.heard([record])
    assert controller.trials[0].words == "it has cost more than predicted, and the budget is spent"
    assert "trying it may cost" in controller.waits[1]


def test_a_look_in_place_of_a_trial_leaves_none_behind() -> None:
    controller = Controller([200_000_000, 100_000_000], 1, [0], baselines=1)
    controller.ask("the link is known only so far")
    while controller.look is None:
        if (record := controller.ended(100_000_000, controller.step)) is not None:
            controller.heard([record])
    controller.looked([200_000_000, 100_000_000], [], controller.look)
    assert not controller.trying
    assert controller.plan == 1
