"""The settings of a syncer, and its totals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from grace.contract.knobs import Count, Positive, Range, check_knobs, name_owner
from grace.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class SyncerSettings:
    """The settings of a syncer.

    learners: M, how many there are at most. quorum: K, how many must have made H steps before a fragment is merged, 1 to M.
    lr, momentum: of the outer optimizer, SGD with Nesterov momentum. average: how directions are averaged: "radial", norms and
    directions apart, embeddings plainly, or "plain". margin: share of the slack that is waited for more learners than the
    quorum. timeout: seconds that are waited for the fragment of a learner while nobody knows how long that takes.
    forget_after: seconds after which a learner that is away is written off.

    Raises:
        ConfigurationError: a value out of range.
    """

    learners: Count
    quorum: int = 1
    lr: Positive = 0.7
    momentum: Annotated[float, Range(0, below=1)] = 0.9
    average: Literal["radial", "plain"] = "radial"
    margin: Annotated[float, Range(0, below=1)] = 0.5
    timeout: Positive = 10.0
    forget_after: Positive = 3600.0

    def __post_init__(self) -> None:
        check_knobs(self)
        if not 1 <= self.quorum <= self.learners:
            raise ConfigurationError(
                f"syncer: quorum={self.quorum} of learners={self.learners}: legal: 1 to {self.learners}; a quorum that "
                "cannot be there would never merge anything"
            )


name_owner(SyncerSettings, "syncer")


@dataclass(slots=True)
class SyncerStats:
    """Totals of a syncer.

    merges: of fragments. contributions: that came; late: those that came after their round, and count in the next; nonfinite:
    those that a learner did not send, for an inf or NaN; refused: messages that were not such as a learner sends. alone:
    merges of fewer than all learners that were there. joined, returned, left: learners that came for the first time, came
    back, and went. written_off: those that went for good, or came back without what they owed; written_off_debt: the norm of
    that. bytes_up, bytes_down: of the wires.
    """

    merges: int = 0
    contributions: int = 0
    late: int = 0
    nonfinite: int = 0
    refused: int = 0
    alone: int = 0
    joined: int = 0
    returned: int = 0
    left: int = 0
    written_off: int = 0
    written_off_debt: float = 0.0
    bytes_up: int = 0
    bytes_down: int = 0
