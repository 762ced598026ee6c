from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor


class TensorFlowRMSprop(torch.optim.Optimizer):
    """RMSProp with TensorFlow 1's rules.

    ``torch.optim.RMSprop`` differs in three ways: there the mean square starts at 0, here at 1; there epsilon is added
    to the root, here within it; there the momentum's buffer is without the learning rate, here with it.

    ::

        ms = decay ms + (1 - decay) g^2        mg = decay mg + (1 - decay) g, if centered, else 0
        buffer = momentum buffer + lr g / sqrt(ms - mg^2 + eps)
        p = p - buffer

    Args:
        params: parameters, or groups of them.
        lr: learning rate, > 0.
        decay: of the moving averages, 0 <= decay < 1.
        momentum: of the updates, 0 <= momentum < 1.
        eps: > 0.
        centered: divides by the deviation from the mean and not by the root mean square.
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float,
        *,
        decay: float = 0.9,
        momentum: float = 0.0,
        eps: float = 1e-10,
        centered: bool = False,
    ):
        super().__init__(params, {"lr": lr, "decay": decay, "momentum": momentum, "eps": eps, "centered": centered})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self._update(p, p.grad, group)
        return loss

    def _update(self, p: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state, decay = self.state[p], group["decay"]
        if not state:
            state["square"], state["buffer"] = torch.ones_like(p), torch.zeros_like(p)
            if group["centered"]:
                state["mean"] = torch.zeros_like(p)
        variance = state["square"].mul_(decay).addcmul_(gradient, gradient, value=1 - decay)
        if group["centered"]:
            mean = state["mean"].mul_(decay).add_(gradient, alpha=1 - decay)
            variance = torch.addcmul(variance, mean, mean, value=-1).clamp_(min=0)
        state["buffer"].mul_(group["momentum"]).addcdiv_(gradient, (variance + group["eps"]).sqrt_(), value=group["lr"])
        p.sub_(state["buffer"])
