"""Choice of the plan that runs: predictions propose, real steps decide.

Steps come in blocks. A *trial* compares a challenger with the incumbent in pairs of blocks, one of each, in an order drawn
from a seed that all ranks share, so that noise in step with the blocks favours nobody; the first step of a block is not
counted. The challenger wins with odds of 20 that it is faster at all (:mod:`grace.auto.trial`), if in most pairs it was by
the margin. It loses with odds of 2.5 against it, two clear pairs, and at once if it takes more than 1.5 times as long. What
16 pairs leave open is tried again after all others, with the pairs that it has. fp32 and bf16 need no margin, and odds of 4,
or most of 16 pairs.

Outside trials the medians of blocks are watched (:class:`grace.auto.drift.Drift`). A change of pace asks for a look at the
link. So does a change of what exchanges take, where they are a good part of a step: most of them is hidden behind the backward
pass, so a link that becomes ten times as fast may change a step by a few percent. And so does time, as a plan that hardly uses
the link shows neither. Looks keep a distance, which doubles with each that changes nothing, so that neighbours who come and go
cost one look now and then.

All of it fits into a budget, the larger of six seconds and a share of the run's time. What does not fit waits until the budget
has grown, and the next in the queue that fits is tried meanwhile.

All ranks decide alike: at the end of a block each tells a few whole numbers, and what follows is a function of everyone's.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Literal, TypeAlias

from grace.auto.drift import Pace
from grace.auto.trial import YIELD, Trial
from grace.errors import AgreementError

CAP = 3, 2  # times the incumbent's step, as a fraction: who takes longer has lost at once
WATCH = 16  # steps of a block outside trials, at least
LEAST, SPAN_NS = 4, 250_000_000  # steps, and nanoseconds, that a block of a trial has at least
REPEATS = 5  # times that a block of which half the steps or more have compiled is begun again
SCOUTS = 2  # times that a step beyond the cap is looked at, where it was predicted to be within
FREE_NS = 6_000_000_000  # what may be spent in any case
ROOM = 0.88  # of the budget, for trials and looks: telling goes on, and trials may cost more than predicted
LOOK_PRICE = 300_000_000  # nanoseconds, about
SHORT_NS = 200_000  # a step below this is too short to be compared
VARIES = 0.2  # of their median: blocks that vary by more cannot be compared
BELIEVED = 0.8  # where steps cannot be compared, a plan must be predicted to take at most this of the baseline's
LOOK_STEPS, LOOK_NS = 400, 120_000_000_000  # from one look to the next, at first
APART = 200  # steps between looks at least
LASTING, DOUBLED = 1000, 8  # steps after which a change has lasted; times the distance
_STALL = 4  # times the block's median: a period that is longer is left out, an evaluation or a checkpoint
ONE = 1_000_000  # of weights
Kind: TypeAlias = Literal["watch", "scout", "mine", "theirs"]


class Controller:
    """Runs plans, which it knows by number. Plans 0 to ``baselines - 1`` are fp32 and bf16, the better one first.

    For each step: :attr:`plan` says what it uses; :meth:`ended` takes what it took, and returns what is to be told to all
    ranks, if a block has ended; :meth:`heard` takes what all ranks have told. Then :attr:`look` says why the link should be
    looked at, if it should; :meth:`looked` takes what came of it.

    Args:
        predicted: nanoseconds of a step under each plan.
        incumbent: runs first. challengers: are tried, in this order.
        baselines: how many of the plans are.
        margin: by how much a challenger must be faster. share: of the time that trials and the rest may take.
        seed: of the order of blocks. spent: nanoseconds so far, on all ranks alike. period: of a step, expected.
        first: the step of the run at which it begins.
        weights: of a step of each plan, in millionths: how many of bf16's it takes to come as far. Empty: all are alike.
        late: steps after which the host knows what one took, and after which it has what all ranks were told. So many steps
            of the incumbent follow each block, twice, and count for nothing.
        why: challengers are tried.
    """

    def __init__(
        self,
        predicted: Sequence[int],
        incumbent: int,
        challengers: Sequence[int],
        *,
        baselines: int = 2,
        margin: float = 0.02,
        share: float = 0.01,
        seed: int = 0,
        spent: int = 0,
        period: int | None = None,
        first: int = 0,
        weights: Sequence[int] = (),
        late: int = 0,
        why: str = "to see whether it is as fast as predicted",
    ):
        self.late = late
        self.weights = list(weights) or [ONE] * len(predicted)
        self.predicted, self.baselines, self.share = list(predicted), baselines, share
        self.current, self.queue = incumbent, [(number, why) for number in challengers]
        self._needed = 10_000 - round(10_000 * margin)
        self._random = random.Random(seed)
        self.step, self.elapsed = first, 0
        self.measured: dict[int, int] = {}  # nanoseconds of a step, of each plan, when it ran last
        self.trials: list[Trial] = []
        self.events: list[tuple[int, str]] = []
        self.verified_at: int | None = None
        self.look: str | None = None
        self.looks = 0
        self.waits: dict[int, str] = {}  # challengers that do not fit into the budget, and why
        self.hopeless: str | None = None  # why steps cannot be compared
        self.spent, self._overhead = spent, 0
        self._period = max(1, predicted[incumbent] if period is None else period)
        self._trial: Trial | None = None
        self._open_trials: dict[tuple[int, int], Trial] = {}  # of an incumbent and a rival, that go on later
        self._scouts = self._repeats = 0
        self._asked: int | None = None  # the step of a record that is under way to all ranks
        self._exchanges: list[int] = []
        self._order: list[Kind] = []
        self._pair: dict[Kind, int] = {}
        self._pace = Pace()
        self._distance = {True: 1, False: 1}  # of looks after an alarm and of others, in times of the first
        self._looked = (first, 0)  # step and nanoseconds of the last
        self._alarm: tuple[str, bool] | None = (
            None  # why a look is due as soon as there may be one, and whether it is pressing
        )
        self.pressing = (
            False  # whether the last look came as steps took another time: then the baseline is tried as well
        )
        self._alarmed = first - APART  # the step of the last look after an alarm
        self._changed = first  # the step of the last change of plan
        self._open: int | None = None  # changes of plan when the last look came, if nothing has come of it yet
        self._changes = 0
        self._begin("watch", self._block_steps())

    # ---- steps ------------------------------------------------------------------------------------------------------
    @property
    def plan(self) -> int:
        """The number of the plan that the coming step uses. What has shown itself is not used until that is known."""
        return self._shown if self.step < self._last else self.current

    @property
    def _shown(self) -> int:
        """The number of the plan of this block."""
        return self._trial.rival if self._trial is not None and self._kind in ("scout", "theirs") else self.current

    @property
    def trying(self) -> bool:
        """True if a trial goes on: memories of the incumbent wait."""
        return self._trial is not None

    def ended(self, period: int, elapsed: int = 0, overhead: int = 0, exchanges: int = 0) -> list[int] | None:
        """A step has ended. Where the host knows later what it took, :meth:`took` is called then.

        Args:
            period: nanoseconds since the last one ended, on this rank. 0: unknown, or not yet.
            elapsed: nanoseconds since the run began.
            overhead: nanoseconds that telling and looking have taken so far.
            exchanges: nanoseconds that this step's exchanges have taken, codecs and waiting included. 0: unknown.

        Returns:
            What to tell all ranks, if a block has ended.
        """
        self.step += 1
        if period > 0:
            self.took(self.step, period, exchanges)
        self._left -= 1
        if self._left > 0 or self._asked is not None:
            return None
        self._asked = self.step
        median = _middle(self._periods)
        legal = [period for period in self._periods if period <= _STALL * median]
        exchanged = _middle(self._exchanges)
        return [_middle(legal), len(legal), self._shown, self.step, elapsed, overhead, exchanged, self._compiled]

    def took(self, step: int, period: int, exchanges: int = 0, *, compiled: bool = False) -> None:
        """A step has taken so long, on this rank: it counts if it is of this block. ``compiled``: whether the host has waited
        for a compiler meanwhile, which says nothing of steps that follow.
        """
        if not self._first < step <= self._last:
            return
        if compiled:
            self._compiled += 1
        else:
            self._periods.append(period)
            self._exchanges.append(exchanges)

    @property
    def ends(self) -> bool:
        """True if a block ends with the coming step."""
        return self._left <= 1 and self._asked is None

    @property
    def awaited(self) -> int | None:
        """The step whose record is under way to all ranks; None: none is. No plan changes meanwhile."""
        return self._asked

    def heard(self, rows: Sequence[Sequence[int]]) -> None:
        """Takes the measurements of all ranks of the block that has ended, by rank.

        Raises:
            AgreementError: ranks are not at the same plan and step; on all of them.
        """
        asked, self._asked = self._asked, None
        if any(list(row[2:4]) != [self._shown, asked] for row in rows):
            where = ", ".join(f"rank {rank} at plan {row[2]}, step {row[3]}" for rank, row in enumerate(rows))
            raise AgreementError(f"auto: ranks have decided differently: {where}")
        median, legal = max(row[0] for row in rows), min(row[1] for row in rows)
        self.elapsed = max(self.elapsed, *(row[4] for row in rows))
        overhead = max(row[5] for row in rows)
        self.spent, self._overhead = self.spent + max(0, overhead - self._overhead), max(overhead, self._overhead)
        self._compiled = max(row[7] for row in rows)
        if 2 * self._compiled >= max(1, self._last - self._first) and self._repeats < REPEATS:
            self._repeats += 1
            self._begin(self._kind, self._last - self._first + 1)
            return
        self._repeats = 0
        if legal:
            self.measured[self._shown] = median
        if self._kind == "watch":
            # who comes last waits for nobody: the shortest are what codecs and the link take
            self._watched(median, legal, min(row[6] for row in rows))
        elif self._kind == "scout":
            self._scouted(median, legal)
        else:
            self._compared(median, legal)

    def _begin(self, kind: Kind, steps: int) -> None:
        """A block of so many steps begins, of which the first is not counted."""
        self._kind: Kind = kind
        self._left, self._periods, self._exchanges, self._compiled = steps + self.late, list[int](), list[int](), 0
        self._first, self._last = self.step + 1, self.step + steps  # those after the first, up to the last, count

    def _block_steps(self) -> int:
        """Steps of a block of a trial, the first included; those after it that say nothing are not."""
        return max(LEAST, -(-SPAN_NS // self._period)) + 1

    # ---- outside trials ---------------------------------------------------------------------------------------------
    def _watched(self, median: int, legal: int, exchanges: int) -> None:
        if legal:
            self._period = max(1, median)
            if median < SHORT_NS and self.hopeless is None:
                self._give_up(f"a step takes {median / 1e6:.3f} ms, which is too short to be compared")
            self._watch_pace(median, exchanges)
        if self._changes and self.step - self._changed >= LASTING:
            self._distance = {True: 1, False: 1}
        if self.share and self.spent + LOOK_PRICE <= self._room:
            steps, since = self.step - self._looked[0], self.elapsed - self._looked[1]
            if self._alarm is not None and self.step - self._alarmed >= self._distance[True] * APART:
                (self.look, self.pressing), self._alarm, self._alarmed = self._alarm, None, self.step
            elif (
                not self.queue
                and steps >= self._distance[False] * LOOK_STEPS
                and since >= self._distance[False] * LOOK_NS
            ):
                self.look, self.pressing = "it is time to look again", False
        self._next()

    def _watch_pace(self, median: int, exchanges: int) -> None:
        """Notes where steps, or exchanges, take another time than they did."""
        if (change := self._pace.change(median, exchanges)) is not None:
            words, pressing = change
            self._alarm = words, pressing or (self._alarm is not None and self._alarm[1])
            self.events.append((self.step, words))

    def ask(self, why: str) -> None:
        """Asks for a look as soon as there may be one."""
        self._alarm = why, False

    def looked(
        self, predicted: Sequence[int], challengers: Sequence[int], why: str, weights: Sequence[int] = ()
    ) -> None:
        """The link was looked at, and planned anew: the prediction of each plan, new ones included, and who is to be tried."""
        self.weights = list(weights) or [*self.weights, *[ONE] * (len(predicted) - len(self.weights))]
        alarm = self.step == self._alarmed
        if self._open == self._changes:
            self._distance[alarm] = min(DOUBLED, 2 * self._distance[alarm])
        self.look, self._looked, self._open = None, (self.step, self.elapsed), self._changes
        self.looks += 1
        self.predicted, self.hopeless = list(predicted), None
        self._trial = None  # one that was to begin with the next step: who is worth it is known better now
        self._open_trials.clear()
        self.queue = [(number, why) for number in challengers if number != self.current]
        self._next()

    def _next(self) -> None:
        """The first trial that waits and is paid for; else another block. Who is passed over keeps its place."""
        self.queue = [(number, why) for number, why in self.queue if number != self.current]
        self.waits, left = {}, max(0, self._room - self.spent) / 1e9
        first: int | None = None
        for place, (number, why) in enumerate(self.queue if self.share and self.hopeless is None else ()):
            price, begun = self._price(number), self._open_trials.get((self.current, number))
            if self.spent + price > self._room:
                self.waits[number] = f"trying it may cost {price / 1e9:.1f} s, and the budget has {left:.1f}"
            elif first is None:
                first, self._trial = place, begun.again() if begun else self._trial_of(number, why)
            elif begun is not None:
                self.waits[number] = f"{begun.tally}, and it is tried again after others"
        if first is not None:
            del self.queue[first]
            self._scouts = 0
            if self._now.count:
                self._begin_pair()
            else:
                self._scout()
            return
        steps = self._block_steps()
        self._begin("watch", max(WATCH, 4 * (steps - 1)) if self._period_known else steps)

    @property
    def _period_known(self) -> bool:
        return self.current in self.measured

    @property
    def budget(self) -> int:
        """Nanoseconds that may be spent up to now."""
        return max(FREE_NS, int(self.share * self.elapsed))

    @property
    def _room(self) -> int:
        """Nanoseconds that trials and looks may have spent up to now."""
        return int(ROOM * self.budget)

    def _price(self, number: int) -> int:
        """The cost of a trial if the prediction is right and the challenger loses: two pairs, or where it is beyond the
        cap, the steps that show it.
        """
        more = self._more(number)
        return 2 * more if self._is_beyond(number) else (2 + 2 * self._block_steps()) * more

    def _more(self, number: int) -> int:
        """Nanoseconds by which a step is predicted to take longer than the incumbent's, as that was measured."""
        usual = max(1, self.measured.get(self.current, self.predicted[self.current]))
        return max(
            0, self._worth(number, self.predicted[number]) * usual // max(1, self.predicted[self.current]) - usual
        )

    def _worth(self, number: int, ns: int) -> int:
        """Nanoseconds that a step of a plan takes, as many of the incumbent's as would come as far."""
        return ns * self.weights[number] // self.weights[self.current]

    def _trial_of(self, number: int, why: str) -> Trial:
        return Trial(self.current, number, why, weights=(self.weights[self.current], self.weights[number]))

    def _ms(self, number: int, ns: int) -> str:
        """A step in words, with its factor where it has one."""
        weight = self.weights[number]
        return f"{ns / 1e6:.1f}" + ("" if weight == ONE else f" (times {weight / ONE:.3g})")

    def _is_beyond(self, number: int) -> bool:
        """True if a challenger is predicted to be beyond the cap."""
        return self._worth(number, self.predicted[number]) * CAP[1] > self.predicted[self.current] * CAP[0]

    # ---- trials -----------------------------------------------------------------------------------------------------
    def _scout(self) -> None:
        self._scouts += 1
        self._begin("scout", 2)

    def _scouted(self, median: int, legal: int) -> None:
        trial, usual = self._now, self.measured.get(self.current, self._period)
        worth = self._worth(trial.rival, median)
        self.spent += max(0, worth - usual) * 2
        if not legal and self._compiled:
            self._close(won=False, words="its steps went on compiling, and could not be measured")
        elif legal and worth * CAP[1] <= usual * CAP[0]:
            self._begin_pair()
        elif self._scouts < SCOUTS and not self._is_beyond(trial.rival) and self.spent <= self._room:
            self._scout()  # one step may have met a stall
        else:
            words = (
                f"{self._ms(trial.rival, median)} ms a step, and {self._ms(self.current, usual)} before it: much slower"
            )
            self._close(won=False, words=words)

    def _begin_pair(self) -> None:
        self._pair = {}
        self._order = ["mine", "theirs"] if self._random.random() < 0.5 else ["theirs", "mine"]
        self._begin(self._order.pop(0), self._block_steps())

    def _compared(self, median: int, legal: int) -> None:
        self._pair[self._kind] = median if legal >= 2 else 0
        if self._order:
            self._begin(self._order.pop(0), self._block_steps())
            return
        trial, kept, theirs = self._now, self._pair["mine"], self._pair["theirs"]
        plain = trial.rival < self.baselines <= trial.incumbent
        trial.add(kept, theirs, 10_000 if plain else self._needed)
        worth = trial.worth(theirs)
        if kept and theirs:
            self.spent += max(0, worth - kept) * self._block_steps()
        verdict = trial.verdict(plain=plain)
        if kept and worth * CAP[1] > kept * CAP[0] and trial.better <= trial.worse:  # else it may have been a stall
            beside = self._ms(trial.incumbent, kept)
            words = f"much slower in the last pair, {self._ms(trial.rival, theirs)} ms a step beside {beside}"
            self._close(won=False, words=words)
        elif verdict is not None:
            gives_way = ", and what is not faster gives way" if plain and verdict and trial.gain < YIELD else ""
            self._close(won=verdict, words=trial.outcome + gives_way)
        elif self.spent > self._room:
            self._pause(0, "it has cost more than predicted, and the budget is spent")
        elif trial.rests:
            self._pause(len(self.queue), f"{trial.tally}: it is tried again, with these counted")
        else:
            self._begin_pair()

    def _pause(self, place: int, words: str) -> None:
        """The trial goes on later, from this place of the queue, with the pairs that it has."""
        trial = self._now
        self._open_trials[trial.incumbent, trial.rival] = trial
        self.queue.insert(place, (trial.rival, trial.why))
        self._close(won=False, words=words, settled=False)

    @property
    def _now(self) -> Trial:
        assert self._trial is not None
        return self._trial

    def _close(self, *, won: bool, words: str, settled: bool = True) -> None:
        trial, self._trial = self._now, None
        trial.won, trial.step, trial.words = won, self.step, words
        self.trials.append(trial)
        if won:
            self._change(trial.rival)
        if settled and (trial.rival < self.baselines or (won and trial.incumbent < self.baselines)):
            self.verified_at = self.step
        varies = _spread([rival for rival, _ in trial.pairs])
        if trial.undecided and varies > VARIES and self.verified_at is None:
            self._give_up(f"blocks of the same plan differ by {varies:.0%}")
        self._pace.forget()
        self._next()

    def _change(self, number: int) -> None:
        self.current, self._changed, self._changes = number, self.step, self._changes + 1
        self._open_trials.clear()
        self._period = max(1, self.measured.get(number, self.predicted[number]))

    def _give_up(self, why: str) -> None:
        """Steps cannot be compared: the better baseline, unless something is predicted to be much faster."""
        self.hopeless = why
        costs = [ns * weight for ns, weight in zip(self.predicted, self.weights, strict=True)]
        best = min(range(len(costs)), key=lambda number: costs[number])
        number = best if costs[best] <= BELIEVED * costs[0] else 0
        self.queue = []  # who waits would keep it from looking again
        self.events.append((self.step, f"{why}: no trials"))
        if number != self.current:
            self._change(number)


def _middle(values: Sequence[int]) -> int:
    """The median; of an even number the smaller of the two in the middle. 0: there are none."""
    return sorted(values)[(len(values) - 1) // 2] if values else 0


def _spread(values: Sequence[int]) -> float:
    """By how much values differ, as a share of their median, an eighth of them left out at either end."""
    cut = max(1, len(values) // 8)
    inner = sorted(values)[cut:-cut]
    return (inner[-1] - inner[0]) / max(1, _middle(inner)) if inner else 0.0
