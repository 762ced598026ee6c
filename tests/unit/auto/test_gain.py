"""A gain that is told was measured: in pairs of steps that followed one another, beside the baseline that was better."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from grace.auto import trial as trials
from grace.auto.controller import Controller
from grace.auto.explain import Candidate, Explanation, Tried
from grace.auto.trial import Gain, Trial, measured_gain

MS = 1_000_000
PLAIN = (0, 1)  # numbers of fp32 and bf16


def held(incumbent: int, rival: int, *pairs: tuple[int, int]) -> Trial:
    return Trial(incumbent, rival, "to see", pairs=list(pairs))


def told(history: Sequence[Trial], chosen: int = 2) -> Explanation:
    """An explanation of this history. Plans were predicted, and ran last, at other speeds than in the pairs."""
    tried = tuple(Tried(20, t.incumbent, t.rival, t.why, True, "", tuple(t.pairs)) for t in history)
    candidates = (
        Candidate("bf16", 0.2, 0.46),
        Candidate("fp32", 0.3, 0.3),
        Candidate("qsgd:bits=4", 0.1, 0.315),
        Candidate("topk", 0.1, None),
    )
    return Explanation(
        "auto",
        2,
        "gloo",
        1.0,
        "running",
        187,
        chosen,
        candidates,
        (),
        187,
        0.1,
        tried,
        (),
        None,
        None,
        {},
        60.0,
        {},
        {},
    )


def test_it_is_the_median_of_pairs_and_not_of_what_ran_last() -> None:
    explanation = told([held(2, 0, (100, 101), (100, 102), (100, 110))])
    assert explanation.gain == Gain(0, 3, 1.02, 1.01, 1.1)
    assert "1.02 times as fast as bf16 in the median of 3 pairs (1.01 to 1.10)" in str(explanation)
    assert "1.46" not in str(explanation)
    assert explanation.as_dict()["gain"] == {"over": "bf16", "pairs": 3, "median": 1.02, "low": 1.01, "high": 1.1}
    assert Explanation.read(explanation.as_dict()).gain == explanation.gain


def test_the_baseline_is_the_one_that_was_measured_better() -> None:
    history = [held(2, 0, (100, 141)), held(2, 1, (100, 126), (100, 127))]  # bf16 was predicted to be the better one
    assert measured_gain(history, 2, PLAIN) == Gain(1, 2, 1.26, 1.26, 1.27)
    assert "1.26 times as fast as fp32" in str(told(history))


def test_who_challenged_whom_does_not_matter() -> None:
    forth, back = measured_gain([held(0, 2, (120, 100))], 2, PLAIN), measured_gain([held(2, 0, (100, 120))], 2, PLAIN)
    assert forth == back == Gain(0, 1, 1.2, 1.2, 1.2)


def test_a_trial_that_went_on_counts_once() -> None:
    history = [held(2, 0, (100, 90)), held(2, 0, (100, 90), (100, 130), (100, 130))]
    gain = measured_gain(history, 2, PLAIN)
    assert gain is not None
    assert (gain.pairs, gain.median) == (3, 1.3)


@pytest.mark.parametrize("history", [[], [held(0, 3, (120, 100)), held(3, 2, (100, 90))], [held(2, 0)]])
def test_what_ran_in_no_pair_with_a_baseline_is_not_measured(history: list[Trial]) -> None:
    assert measured_gain(history, 2, PLAIN) is None
    assert "gain not measured" in str(told(history))
    assert told(history).as_dict()["gain"] is None


def test_a_scout_is_no_pair() -> None:
    controller = Controller([200 * MS, 350 * MS], 0, [1], baselines=1)
    while not controller.trials:
        record = controller.ended(MS * (350 if controller.plan else 200), controller.step)
        if record is not None:
            controller.heard([record])
    assert measured_gain(controller.trials, 1, (0,)) is None


def of_what_was_predicted(history: Sequence[Trial], current: int, baselines: Sequence[int]) -> Gain | None:
    """With the defect: beside the first baseline, which was predicted to be the better one."""
    return trials.measured_gain([t for t in history if 1 not in (t.incumbent, t.rival)], current, baselines)


def of_medians(history: Sequence[Trial], current: int, baselines: Sequence[int]) -> Gain | None:
    """With the defect: of times of a step that ran at different times."""
    return Gain(0, 1, 0.46 / 0.315, 0.46 / 0.315, 0.46 / 0.315)


@pytest.mark.parametrize(
    ("mutant", "test"),
    [
        (of_what_was_predicted, test_the_baseline_is_the_one_that_was_measured_better),
        (of_medians, test_it_is_the_median_of_pairs_and_not_of_what_ran_last),
    ],
)
def test_mutants_are_caught(monkeypatch: pytest.MonkeyPatch, mutant: object, test: object) -> None:
    monkeypatch.setattr("grace.auto.explain.measured_gain", mutant)
    monkeypatch.setitem(globals(), "measured_gain", mutant)
    assert callable(test)
    with pytest.raises(AssertionError):
        test()


def test_of_three_pairs_the_middle_one_counts() -> None:
    gain = trials.gain_over([(3, 1), (1, 1), (2, 1)], 0)
    assert gain is not None
    assert gain.median == 2.0
