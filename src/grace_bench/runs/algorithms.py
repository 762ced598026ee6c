"""Algorithms that exchange something else than the mean gradient of each step: outer loops, which exchange how far replicas
have moved, optimizers, which exchange momenta, and gossip, which averages parameters with those of neighbours; and torch's own
post-local SGD, a rival.

They stand where a method's text does:
``grace bench train --methods diloco:every=32,onebitadam:freeze_step=100,choco:method=(topk:ratio=0.1),gamma=0.3,topk``.
"""

from __future__ import annotations

import contextlib
import inspect
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.algorithms.model_averaging.utils import average_parameters

import grace
from grace import optim
from grace.adapters.outer.presets import PRESETS, OuterSettings, read_outer
from grace.auto.settings import wanted
from grace.contract.knobs import as_call
from grace.errors import ConfigurationError, nearest, unknown
from grace.gossip.settings import ALGORITHMS as GOSSIPS
from grace.gossip.settings import read_gossip
from grace.registry.text import parse
from grace.run.options import Options
from grace.transports.base import Transport
from grace_bench.runs.baselines import BASELINES, Counters, NoExchange, TorchDDP, counters_of

Over: TypeAlias = str | Transport


class Algorithm(ABC):
    """An algorithm, as a run's ``method`` names it.

    Args:
        text: its name with its knobs.

    Attributes:
        family: what tables call its like. period: steps that are alike as a whole only, >= 1: an exchange comes once in them.
        lr: the peak learning rate that the text gives; None: that of the task.
    """

    family: str
    period = 1
    lr: float | None = None

    def __init__(self, text: str):
        self.text = text

    @abstractmethod
    def connect(self, model: nn.Module, seed: int, lr: float | None, transport: Over = "auto") -> NoExchange:
        """The model under this algorithm; :meth:`NoExchange.join` brings the optimizer. ``lr``: the run's own peak learning
        rate, where it has one. ``transport``: between the workers.
        """

    @property
    def recipe(self) -> str:
        """Parts and knobs of it: two texts with the same recipe have the same runs."""
        return self.text


class OuterAlgorithm(Algorithm):
    """An outer loop, by one of its presets.

    Attributes:
        settings: of the loop. method: compresses the pseudo-gradients.
    """

    family = "outer loop"

    def __init__(self, text: str):
        super().__init__(text)
        self.settings, self.method = read_outer(text)  # an error now
        if isinstance(self.method, str) and wanted(self.method) is None:
            grace.method(self.method)  # and another
        self.period = self.settings.every

    @property
    def recipe(self) -> str:
        method = grace.method(self.method) if isinstance(self.method, str) else self.method
        return f"{as_call(self.settings)} {as_call(method)}"

    def connect(self, model: nn.Module, seed: int, lr: float | None, transport: Over = "auto") -> NoExchange:
        return OuterRun(model, self.text, seed, transport)


class OuterRun(NoExchange):
    """A replica that an outer loop trains. What is evaluated is theta, which is the same on all ranks."""

    def __init__(self, model: nn.Module, text: str, seed: int, transport: Over):
        super().__init__(model)
        self._text, self._seed, self._transport = text, seed, transport

    def join(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        self._handle = grace.outer(self.model, optimizer, self._text, seed=self._seed, transport=self._transport)
        return optimizer

    def average_gradients(self) -> None:
        self._handle.average_gradients()

    def count(self) -> Counters:
        return counters_of(self._handle.stats)

    @contextlib.contextmanager
    def shared(self) -> Iterator[nn.Module]:
        with self._handle.shared_model() as model:
            yield model

    def end(self) -> None:
        self._handle.sync()

    def close(self) -> None:
        self._handle.detach()


class OptimizerAlgorithm(Algorithm):
    """An optimizer that exchanges by itself, in the place of the task's own."""

    family = "optimizer"

    def __init__(self, text: str):
        super().__init__(text)
        self._knobs = optim.parse(text).keywords  # an error now
        lr = self._knobs.get("lr")
        self.lr = None if lr is None else float(lr)

    def connect(self, model: nn.Module, seed: int, lr: float | None, transport: Over = "auto") -> NoExchange:
        return OptimizerRun(model, self.text, seed, self.lr if lr is None else lr, transport)


class OptimizerRun(NoExchange):
    """A plain model whose optimizer exchanges. It has the task's learning rates, and its weight decay, as far as both are for
    an optimizer of the same kind.
    """

    def __init__(self, model: nn.Module, text: str, seed: int, lr: float | None, transport: Over):
        super().__init__(model)
        self._text, self._seed, self._lr, self._transport = text, seed, lr, transport

    def join(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """The optimizer of the algorithm.

        Raises:
            ConfigurationError: the task's optimizer is none that divides by the size of gradients, so that its learning rate
                says nothing of this one's, and none is given.
        """
        has, text, make = optimizer.param_groups[0], self._text, optim.parse(self._text)
        adam = "betas" in has
        if not adam and self._lr is None:
            raise ConfigurationError(
                f"{text}: the task trains with {type(optimizer).__name__}, whose learning rate {has['lr']:g} does not suit "
                f"this optimizer; give it one: {text}{',' if ':' in text else ':'}lr=0.001"
            )
        given: dict[str, Any] = {"lr": has["lr"] if self._lr is None else self._lr}
        if adam and "weight_decay" in inspect.signature(make.func).parameters.keys() - make.keywords.keys():
            given["weight_decay"] = has["weight_decay"]
        over = {"options": Options(self._seed), "transport": self._transport}
        self._optimizer = make(self.model.named_parameters(), **over, **given)
        return self._optimizer

    def count(self) -> Counters:
        return counters_of(self._optimizer.stats)

    @contextlib.contextmanager
    def shared(self) -> Iterator[nn.Module]:
        with self._optimizer.shared():
            yield self.model

    def end(self) -> None:
        self._optimizer.sync()

    def close(self) -> None:
        self._optimizer.close()


class GossipAlgorithm(Algorithm):
    """Gossip, by its algorithm."""

    family = "gossip"

    def __init__(self, text: str):
        super().__init__(text)
        read_gossip(text)  # an error now

    def connect(self, model: nn.Module, seed: int, lr: float | None, transport: Over = "auto") -> NoExchange:
        return GossipRun(model, self.text, seed, transport)


class GossipRun(NoExchange):
    """A replica that is mixed with those of its neighbours. What is evaluated is the average of all, and at the end all
    replicas become it; the bytes of both do not count.
    """

    def __init__(self, model: nn.Module, text: str, seed: int, transport: Over):
        super().__init__(model)
        self._text, self._seed, self._transport = text, seed, transport
        self._aside = Counters(codec=0.0, codec_cpu=0.0, exchange=0.0)

    def join(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        self._handle = grace.gossip(self.model, optimizer, self._text, seed=self._seed, transport=self._transport)
        return optimizer

    def count(self) -> Counters:
        return counters_of(self._handle.stats) - self._aside

    @contextlib.contextmanager
    def shared(self) -> Iterator[nn.Module]:
        before = self.count()
        with self._handle.averaged_model() as model:
            self._leave_out(before)
            yield model

    def end(self) -> None:
        before = self.count()
        self._handle.average()
        self._leave_out(before)

    def _leave_out(self, before: Counters) -> None:
        """Leaves out what was counted since then, which does not belong to training."""
        self._aside = counters_of(self._handle.stats) - before

    def close(self) -> None:
        self._handle.detach()


TORCH_LOCAL = "torch_post_local_sgd"


class TorchLocalAlgorithm(Algorithm):
    """Torch's post-local SGD: ``torch_post_local_sgd:every=8,warmup_steps=100``.

    Attributes:
        settings: ``every`` and ``warmup_steps`` of them, by default 0.
    """

    family = "torch"

    def __init__(self, text: str):
        super().__init__(text)
        _, knobs = parse(text)
        for key in knobs.keys() - {"every", "warmup_steps"}:
            raise unknown(f"knob of {TORCH_LOCAL}", key, ("every", "warmup_steps"))
        if "every" not in knobs:
            raise ConfigurationError(f"{TORCH_LOCAL} has no every of its own; give it: {TORCH_LOCAL}:every=8")
        self.settings = OuterSettings(**knobs)  # an error now
        self.period = self.settings.every

    def connect(self, model: nn.Module, seed: int, lr: float | None, transport: Over = "auto") -> NoExchange:
        return TorchLocalRun(model, self.settings.every, self.settings.warmup_steps)


class TorchLocalRun(TorchDDP):
    """A replica that torch's averager averages every so many steps, the first after the warm-up at once. What is evaluated is
    the average of all replicas; its bytes do not count.
    """

    def __init__(self, model: nn.Module, every: int, warmup: int):
        super().__init__(model, "ddp-fp32", dist.get_rank(), dist.get_world_size())
        self._every, self._warmup, self._made = every, warmup, 0
        state = PostLocalSGDState(dist.group.WORLD, None, warmup, post_local_gradient_allreduce=False)  # type: ignore[no-untyped-call]
        self.model.register_comm_hook(state, post_localSGD_hook)  # type: ignore[operator]

    def join(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of torch, when this is imported
            from torch.distributed.optim import PostLocalSGDOptimizer
        averager = PeriodicModelAverager(self._every, self._warmup)
        return PostLocalSGDOptimizer(optimizer, averager)

    def step(self) -> None:
        """Counts the all-reduces of gradients in the warm-up, and that of all parameters at the end of a window."""
        if self._made < self._warmup:
            super().step()
        elif (self._made - self._warmup) % self._every == 0:
            self._count_all_reduce(self._size, "AllReduce")
        self._made += 1

    @contextlib.contextmanager
    def shared(self) -> Iterator[nn.Module]:
        kept = [p.detach().clone() for p in self.model.parameters()]
        self.end()
        with super().shared() as model:
            yield model
        with torch.no_grad():
            for p, own in zip(self.model.parameters(), kept, strict=True):
                p.copy_(own)

    def end(self) -> None:
        average_parameters(iter(self.model.parameters()), dist.distributed_c10d._get_default_group())


ALGORITHMS: dict[str, Callable[[str], Algorithm]] = {
    **dict.fromkeys(PRESETS, OuterAlgorithm),
    **dict.fromkeys(optim.optimizers(), OptimizerAlgorithm),
    **dict.fromkeys(GOSSIPS, GossipAlgorithm),
    TORCH_LOCAL: TorchLocalAlgorithm,
}


def find_algorithm(text: str) -> Algorithm | None:
    """The algorithm that a run's ``method`` names; None: it names a method or a baseline.

    Raises:
        UnknownNameError, ConfigurationError: an unknown knob, or one out of range; a misspelt algorithm.
    """
    name = text.strip().partition(":")[0]
    if (make := ALGORITHMS.get(name)) is not None:
        return make(text)
    if name not in (*BASELINES, *grace.methods()) and nearest(name, ALGORITHMS, cutoff=0.8):
        raise unknown("algorithm", name, ALGORITHMS)
    return None
