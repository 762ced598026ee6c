"""Meeting of workers that come and go: who begins together, and that all say the same of a round."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import torch.distributed as dist

from grace.errors import AbsentError, ConfigurationError
from grace.transports.rounds import Rounds
from tests.patience import PATIENCE


class Counted(Rounds):
    """Rounds without process groups: who is in one is noted."""

    def __init__(self, store: Any, least: int, most: int, **options: Any):
        super().__init__(store, least, most, **options)
        self._silence = 0.1
        self.formed: tuple[int, int, int] | None = None

    def _form(self, rank: int, world: int) -> None:
        assert self._number is not None
        self.formed = self._number, rank, world
        raise Formed


class Formed(BaseException):
    """Ends a meeting where connections would be made."""


def meet(rounds: Counted) -> None:
    with pytest.raises(Formed):
        rounds.meet()


def in_threads(*calls: Any) -> None:
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_all_who_come_begin_together_and_others_wait_for_the_next_round() -> None:
    store = dist.HashStore()
    every = [Counted(store, 2, 3, patience=PATIENCE, seconds=PATIENCE) for _ in range(3)]
    for meeting in every:
        meeting._silence = PATIENCE
    in_threads(*[lambda meeting=meeting: meet(meeting) for meeting in every])
    assert sorted(meeting.formed for meeting in every if meeting.formed) == [(1, 0, 3), (1, 1, 3), (1, 2, 3)]
    assert not any(meeting.waiting() for meeting in every)
    late = Counted(store, 2, 3, seconds=0.15)
    with pytest.raises(AbsentError, match=r"no round began within 0 s with 2 workers or more"):
        late.meet()
    assert all(meeting.waiting() for meeting in every), "someone has come"


def disagree() -> list[bool]:
    """Two came to a round; one of them is heard of only after the other has given it up. What each of them says."""
    store, answers = dist.HashStore(), []
    for _ in range(2):
        meeting = Counted(store, 2, 2)
        meeting._number = 1
        answers.append(meeting._all_here(2))
    return answers


def test_a_round_that_one_has_given_up_is_over_for_all() -> None:
    assert disagree() == [False, False]


def test_who_would_go_on_alone_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def alone(self: Rounds, count: int) -> bool:
        place = self._store.add("here", 1)
        time.sleep(0.01)
        return place >= count

    monkeypatch.setattr(Rounds, "_all_here", alone)
    assert disagree() == [False, True]


def test_a_round_whose_judge_has_died_is_over() -> None:
    meeting = Counted(dist.HashStore(), 2, 2)
    meeting._number = 1
    meeting._store.add("1/decides", 1)
    assert not meeting._all_here(2)


def test_numbers_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="legal: 1 <= least <= most"):
        Rounds(dist.HashStore(), 3, 2)


@pytest.mark.parametrize(("least", "most"), [(1, 2), (2, 4), (2, 5), (4, 8)])
def test_two_halves_cannot_both_go_on(least: int, most: int) -> None:
    with pytest.raises(
        ConfigurationError, match=rf"train on apart.*legal: least > most / 2, here {most // 2 + 1} or more"
    ):
        Rounds(dist.HashStore(), least, most)
    Rounds(dist.HashStore(), most // 2 + 1, most)
