"""What the handles of all adapters offer alike."""

from __future__ import annotations

from typing import Any

from grace.method import Method
from grace.policy import Policy
from grace.run.exchanger import Exchanger
from grace.run.stats import Stats


class BaseHandle:
    """Grace at work on one model: an :class:`~grace.run.exchanger.Exchanger`, and what a user asks of it. To derive from.

    ``rank``, ``world``: who this is. All ranks call the methods alike.
    """

    def __init__(self, exchanger: Exchanger):
        self._exchanger = exchanger
        self.rank, self.world = exchanger.rank, exchanger.world

    @property
    def stats(self) -> Stats:
        """What it has cost so far."""
        return self._exchanger.stats

    @property
    def error(self) -> BaseException | None:
        """What has ended the exchange; None while it goes on."""
        return self._exchanger.error

    @property
    def lr(self) -> float | None:
        """The learning rate of the coming step, the same on all ranks, for memories that follow it. Set it before each
        step, where nothing else does.
        """
        return self._exchanger.lr

    @lr.setter
    def lr(self, lr: float | None) -> None:
        self._exchanger.lr = lr

    def switch(self, method: Policy | Method[Any] | str) -> None:
        """From the next step on another method or policy. What memories owe is added to what is exchanged next.

        Raises:
            FingerprintMismatch: the ranks switch to different methods; they go on as before then.
            GraceError: the handle is detached.
        """
        self._exchanger.switch(method)

    def state_dict(self) -> dict[str, Any]:
        """What the next step depends on. Each rank saves and loads its own."""
        return self._exchanger.state_dict()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} rank {self.rank} of {self.world}: {self._exchanger.policy}>"
