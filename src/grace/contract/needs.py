"""Requirements of a method on the optimizer that uses its means. Most need nothing: what they send replaces the gradient."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Needs:
    """Requirements of a method, or of a layer of one, for the optimizer. Those of several layers add up: ``a | b``.

    Args:
        momentum: whether the optimizer may have a momentum of its own.
        averages: whether it may be one that averages gradients and scales them by their size, as Adam does.
        lr_scale: the factor for a learning rate that suits SGD without compression, > 0.
        max_lr: the largest learning rate that can make sense where the optimizer takes steps of the learning rate times
            what was exchanged, as SGD does, and Adam does not; infinite: any.
        why: the reason, as a clause: "the update is the sign of a vote".

    Example:
        >>> print(Needs(momentum=False, lr_scale=0.02, why="votes have no size"))
        momentum 0, learning rate x 0.02
        >>> bool(Needs())
        False
    """

    momentum: bool = True
    averages: bool = True
    lr_scale: float = 1.0
    max_lr: float = math.inf
    why: str = ""

    def __bool__(self) -> bool:
        return not self.momentum or not self.averages or self.lr_scale != 1 or self.max_lr < math.inf

    def __or__(self, other: Needs) -> Needs:
        """Combine the needs of both."""
        reasons = dict.fromkeys(why for text in (self.why, other.why) for why in text.split("; ") if why)
        return Needs(
            self.momentum and other.momentum,
            self.averages and other.averages,
            min(self.lr_scale, other.lr_scale),
            min(self.max_lr, other.max_lr),
            "; ".join(reasons),
        )

    def __str__(self) -> str:
        """In a few words; empty if it needs nothing."""
        parts = [] if self.momentum else ["momentum 0"]
        parts += [] if self.averages else ["SGD"]
        parts += [] if self.lr_scale == 1 else [f"learning rate x {self.lr_scale:g}"]
        return ", ".join(parts)


NOTHING = Needs()

# An SGD step of +-1 for each element is 50 to 100 times a gradient's on the tasks of the suite; momentum would add votes up.
VOTES = Needs(
    momentum=False,
    lr_scale=0.02,
    max_lr=0.01,
    why="the update is the sign of a vote, +-1 for each element, whatever the gradient's size",
)
ACCUMULATES = Needs(
    momentum=False,
    averages=False,
    why="its memory takes the place of momentum, and a second one would count it twice",
)
LAGS = Needs(
    momentum=False, why="what is applied lags behind the gradient, and momentum multiplies the lag until it diverges"
)
AVERAGES = Needs(momentum=False, why="what it exchanges is a momentum already")
