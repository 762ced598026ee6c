"""Parameters that no rank has used in a step: they keep None as their gradient, and what was exchanged for them is dropped.

Each rank says of which parameters it has a gradient, in flags that travel with the last bucket of the step. Whoever has all
gradients knows that no parameter is unused, and never looks at the answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from grace.errors import out_of_range
from grace.flags.capturing import capturing

UnusedGradient: TypeAlias = Literal["none", "zeros"]


class Unused:
    """Parameters that no rank has used, step by step.

    Args:
        parameters: of any shapes, by name; the same names in the same order on all ranks.
        gives: the gradient of such a parameter: None ("none"), or the mean of all ranks' zeros ("zeros"), which asks nobody.

    Raises:
        ConfigurationError: ``gives`` is something else.
    """

    def __init__(self, parameters: Mapping[str, Tensor], gives: UnusedGradient):
        if gives not in get_args(UnusedGradient):
            raise out_of_range("DistributedOptimizer", "unused", gives, "'none' or 'zeros'")
        self._parameters, self._asks = parameters, gives == "none"
        self.begin()

    def begin(self) -> None:
        """A step begins."""
        self._lacking: set[str] = set()
        self._flags: Tensor | None = None

    def lack(self, name: str) -> None:
        """Notes that this rank has no gradient of this parameter."""
        self._lacking.add(name)

    def flags(self) -> Tensor | None:
        """Flags of this rank, ``[n]`` uint8: 1 where it has a gradient; None: nobody is asked. The last bucket,
        with which they travel, makes each of them 1 that is 1 on any rank.
        """
        if not self._asks or capturing():  # a captured step would ask the host
            return None
        device = next(iter(self._parameters.values())).device
        self._flags = torch.ones(len(self._parameters), dtype=torch.uint8, device=device)
        if self._lacking:
            self._flags[[place for place, name in enumerate(self._parameters) if name in self._lacking]] = 0
        return self._flags

    def find(self, agreed: bool) -> list[str]:
        """The parameters whose gradient is to be None after this step, the same on all ranks. ``agreed``: whether the last
        bucket was exchanged. Where nobody was asked, those that are frozen.
        """
        if not self._lacking:
            return []
        if self._flags is None or not agreed:
            return list(self._frozen(self._lacking))
        return [name for name, used in zip(self._parameters, self._flags.tolist(), strict=True) if not used]

    def _frozen(self, names: Iterable[str]) -> Iterable[str]:
        return (name for name in names if not self._parameters[name].requires_grad)
