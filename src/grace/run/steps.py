"""Steps of training above a session: tensors come in parts, and every one comes once in a step."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from grace.errors import NonFiniteError
from grace.flags.capturing import capturing
from grace.run.arrivals import Arrivals
from grace.run.elastic import Elastic
from grace.run.session import Session


class Steps:
    """Exchanges all tensors of a session in each step, as they come.

    Args:
        session: of this rank.
        absent: what a user can do about a tensor that did not come.
        counted: whether a step here is a step of training; if not, call ``session.count_step`` after each step of training.

    ``scale`` is the factor that tensors come with and means leave with: memories are in units without it. ``lr`` is the
    learning rate of the coming step, the same on all ranks, for memories that follow it. Set both before a step.
    ``elastic``: if set, what makes a step count on all workers or on none; see :meth:`grace.run.elastic.Elastic.vote`.
    """

    def __init__(
        self, session: Session, *, absent: str = "Give zeros where there is no gradient", counted: bool = True
    ):
        self.session, self._counted = session, counted
        self._arrivals = Arrivals(session, absent)
        self._spoiled = False  # all ranks have found an inf or NaN, and skip the rest of the step
        self.scale: float | Tensor = 1.0
        self.lr: float | None = None
        self.elastic: Elastic | None = None

    def step(
        self,
        tensors: Mapping[str, Tensor],
        *,
        last: bool = True,
        into: Mapping[str, Tensor] | None = None,
        flags: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Makes a step, or with ``last=False`` a part of one, such as a bucket: this worker's tensors -> the means.

        The tensors are donated, and exchanged in the order given, which is the same on all ranks. In one step every name comes
        once; a rank that has no gradient gives zeros. A tensor whose group is not complete waits for a later part, and is not
        in the answer.

        Args:
            tensors: by name.
            last: whether this ends the step.
            into: where means are copied to, by name; it may be the tensors themselves. Other means are handed out where they
                are, and stay valid until the next call.
            flags: ``[n]`` uint8 on the tensors' device, which travel with the last part, on all ranks or on none: each becomes
                1 if it is 1 on any rank. Where the rest of a step is skipped they stay.

        Raises:
            InputError: an unknown name, another shape or dtype, a name that comes twice or not at all.
            NonFiniteError: with ``nonfinite="error"``, on all ranks. The rest of the step is skipped; the next may go on. On
                an accelerator it comes two steps later.
            What :meth:`grace.run.session.Session.exchange` raises.
        """
        with self.session.turn():
            try:
                means = self._step(tensors, last, into or {}, flags)
            except NonFiniteError:  # all ranks raise it, in step
                self._spoiled = not last
                self._arrivals.clear()
                self._end(last)
                raise
            self._end(last)
            return means

    def _step(
        self, tensors: Mapping[str, Tensor], last: bool, into: Mapping[str, Tensor], flags: Tensor | None
    ) -> dict[str, Tensor]:
        if self._spoiled:
            self._spoiled = not last
            return {}
        ready = self._arrivals.add(tensors, into)
        if last:
            self._arrivals.check_complete()
        means = self.session.exchange_groups(
            ready, *self._arrivals.pop(ready), scale=self.scale, lr=self.lr, flags=flags
        )
        if last:
            self._arrivals.clear()
        return means

    def _end(self, last: bool) -> None:
        if last and self.elastic is not None:
            self.elastic.vote()
        elif last:
            self.session.advance()
            if self._counted and not capturing():
                self.session.count_step()

    def forget(self) -> None:
        """Discards the arrivals of a step that failed."""
        self._arrivals.clear()
        self._spoiled = False
