"""The communication hook of a DistributedDataParallel model, which takes one only once and keeps it."""

from __future__ import annotations

import gc
import weakref
from typing import Any, ClassVar, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import GradBucket
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from grace.errors import ConfigurationError


class BucketHandler(Protocol):
    """Exchanges buckets."""

    def accept(self, bucket: GradBucket) -> Future[Tensor]:
        """Takes a bucket of gradients; the future holds its buffer once the means are in it."""

    def forwarded(self, output: Any) -> None:
        """The model has made this of a batch."""


class Hook:
    """Hands buckets to its ``handler``. Without one it sums them as DistributedDataParallel would."""

    of: ClassVar[weakref.WeakKeyDictionary[DistributedDataParallel, Hook]] = weakref.WeakKeyDictionary()

    def __init__(self, group: dist.ProcessGroup | None = None):
        self.handler: BucketHandler | None = None
        self._model: weakref.ref[DistributedDataParallel] | None = None
        self._hears = False
        self.group = group if group is not None else dist.group.WORLD
        self.rank, self.world = dist.get_rank(self.group), dist.get_world_size(self.group)

    @classmethod
    def on(cls, model: DistributedDataParallel) -> Hook:
        """The hook of this model, registered if need be.

        Raises:
            ConfigurationError: the model has another hook.
        """
        hook = cls.of.get(model)
        if hook is None:
            hook = cls(model.process_group)
            try:
                model.register_comm_hook(hook, _call)
            except RuntimeError as error:
                raise ConfigurationError(f"this model already has a communication hook of its own: {error}") from error
            hook._model = weakref.ref(model)
            cls.of[model] = hook
        return hook

    def __reduce__(self) -> tuple[type[Hook], tuple[()]]:
        """A copied or pickled model has no handler, and the default group, as in DistributedDataParallel itself."""
        return Hook, ()

    def hear_forward(self) -> None:
        """From now on the handler hears of forward passes; not where torch compiles the wrapper, whose graph a forward hook
        would break once more.
        """
        model = None if self._hears or self._model is None else self._model()
        self._hears = True
        if model is not None and not _is_compiled(model):
            model.register_forward_hook(self)

    def __call__(self, model: nn.Module, args: Any, output: Any) -> None:
        """Torch calls this after each forward pass."""
        if self.handler is not None and not torch.compiler.is_compiling():
            self.handler.forwarded(output)

    def run(self, bucket: GradBucket) -> Future[Tensor]:
        """Hands a bucket of gradients to the handler; without one it is averaged as DistributedDataParallel would."""
        if self.handler is not None:
            return self.handler.accept(bucket)
        work = dist.all_reduce(bucket.buffer().mul_(1 / self.world), group=self.group, async_op=True)
        assert work is not None
        future: Future[Tensor] = work.get_future().then(lambda done: done.value()[0])
        return future


def _is_compiled(model: DistributedDataParallel) -> bool:
    """True if this wrapper was given to ``torch.compile``, not only the module inside."""
    owners = gc.get_referrers(model)
    owned = any(isinstance(owner, dict) and owner.get("_orig_mod") is model for owner in owners)
    return owned or getattr(model, "_compiled_call_impl", None) is not None


def _call(hook: Hook, bucket: GradBucket) -> Future[Tensor]:
    """Torch insists on a parameter that is named ``bucket`` and annotated so."""
    return hook.run(bucket)


_call.__annotations__ = {"bucket": GradBucket, "return": Future[Tensor]}  # torch compares objects, not strings
