"""Changes of the pace of steps and of exchanges: Page and Hinkley's test, in both directions."""

from __future__ import annotations

SETTLE = 4  # blocks of which the median is the reference
_SLACK, _LIMIT = 0.05, 0.5
EXCHANGES = 0.1  # of a step: where they take less, their pace says nothing
EXCHANGE_SLACK, EXCHANGE_LIMIT = 0.15, 0.6  # of their drift: codecs and waiting are in them


class Drift:
    """Takes medians of blocks of steps, each as a multiple of the reference.

    ``U = max(0, U + m / m0 - 1 - 0.05)``, and the same downwards; an alarm where one exceeds 0.5. With noise of 8 % and
    stalls, a change of 25 % is noticed after two blocks, one of 10 % after nine, and nothing in 32,000 steps without a change.

    Args:
        slack: what is no change, as a share of the reference. limit: of the sum of what exceeds it.
    """

    def __init__(self, slack: float = _SLACK, limit: float = _LIMIT) -> None:
        self._slack, self._limit = slack, limit
        self._first: list[int] = []
        self._up = self._down = 0.0

    @property
    def reference(self) -> int | None:
        """Nanoseconds; None: not settled yet."""
        return sorted(self._first)[(SETTLE - 1) // 2] if len(self._first) == SETTLE else None

    def alarm(self, median: int) -> bool:
        """Takes the median of the next block, in nanoseconds."""
        reference = self.reference
        if reference is None:
            self._first.append(median)
            return False
        excess = median / max(1, reference) - 1
        self._up = max(0.0, self._up + excess - self._slack)
        self._down = max(0.0, self._down - excess - self._slack)
        return max(self._up, self._down) > self._limit


class Pace:
    """Pace of steps and of their exchanges, by medians of blocks in nanoseconds."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Forgets the pace so far: new measurements are compared with each other."""
        self._steps, self._exchanges = Drift(), Drift(EXCHANGE_SLACK, EXCHANGE_LIMIT)

    def change(self, median: int, exchanges: int) -> tuple[str, bool] | None:
        """A change in words, and whether it is one of whole steps, of which all is then forgotten; None: there is none.
        ``exchanges``: of a step; 0: unknown.
        """
        reference, before = self._steps.reference, self._exchanges.reference
        if self._steps.alarm(median):
            words = f"steps take {median / 1e6:.1f} ms, and took {(reference or median) / 1e6:.1f}", True
        elif exchanges and max(exchanges, before or 0) >= EXCHANGES * median and self._exchanges.alarm(exchanges):
            took = (before or exchanges) / 1e6
            words = f"exchanges take {exchanges / 1e6:.1f} ms of a step, and took {took:.1f}", False
        else:
            return None
        self.forget()
        return words
