"""1-bit Adam (Tang et al., ICML 2021): momenta of one bit a number, once the variance has settled."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim.optimizer import ParamsT

from grace.collectives import AllReduce, Exchange
from grace.contract.method import Method
from grace.errors import OptimizerWarning, out_of_range, stack_level
from grace.optim.base import CompressedOptimizer
from grace.optim.parts import divide, local, zeros
from grace.registry.policy import Policy
from grace.run.options import DEFAULTS, Options
from grace.transports.base import Transport

ONE_BIT = "efsignsgd:communicator=scatterreduce,server_memory=true"  # a bit both ways, with a memory at either end
SETTLED = 0.96  # of the paper's rule


class OneBitAdam(CompressedOptimizer):
    """Adam whose momenta travel compressed once its variance is frozen.

    In the first ``freeze_step`` steps it is Adam on the mean gradient, uncompressed. Then v stays as it is, and in each step

    ``m_i = beta1 m + (1 - beta1) g_i;  m = compressed mean of m_i;  x -= lr (m / (sqrt v + eps) + weight_decay x)``

    with a memory of each rank for what it did not send, and with the default method one at each server, too.
    Where v is 0 at the freeze, no gradient has ever come: nothing moves there from then on but by weight decay. Such numbers
    of m_i are given to the method as zeros, and what it makes of them is dropped, so that no rounding reaches rows of an
    embedding that nobody uses.

    Args:
        params: parameters, or groups of them: ``model.named_parameters()``, so that policies can choose by name, or
            ``model.parameters()``. It starts with rank 0's on all ranks.
        lr: the learning rate, >= 0; schedulers may change it.
        betas: of the averages of gradients and of their squares, each in [0, 1).
        eps: is added to the square root of v, >= 0.
        weight_decay: decoupled, as AdamW's, >= 0.
        bias_correction: whether m and v are corrected as in torch's Adam. The paper's equations do without; then begin with a
            warm-up of the learning rate.
        freeze_step: after how many steps v is frozen, >= 1; or "auto", the paper's rule, looked at every 1/(1 - beta2) steps
            with the largest beta2 of the groups: once the sum of v is at least 0.96 of what it was when last looked at, and
            the learning rate has not risen since. Sums are of v corrected for its start at 0, and are averaged over the
            ranks, so that all freeze in the same step.
        method: for the momenta: a method, the string that makes it, or a policy; None: one bit both ways. As everywhere, a
            bare method leaves tensors of one dimension, and small ones, uncompressed.
        group: the ranks that train together; by default all. For DTensors those that have the same shard.
        transport: between the ranks, in place of a group: an object, or a name as for :func:`grace.transport`.
        options: seed, checks and what a step that is not finite does: see :class:`grace.run.options.Options`.

    Raises:
        ConfigurationError: a hyperparameter out of range, parameters that DistributedDataParallel or another optimizer of
            Grace exchanges, or a method that cannot work.
        InputError: a complex or otherwise unsuitable parameter, by name.
        FingerprintMismatch: ranks that differ, on every rank.

    Warns (rank 0):
        OptimizerWarning: parameters that had no gradient before the freeze; they will not move.

    Differs from the paper: where v is 0 nothing moves; weight decay is decoupled; a step that is not finite does not count.

    Example:
        >>> model = torch.nn.Linear(64, 32)
        >>> optimizer = grace.optim.OneBitAdam(model.named_parameters(), lr=1e-3, freeze_step=100)
        >>> model(torch.randn(8, 64)).square().mean().backward()
        >>> optimizer.step()
        >>> optimizer.frozen, optimizer.steps
        (False, 1)

    Reference:
        Tang et al., "1-bit Adam: Communication Efficient Large-Scale Training with Adam's Convergence Speed", ICML 2021, arXiv
        2102.02888, algorithm 1.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        bias_correction: bool = False,
        freeze_step: int | Literal["auto"] = "auto",
        method: Policy | Method[Any] | str | None = None,
        group: dist.ProcessGroup | None = None,
        transport: str | Transport | None = "auto",
        options: Options = DEFAULTS,
    ):
        whole = type(freeze_step) is int and freeze_step >= 1
        if not (whole or freeze_step == "auto"):
            raise out_of_range(type(self).__name__, "freeze_step", freeze_step, "a whole number >= 1, or 'auto'")
        self.freeze_step: int | None = freeze_step if isinstance(freeze_step, int) else None
        self.bias_correction = bias_correction
        self._seen: tuple[float, float] | None = None  # the sum of v and the learning rate, when the rule last looked
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(
            params, defaults, ONE_BIT if method is None else method, group=group, transport=transport, options=options,
            knobs={"freeze_step": freeze_step, "bias_correction": bias_correction},
        )  # fmt: skip

    @property
    def frozen(self) -> bool:
        """True once the variance stays as it is, and momenta are compressed."""
        return self.freeze_step is not None and self.steps >= self.freeze_step

    def _begin(self, p: Tensor) -> dict[str, Tensor]:
        return {"step": torch.zeros((), dtype=torch.float32, device="cpu"), "exp_avg": zeros(p), "exp_avg_sq": zeros(p)}

    def _update(self, gradients: Mapping[str, Tensor | None]) -> Exchange[list[str]]:
        if self.frozen:
            return (yield from self._compressed_step(gradients))
        means = yield from self._average(gradients)
        if bad := self._find_nonfinite(means):
            return bad
        for name, p, entry, state in self._each():
            if (mean := means.get(name)) is None:
                continue
            m, v, (beta1, beta2) = local(state["exp_avg"]), local(state["exp_avg_sq"]), entry["betas"]
            state["step"] += 1
            m.lerp_(mean, 1 - beta1)
            v.mul_(beta2).addcmul_(mean, mean, value=1 - beta2)
            self._apply(p, state, entry)
        yield from self._consider_freezing(self.steps + 1)
        return []

    def _compressed_step(self, gradients: Mapping[str, Tensor | None]) -> Exchange[list[str]]:
        session, given = self.session, dict[str, Tensor]()
        for name, _, entry, state in self._each():
            m, v, beta1 = local(state["exp_avg"]), local(state["exp_avg_sq"]), entry["betas"][0]
            given[name] = torch.mul(m, beta1, out=session.scratch_like(m))
            if (gradient := gradients[name]) is not None:
                given[name].add_(gradient, alpha=1 - beta1)
            given[name].masked_fill_(v == 0, 0.0)
        means = yield from session.exchanging(given, lr=float(self.param_groups[0]["lr"]))
        if bad := self._find_nonfinite(means):
            return bad
        for name, p, entry, state in self._each():
            m, v = local(state["exp_avg"]), local(state["exp_avg_sq"])
            m.copy_(means[name]).masked_fill_(v == 0, 0.0)
            state["step"] += 1
            self._apply(p, state, entry)
        return []

    def _apply(self, p: Tensor, state: Mapping[str, Tensor], entry: Mapping[str, Any]) -> None:
        """Moves a parameter of any shape, whose state is that of this step."""
        m, v, step = local(state["exp_avg"]), local(state["exp_avg_sq"]), float(state["step"])
        lr, eps = float(entry["lr"]), entry["eps"]
        rate = lr
        if self.bias_correction:  # m / (sqrt (v / c) + eps) = sqrt c m / (sqrt v + sqrt c eps)
            beta1, beta2 = entry["betas"]
            frozen = 0 if self.freeze_step is None else max(0, self.steps + 1 - self.freeze_step)  # steps that v stayed
            root = math.sqrt(1 - beta2 ** (step - frozen))
            rate, eps = lr * root / (1 - beta1**step), eps * root
        if entry["weight_decay"]:
            p.mul_(1 - lr * entry["weight_decay"])
        p.add_(divide(m, v, eps), alpha=-rate)

    # ---- the freeze -------------------------------------------------------------------------------------------------
    def _consider_freezing(self, step: int) -> Exchange[None]:
        """Freezes v after the ``step``-th step, if it is time. Under "auto" all ranks decide by the same number."""
        if self.freeze_step is None:
            beta2 = max(entry["betas"][1] for entry in self.param_groups)
            span = max(1, round(1 / (1 - beta2)))
            if step % span == 0:
                yield from self._look(step, 1 - beta2**step)
        if self.freeze_step == step:
            self._warn_of_unmoved()

    def _look(self, step: int, corrected: float) -> Exchange[None]:
        totals = [self.state[p]["exp_avg_sq"].sum(dtype=torch.float64) for p in self._names]
        whole = [x.full_tensor() if hasattr(x, "full_tensor") else x for x in totals]
        local_sum = torch.stack(whole).sum().reshape(1)
        total = float((yield AllReduce(local_sum, "mean"))[0]) / corrected
        rate = max(float(entry["lr"]) for entry in self.param_groups)
        if self._seen is not None and total >= SETTLED * self._seen[0] and rate <= self._seen[1]:
            self.freeze_step = step
        self._seen = total, rate

    def _warn_of_unmoved(self) -> None:
        still = [name for name, p, _, state in self._each() if p.numel() and not bool(local(state["exp_avg_sq"]).any())]
        if still and self.session.rank == 0:
            warnings.warn(
                f"{', '.join(map(repr, still[:5]))}{', ...' if len(still) > 5 else ''} had no gradient in the first "
                f"{self.freeze_step} steps: v is frozen at 0, and they will not move. Freeze later, or leave them out",
                OptimizerWarning,
                stacklevel=stack_level(),
            )

    # ---- state ------------------------------------------------------------------------------------------------------
    def _counters(self) -> dict[str, Any]:
        return {**super()._counters(), "freeze_step": self.freeze_step, "seen": self._seen}

    def _set_counters(self, counters: Mapping[str, Any]) -> None:
        super()._set_counters(counters)
        self.freeze_step, self._seen = counters["freeze_step"], counters["seen"]
