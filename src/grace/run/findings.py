"""Non-finite tensors found by steps, and the reaction to them: at once where the host knows, else when the step after the
next one begins.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from grace.contract.method import Exchanged
from grace.errors import NonFiniteError
from grace.flags.finite import and_, fill_unless_
from grace.flags.pending import PendingFlags
from grace.kernels.finite import all_finite
from grace.run.debts import Debts
from grace.run.options import NonFinite


class Findings:
    """Findings of one worker. A debt that was added to a tensor is paid once the tensor's mean has turned out to be finite.

    Attributes:
        seen: tensors and steps in which some rank saw an inf or NaN; on an accelerator without those of the last two steps.
        pending: what an accelerator has found, and the host has not read yet.
    """

    def __init__(self, nonfinite: NonFinite):
        self._nonfinite, self.seen, self.pending = nonfinite, 0, PendingFlags()

    def act(self, step: int, results: Mapping[str, Exchanged[Any]], owed: Debts) -> None:
        """Acts on whether the results of this step are finite, as far as the host knows.

        Raises:
            NonFiniteError: one is not, under ``nonfinite="error"``.
        """
        bad = []
        easy = not owed and self._nonfinite == "propagate"
        for name, out in results.items():
            finite = out.finite
            if easy and finite is True:
                continue
            if not easy and (self._nonfinite != "propagate" or name in owed):
                finite = and_(finite, all_finite(out.mean))
            if self._nonfinite == "skip":
                fill_unless_(finite, out.mean, 0.0)
            if isinstance(finite, Tensor):
                self.pending.flags.append((step, name, finite))
                if name in owed:
                    self.pending.owing.add(name)
            elif finite:
                owed.pay(name)
            else:
                bad.append(name)
        self._count(step, bad)

    def read(self, owed: Debts) -> None:
        """Acts on what an accelerator found in the steps before the last one, so that all ranks hear of it in the same step;
        debts are paid at once, for which the host waits.

        Raises:
            NonFiniteError: as :meth:`act`. PayloadError: the network brought something illegal.
        """
        if owed.left:
            self._pay(owed)
        self._hear(1)

    def _pay(self, owed: Debts) -> None:
        for name in self.pending.take_paid():
            owed.pay(name)

    def _hear(self, leave: int) -> None:
        """Acts on all steps that have ended but the last ``leave``. After an error the next ones are still to be heard."""
        while self.pending.ended > leave:
            bad: dict[int, list[str]] = {}
            for step, name, finite in self.pending.read():
                if not finite:
                    bad.setdefault(step, []).append(name)
            for step, names in bad.items():
                self._count(step, names)

    def wait(self, owed: Debts) -> None:
        """As :meth:`read`, and waits for what an accelerator has found so far."""
        self.pending.send()
        if owed.left:
            self._pay(owed)
        self._hear(0)

    def forget(self) -> None:
        """Discards the findings so far."""
        self.pending = PendingFlags()

    def _count(self, step: int, bad: list[str]) -> None:
        """Counts the tensors of a step that were not finite."""
        self.seen += len(bad)
        if bad and self._nonfinite == "error":
            where = ", ".join(map(repr, bad))
            raise NonFiniteError(f"step {step}: an inf or NaN in the gradients of {where}", bad)
