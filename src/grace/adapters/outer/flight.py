"""An exchange of pseudo-gradients, from its start to the step that applies it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from grace.errors import GraceError


@dataclass(slots=True)
class Flight:
    """An exchange that runs, or has run, in a lane.

    names: of what is exchanged. fragment: the one that it is; None: the whole window ends. counted: non-finite tensors before.
    means: over the ranks, once they have come. error: what has ended it instead.
    """

    names: tuple[str, ...]
    fragment: int | None
    counted: int
    means: Mapping[str, Tensor] = field(default_factory=dict)
    error: BaseException | None = None

    def run(self, exchange: Callable[[], Mapping[str, Tensor]]) -> None:
        """Gets the means. To be done in a lane: it raises nothing."""
        try:
            self.means = exchange()
        except BaseException as error:
            self.error = error

    def abandon(self) -> None:
        """Says, of an exchange that has not ended, that nobody waits for it any longer."""
        if not self.means and self.error is None:
            self.error = GraceError("the loop was detached before its exchange in flight had ended: that mean is lost")
