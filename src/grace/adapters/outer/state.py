"""The shared copy of an outer loop, and its outer optimizer: the same bits on all ranks."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from grace.adapters.outer.presets import OuterSettings


class OuterState:
    """theta, the shared copy of the parameters, and b, the outer momentum: by name, of the shapes of the parameters, float32
    or wider.

    Args:
        parameters: of this rank, by name.
        settings: ``lr``, ``momentum`` and ``nesterov`` of them.
        offload: whether both are kept in the memory of the host.
    """

    def __init__(self, parameters: Mapping[str, Tensor], settings: OuterSettings, offload: bool = False):
        self._settings, self._offload = settings, offload
        self.theta = {name: self._make(p) for name, p in parameters.items()}
        self.momentum = {name: self._make(p).zero_() for name, p in parameters.items()} if settings.momentum else {}

    def _make(self, p: Tensor) -> Tensor:
        dtype = torch.promote_types(p.dtype, torch.float32)
        if not self._offload:
            return torch.empty(p.shape, dtype=dtype, device=p.device)
        return torch.empty(
            p.shape, dtype=dtype, device="cpu", pin_memory=p.is_cuda
        )  # pinned: copied at the link's speed

    def tensors(self) -> list[Tensor]:
        """All of them, in an order that the ranks share."""
        return [*self.theta.values(), *self.momentum.values()]

    @property
    def held(self) -> dict[str, dict[str, Tensor]]:
        """By the names that they have in a checkpoint: theta, and the momentum if there is one."""
        return {"reference": self.theta, "momentum": self.momentum} if self.momentum else {"reference": self.theta}

    def begin(self, parameters: Mapping[str, Tensor]) -> None:
        """Put theta where these parameters, of any shapes, are, which are the same on all ranks."""
        for name, p in parameters.items():
            self.theta[name].copy_(p.detach())

    def delta(self, name: str, p: Tensor, out: Tensor) -> Tensor:
        """The pseudo-gradient of a replica p, of any shape, into ``out``: theta, rounded as p is, minus p. So moves that are
        smaller than a rounding of the parameter add up in theta.
        """
        theta = self.theta[name].to(p.device)
        start = theta if theta.dtype == p.dtype else theta.to(p.dtype).to(theta.dtype)
        return torch.sub(start, p, out=out)

    def step(self, name: str, d: Tensor) -> bool:
        """Makes a step of the outer optimizer, SGD as torch has it, with d, the mean pseudo-gradient, of any shape:

        ``b = momentum b + d;  theta -= lr (d + momentum b)``, without Nesterov's ``theta -= lr b``.

        Returns:
            Whether it was made. Where a number would not be finite all stays as it was.
        """
        theta, mu = self.theta[name], self._settings.momentum
        d = d.to(theta.device)
        b = self.momentum[name].mul(mu).add_(d) if mu else d
        move = d.add(b, alpha=mu) if mu and self._settings.nesterov else b
        moved = theta.sub(move, alpha=self._settings.lr)
        if not bool(moved.isfinite().all()):
            return False
        theta.copy_(moved)
        if mu:
            self.momentum[name].copy_(b)
        return True

    def write(self, name: str, p: Tensor, keep: float = 0.0) -> None:
        """The replica p, of any shape, becomes ``keep p + (1 - keep) theta``, computed as wide as theta."""
        theta = self.theta[name]
        p.copy_(torch.lerp(theta.to(p.device), p.to(theta.dtype), keep) if keep else theta)
