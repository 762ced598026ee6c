"""Settings of bits or ratios that follow each layer's gradients: :meth:`grace.Policy.adaptive`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from grace.contract.knobs import Count, Positive, check_knobs, name_owner
from grace.errors import ConfigurationError, one_of

KNOBS: dict[str, tuple[str, tuple[float, ...]]] = {
    "qsgd": ("bits", (2, 3, 4, 5, 6, 8)),
    "topk": ("ratio", (0.001, 0.003, 0.01, 0.03, 0.1)),
    "powersgd": ("rank", (1, 2, 4, 8)),
}  # of each method, the knob that follows the layer, and its values, the fewest bytes first


@dataclass(frozen=True)
class Adaptive:
    """In place of a method: the same one for all layers, with bits, ratio or rank of each under one budget.

    Args:
        method: "qsgd", whose bits follow the layer; "topk", its ratio; or "powersgd", its rank.
        budget: bits of a wire for each number of the tensors that it covers, > 0.
        every: steps from one choice to the next, >= 1.
        how: "program", the best whole choices; or "filling", the real-valued optimum rounded down, which is cheaper to find.

    Raises:
        ConfigurationError: another method, or a knob out of range.
    """

    method: str = "qsgd"
    budget: Positive = 4.0
    every: Count = 1000
    how: Literal["program", "filling"] = "program"

    def __post_init__(self) -> None:
        check_knobs(self)
        if self.method not in KNOBS:
            raise ConfigurationError(f"adaptive: method={self.method!r}; legal: {one_of(KNOBS)}")

    @property
    def choices(self) -> tuple[str, ...]:
        """The methods that a layer may get, the fewest bytes first."""
        knob, values = KNOBS[self.method]
        return tuple(f"{self.method}:{knob}={value:g}" for value in values)


name_owner(Adaptive, "adaptive")
