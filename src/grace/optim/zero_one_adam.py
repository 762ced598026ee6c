"""0/1 Adam (Lu et al., ICLR 2023): gradients of one bit while the variance forms, then local steps between exchanges."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim.optimizer import ParamsT

from grace.collectives import Exchange
from grace.contract.knobs import Count, check_value
from grace.contract.method import Method
from grace.errors import StateError
from grace.optim.base import CompressedOptimizer
from grace.optim.onebit_adam import ONE_BIT
from grace.optim.parts import divide, local, zeros
from grace.registry.policy import Policy
from grace.run.checkpoint import Memories
from grace.run.options import DEFAULTS, Options
from grace.transports.base import Transport


class ZeroOneAdam(CompressedOptimizer):
    """Adam whose variance is refreshed ever more rarely, and whose ranks then make steps of their own between exchanges.

    In the first ``freeze_step`` steps v and m take the mean gradient, uncompressed, at steps 0, 1, 2, ... whose distance
    doubles after every ``kappa`` of them; at all other steps only m takes a mean, of compressed gradients. After that v stays,
    and each rank steps alone, ``u_i`` being the sum of its ``lr m_i``:

    ``m_i = beta1 m_i + (1 - beta1) g_i;  u_i += lr m_i;  x_i = x_sync - u_i / (sqrt v + eps)``

    At the end of a window of k steps the ranks exchange u, compressed, and are equal again:

    ``m = mean of u_i / (sum of lr);  x_sync -= mean of u_i / (sqrt v + eps);  u_i = 0``

    k doubles every ``double_every`` steps, up to ``max_interval``. Memories start afresh where u takes the place of gradients.
    Where v is 0 nothing moves but by weight decay, as under :class:`grace.optim.OneBitAdam`.

    Args:
        params: parameters, or groups of them, with names or without.
        lr: the learning rate, >= 0.
        betas: of the averages of gradients and of their squares, each in [0, 1).
        eps: is added to the square root of v, >= 0.
        weight_decay: decoupled, >= 0; within a window it acts on x_sync.
        freeze_step: after how many steps local ones begin, >= 1.
        kappa: refreshes of v before their distance doubles, >= 1.
        double_every: local steps before the window doubles, >= 1.
        max_interval: the most steps of a window, >= 1.
        method: for gradients and for u, as for :class:`grace.optim.OneBitAdam`.
        group, transport, options: as there.

    Raises:
        What :class:`grace.optim.OneBitAdam` raises.

    Within a window replicas differ: call :meth:`sync` on all ranks before an evaluation. A window in which some rank's u is
    not finite is dropped by all of them, and its last step does not count: they go on from x_sync, with m = 0.

    Differs from the paper: where v is 0 nothing moves; weight decay is decoupled.

    Example:
        >>> model = torch.nn.Linear(64, 32)
        >>> optimizer = grace.optim.ZeroOneAdam(model.named_parameters(), freeze_step=100)
        >>> model(torch.randn(8, 64)).square().mean().backward()
        >>> optimizer.step()
        >>> optimizer.synchronized
        True

    Reference:
        Lu et al., "Maximizing Communication Efficiency for Large-scale Training via 0/1 Adam", ICLR 2023, arXiv 2202.06009,
        algorithm 1.
    """

    passing = frozenset({"u", "x_sync"})  # since the first local step

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        freeze_step: int,
        kappa: int = 16,
        double_every: int = 32678,
        max_interval: int = 16,
        method: Policy | Method[Any] | str | None = None,
        group: dist.ProcessGroup | None = None,
        transport: str | Transport | None = "auto",
        options: Options = DEFAULTS,
    ):
        knobs = {
            "freeze_step": freeze_step, "kappa": kappa, "double_every": double_every, "max_interval": max_interval,
        }  # fmt: skip
        for knob, value in knobs.items():
            check_value("ZeroOneAdam", knob, value, Count)
        self.freeze_step, self.kappa, self.double_every, self.max_interval = knobs.values()
        self._taken, self._rates = 0, [0.0]  # steps of the window, and by group the sum of their learning rates
        self._refresh, self._refreshes = 0, 0  # the step of the next refresh of v, and how many there were
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(
            params, defaults, ONE_BIT if method is None else method, group=group, transport=transport, options=options,
            knobs=knobs,
        )  # fmt: skip
        self._rates = [0.0] * len(self.param_groups)

    @property
    def synchronized(self) -> bool:
        """True if all replicas are the same: not within a window."""
        return self._taken == 0

    @property
    def interval(self) -> int:
        """Steps of the window that is under way, or begins."""
        begun = max(0, self.steps - self._taken - self.freeze_step)
        return min(self.max_interval, 1 << min(begun // self.double_every, 62))

    def _begin(self, p: Tensor) -> dict[str, Tensor]:
        return {"exp_avg": zeros(p), "exp_avg_sq": zeros(p)}

    def _update(self, gradients: Mapping[str, Tensor | None]) -> Exchange[list[str]]:
        if self.steps >= self.freeze_step:
            return (yield from self._local_step(gradients))
        refreshes = self.steps == self._refresh
        if refreshes:
            means = yield from self._average(gradients)
        else:
            given = self._lend(gradients)
            for name, _, _, state in self._each():
                given[name].masked_fill_(local(state["exp_avg_sq"]) == 0, 0.0)
            means = yield from self.session.exchanging(given, lr=float(self.param_groups[0]["lr"]))
        if bad := self._find_nonfinite(means):
            return bad
        for name, p, entry, state in self._each():
            if (mean := means.get(name)) is None:
                continue
            m, v, (beta1, beta2) = local(state["exp_avg"]), local(state["exp_avg_sq"]), entry["betas"]
            if refreshes:
                v.mul_(beta2).addcmul_(mean, mean, value=1 - beta2)
            m.lerp_(mean, 1 - beta1).masked_fill_(v == 0, 0.0)
            lr = float(entry["lr"])
            p.mul_(1 - lr * entry["weight_decay"]).sub_(divide(m, v, entry["eps"]), alpha=lr)
        if refreshes:
            self._refresh += 1 << (self._refreshes // self.kappa)
            self._refreshes += 1
        return []

    # ---- local steps ------------------------------------------------------------------------------------------------
    def _local_step(self, gradients: Mapping[str, Tensor | None]) -> Exchange[list[str]]:
        if self.steps == self.freeze_step:
            self.session.worker.take_debts()  # they are in units of gradients
        interval, rates = self.interval, {id(entry): float(entry["lr"]) for entry in self.param_groups}
        for name, p, entry, state in self._each():
            self._begin_window(p, state)
            m, v, beta1 = local(state["exp_avg"]), local(state["exp_avg_sq"]), entry["betas"][0]
            m.mul_(beta1)
            if (gradient := gradients[name]) is not None:
                m.add_(gradient, alpha=1 - beta1)
            m.masked_fill_(v == 0, 0.0)
            sync, u = local(state["x_sync"]), local(state["u"])
            u.add_(m, alpha=rates[id(entry)])
            sync.mul_(1 - rates[id(entry)] * entry["weight_decay"])
            p.copy_(sync - divide(u, v, entry["eps"]))
        self._taken += 1
        self._rates = [total + rates[id(entry)] for total, entry in zip(self._rates, self.param_groups, strict=True)]
        return (yield from self._end_window()) if self._taken >= interval else []

    def _begin_window(self, p: Tensor, state: dict[str, Any]) -> None:
        """Notes where the replicas are the same, unless they differ."""
        fresh = "u" not in state
        if fresh:
            state["u"], state["x_sync"] = torch.zeros_like(state["exp_avg"]), torch.zeros_like(state["exp_avg"])
        if self.synchronized and (fresh or p.dtype == state["x_sync"].dtype):  # a narrow parameter is a rounding of it
            local(state["x_sync"]).copy_(p)

    def _end_window(self) -> Exchange[list[str]]:
        moved = {name: local(state["u"]) for name, _, _, state in self._each()}
        means = yield from self.session.exchanging(self._lend(moved), lr=1.0)
        bad = self._find_nonfinite(means)
        totals = {id(entry): total for entry, total in zip(self.param_groups, self._rates, strict=True)}
        for name, p, entry, state in self._each():
            m, v, sync = (local(state[key]) for key in ("exp_avg", "exp_avg_sq", "x_sync"))
            local(state["u"]).zero_()
            if bad:
                m.zero_()
            else:
                u, total = means[name].masked_fill_(v == 0, 0.0), totals[id(entry)]
                m.copy_(u).div_(total) if total else m.zero_()  # u is what memories owed, where the learning rate was 0
                sync.sub_(divide(u, v, entry["eps"]))
            p.copy_(sync)
        self._taken, self._rates = 0, [0.0] * len(self.param_groups)
        return bad

    def sync(self) -> None:
        """Ends the window now, on all ranks, for instance before an evaluation. Does nothing between windows.

        Raises:
            TransportError: the exchange failed; the session has ended.
        """
        if not self.synchronized:
            self.session.run(self.synchronizing(), counted=True)

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        """A context in which the parameters are x_sync, to evaluate or save them; local steps go on after it."""
        held = [] if self.synchronized else [(p, p.clone(), local(state["x_sync"])) for _, p, _, state in self._each()]
        for p, _, sync in held:
            p.copy_(sync)
        try:
            yield
        finally:
            for p, own, _ in held:
                p.copy_(own)

    @torch.no_grad()
    def synchronizing(self) -> Exchange[None]:
        """:meth:`sync` as a generator of collectives, as :meth:`exchanging` is a step."""
        seen, worker = self.session.stats.nonfinite, self.session.worker
        if bad := (yield from self._end_window()):
            worker.abandon()
            self.session.stats.nonfinite = seen + len(bad)
        else:
            worker.commit()

    def _replicated(self) -> Iterator[Tensor]:
        if self.synchronized:
            return super()._replicated()
        return (local(state["x_sync"]) for _, _, _, state in self._each())

    # ---- state ------------------------------------------------------------------------------------------------------
    def _counters(self) -> dict[str, Any]:
        more = {"taken": self._taken, "rates": list(self._rates)}
        return {**super()._counters(), **more, "refresh": self._refresh, "refreshes": self._refreshes}

    def _set_counters(self, counters: Mapping[str, Any]) -> None:
        super()._set_counters(counters)
        self._taken, self._rates = counters["taken"], list(counters["rates"])
        self._refresh, self._refreshes = counters["refresh"], counters["refreshes"]

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As that of all these optimizers; within a window it writes this rank's parameters, too."""
        super().load_state_dict(state_dict)
        if not self.synchronized:
            for _, p, entry, state in self._each():
                p.copy_(local(state["x_sync"]) - divide(local(state["u"]), local(state["exp_avg_sq"]), entry["eps"]))

    def checkpoint(self, memories: Memories = "mean", workers: int | None = None, *, whole: bool = False) -> Any:
        """As that of all these optimizers, between windows.

        Raises:
            StateError: within a window, too.
        """
        if not self.synchronized:
            raise StateError(
                f"the replicas differ: this is step {self._taken} of a window of {self.interval}; call optimizer.sync() on "
                "all ranks first. optimizer.state_dict() is all that one rank has, within a window too"
            )
        return super().checkpoint(memories, workers, whole=whole)

    def shared_state(self) -> dict[str, Tensor]:
        """As that of all these optimizers: m and v. Between windows x_sync is the parameter, and u is 0."""
        return {
            label: x for label, x in super().shared_state().items() if label.rpartition("/")[2].startswith("exp_avg")
        }

    def adopt(self, counters: Mapping[str, Any], state: Mapping[str, Tensor]) -> None:
        """As that of all these optimizers, with tensors of any shape; the parameters have been loaded before."""
        super().adopt(counters, state)
        for _, _, _, held in self._each():
            held.pop("u", None)
            held.pop("x_sync", None)
