"""1-bit LAMB (Li et al., 2021): momenta of one bit in one buffer, and layer-wise learning rates that follow the variance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim.optimizer import ParamsT

from grace.collectives import Exchange
from grace.contract.method import Method
from grace.errors import out_of_range
from grace.optim.onebit_adam import OneBitAdam
from grace.optim.parts import divide, zeros
from grace.registry.policy import Policy
from grace.run.options import DEFAULTS, Options
from grace.transports.base import Transport

SMOOTH = 0.9  # of the average of a layer's coefficient before the freeze
COEFFICIENT = (0.01, 10.0)  # a layer's coefficient before the freeze
FACTOR, CHANGE = (0.5, 4.0), 0.1  # its factor after it, and how much that changes from step to step


class OneBitLamb(OneBitAdam):
    """LAMB whose momenta travel compressed once its variance is frozen.

    Before the freeze, for each parameter, on the mean gradient, uncompressed:

    ``update = m / (sqrt v + eps) + weight_decay x;  x -= lr c update`` with ``c = |x| / |update|`` within [0.01, 10]

    After it v and the average of c stay. Momenta of all parameters that are compressed travel as one tensor, each times the
    mean of all root mean squares at the freeze over its own. What arrives tells the mean gradient,
    ``g = (m_t - beta1 m_{t-1}) / (1 - beta1)``, of which a variance goes on in the background; c is the frozen one times

    ``factor = max of sqrt v / sqrt v_background``, within [0.5, 4] and 10 % of the last factor

    Where v is 0 at the freeze nothing moves but by weight decay, as under :class:`grace.optim.OneBitAdam`.

    Args:
        params: parameters, or groups of them, with names or without.
        lr: the learning rate, >= 0.
        betas: of the averages of gradients and of their squares, each in [0, 1).
        eps: is added to square roots of variances, >= 0.
        weight_decay: is part of the update, >= 0.
        freeze_step, method, group, transport, options: as for :class:`grace.optim.OneBitAdam`. Methods that see matrices,
            such as powersgd, cannot take one buffer; no DTensors: norms are of whole parameters.

    Raises:
        What :class:`grace.optim.OneBitAdam` raises. CompositionError: a method that needs the shape.

    Differs from the paper: where v is 0 nothing moves; the average of c begins at its first value. A parameter whose update
    is 0, or that is 0 itself, has c = 1, as in the authors' code. Small tensors and those of one dimension go beside the
    buffer, uncompressed, if the method is a bare one.

    Example:
        >>> model = torch.nn.Linear(64, 32)
        >>> optimizer = grace.optim.OneBitLamb(model.named_parameters(), lr=1e-3, freeze_step=100)
        >>> model(torch.randn(8, 64)).square().mean().backward()
        >>> optimizer.step()

    Reference:
        Li et al., "1-bit LAMB: Communication Efficient Large-Scale Large-Batch Training with LAMB's Convergence Speed", HiPC
        2022, arXiv 2104.06069, algorithm 1.
    """

    needs_whole = True

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        freeze_step: int | Literal["auto"] = "auto",
        method: Policy | Method[Any] | str | None = None,
        group: dist.ProcessGroup | None = None,
        transport: str | Transport | None = "auto",
        options: Options = DEFAULTS,
    ):
        if options.granularity == "bucket":
            raise out_of_range("OneBitLamb", "granularity", "bucket", "'model': all momenta are one tensor")
        super().__init__(
            params, lr, betas, eps, weight_decay, freeze_step=freeze_step, method=method, group=group, transport=transport,
            options=replace(options, granularity="model"),
        )  # fmt: skip

    def _begin(self, p: Tensor) -> dict[str, Tensor]:
        more = {
            "fresh_sq": zeros(p),  # the variance in the background
            **{key: torch.ones((), dtype=torch.float32, device=p.device) for key in ("coefficient", "factor", "weight")},
        }  # fmt: skip
        return {**super()._begin(p), **more}

    def _apply(self, p: Tensor, state: Mapping[str, Tensor], entry: Mapping[str, Any]) -> None:
        """Moves a parameter of any shape before the freeze."""
        update = divide(state["exp_avg"], state["exp_avg_sq"], entry["eps"]).add_(p, alpha=entry["weight_decay"])
        length, size = norm(update), norm(p)
        c = torch.where((length > 0) & (size > 0), (size / length).clamp(*COEFFICIENT), 1.0)
        smooth = SMOOTH if state["step"] > 1 else 0.0
        state["coefficient"].mul_(smooth).add_(c, alpha=1 - smooth)
        p.sub_(update.mul_(c), alpha=float(entry["lr"]))

    def _consider_freezing(self, step: int) -> Exchange[None]:
        yield from super()._consider_freezing(step)
        if self.freeze_step == step:
            self._weigh()

    def _weigh(self) -> None:
        """At the freeze: the weight of each momentum in the buffer, and where the variance in the background begins."""
        sizes = {name: float(norm(state["exp_avg"])) / max(1, p.numel()) ** 0.5 for name, p, _, state in self._each()}
        known = [size for size in sizes.values() if size > 0]
        for name, _, _, state in self._each():
            state["weight"].fill_(sum(known) / len(known) / sizes[name] if sizes[name] > 0 else 1.0)
            state["fresh_sq"].copy_(state["exp_avg_sq"])

    def _compressed_step(self, gradients: Mapping[str, Tensor | None]) -> Exchange[list[str]]:
        session, given = self.session, dict[str, Tensor]()
        for name, _, entry, state in self._each():
            m, v, beta1 = state["exp_avg"], state["exp_avg_sq"], entry["betas"][0]
            room = torch.mul(m, beta1, out=session.scratch_like(m))
            if (gradient := gradients[name]) is not None:
                room.add_(gradient, alpha=1 - beta1)
            given[name] = room.mul_(state["weight"]).masked_fill_(v == 0, 0.0)
        means = yield from session.exchanging(given, lr=float(self.param_groups[0]["lr"]))
        if bad := self._find_nonfinite(means):
            return bad
        for name, p, entry, state in self._each():
            m, v, fresh = state["exp_avg"], state["exp_avg_sq"], state["fresh_sq"]
            beta1, beta2 = entry["betas"]
            new = means[name].div_(state["weight"]).masked_fill_(v == 0, 0.0)
            g = new.sub(m, alpha=beta1).div_(1 - beta1)
            fresh.mul_(beta2).addcmul_(g, g, value=1 - beta2)
            m.copy_(new)
            state["step"] += 1
            state["factor"].copy_(limit(ratio(v, fresh, entry["eps"]), state["factor"]))
            update = divide(m, v, entry["eps"]).add_(p, alpha=entry["weight_decay"])
            p.sub_(update.mul_(state["coefficient"] * state["factor"]), alpha=float(entry["lr"]))
        return []


def ratio(v: Tensor, fresh: Tensor, eps: float) -> Tensor:
    """The largest ``(sqrt v + eps) / (sqrt fresh + eps)`` of tensors of any shape, where v is not 0; 1 if it is everywhere."""
    if not v.numel():
        return v.new_ones(())
    largest = torch.where(v > 0, (v.sqrt() + eps) / (fresh.sqrt() + eps), 0.0).max()
    return torch.where(largest > 0, largest, 1.0)


def limit(factor: Tensor, last: Tensor) -> Tensor:
    """A factor within its limits, and those of its change since the last; tensors of any shape, element by element.

    Example:
        >>> limit(torch.tensor(2.0), torch.tensor(1.0))
        tensor(1.1000)
    """
    return torch.minimum(torch.maximum(factor.clamp(*FACTOR), last * (1 - CHANGE)), last * (1 + CHANGE))


def norm(x: Tensor) -> Tensor:
    """The norm of a tensor of any shape, rounded to float32: sums in float64 in another order hardly ever change it."""
    length: Tensor = torch.linalg.vector_norm(x, dtype=torch.float64)
    return length.float()
