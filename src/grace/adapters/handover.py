"""Gradients of toolkits whose tensors must never be written: TensorFlow, Keras, JAX. It imports none of them.

A toolkit lends its tensors (over DLPack, or as read-only numpy arrays) and may use them elsewhere: a constant gradient is the
same memory in every step. So each is copied once, into storage that is kept. The means end up there, and are handed out
without another copy. Such storage is written again only when nobody holds what was handed out.
"""

from __future__ import annotations

import collections
import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from grace.adapters.buckets import fill_buckets
from grace.adapters.choosing import Choosing, read_choice
from grace.auto.settings import Auto
from grace.auto.site import Site
from grace.collectives import AllGather, Collective, Exchange
from grace.contract.method import Method
from grace.errors import FingerprintMismatch, InputError
from grace.registry.adaptive import Adaptive
from grace.registry.policy import Policy
from grace.run.inputs import DTYPES
from grace.run.options import DEFAULTS, Options
from grace.run.session import Session
from grace.run.steps import Steps
from grace.state import STRUCTURE, nested
from grace.transports.base import Transport
from grace.transports.choose import transport as choose_transport

_ALIGN = 64  # bytes: JAX copies what is not aligned to this
_KEPT = 2  # buffers: one whose means are still being applied, and one to be filled


class Handover(Choosing):
    """The exchange of the gradients of one model, always all of them, in one order. All ranks call it alike.

    Args:
        names: of the tensors, the same on all ranks. A name that occurs several times gets its position in front.
        shapes: in the toolkit's layout. A tensor of more than two dimensions is exchanged as the matrix
            ``[-1, shape[-1]]``: kernels of convolutions are ``[height, width, in, out]`` there, and a method that takes
            matrices would find 3 x 3 pixels in front.
        dtypes: of torch, or their names, such as "float32".
        method: a method, the string that makes it, or a :class:`grace.Policy`; "auto" or a :class:`grace.Auto` chooses one for
            each ``options.bucket_bytes`` of gradients.
        transport: between the ranks; taken over. A name, or "auto": see :func:`grace.transport`.
        options: how to exchange.
        knobs: what else the ranks must have in common, each under its name.

    Raises:
        InputError: a tensor that is not f16, bf16, f32 or f64, by name.
        ConfigurationError: nothing to exchange, or a method that cannot work.
        FingerprintMismatch: ranks that differ, on every rank.

    Example::

        handover = Handover(["dense/kernel", "dense/bias"], [(784, 10), (10,)], ["float32", "float32"], "topk:ratio=0.01")
        kernel, bias = handover.mean([torch.from_dlpack(gradient) for gradient in gradients])
    """

    toolkit = "another toolkit"  # whose gradients they are

    def __init__(
        self,
        names: Sequence[str],
        shapes: Sequence[Sequence[int]],
        dtypes: Sequence[torch.dtype | str],
        method: Policy | Method[Any] | Auto | Adaptive | str,
        *,
        transport: Transport | str = "auto",
        options: Options = DEFAULTS,
        knobs: Mapping[str, object] | None = None,
    ):
        transport = choose_transport(transport)
        try:
            auto, fixed, more = read_choice(method)
            self.names = make_unique(names)
            self.shapes = [tuple(int(n) for n in shape) for shape in shapes]
            self.dtypes = [_read_dtype(name, dtype) for name, dtype in zip(self.names, dtypes, strict=True)]
            kinds = zip(self.names, self.shapes, self.dtypes, strict=True)
            like = {name: torch.empty(_flatten(shape), dtype=dtype, device="meta") for name, shape, dtype in kinds}
            super().__init__(Steps(Session(like, fixed, transport, options, knobs={**(knobs or {}), **more})))
        except FingerprintMismatch:  # all ranks raise it
            raise
        except BaseException as error:
            transport.close(error)  # ranks that wait for this one hear of it
            raise
        self._pool = _Pool(self.shapes, self.dtypes)
        self._absent: list[bool] | None = None
        self._buckets = fill_buckets(like, options.bucket_bytes)
        self._begin_auto(auto)

    def _site(self) -> Site:
        """The tensors are another toolkit's: what methods cost in quality was measured in torch."""
        return replace(Site.of(self._session), beyond=(f"gradients of {self.toolkit}",))

    # ---- a step -----------------------------------------------------------------------------------------------------
    @torch.no_grad()
    def mean(
        self, gradients: Sequence[Tensor | None], *, lr: float | None = None, scale: float = 1.0
    ) -> list[Tensor | None]:
        """Makes a step: this worker's gradients -> their means over all workers.

        Args:
            gradients: in the order of ``names``; read, never written, and not kept. None where the loss does not depend on
                a variable: it counts as zeros. What is None on all ranks in the first step stays None in the answer, on all
                ranks; what is None on only some has a mean. So the answers have the same structure everywhere.
            lr: the learning rate of this step, for memories that follow it.
            scale: the factor that gradients come with, as from loss scaling, and means leave with.

        Returns:
            The means, in the toolkit's shapes: yours for as long as you hold them.

        Raises:
            InputError: another number of gradients than in the beginning, or one of another shape or dtype.
            NonFiniteError: with ``nonfinite="error"``, on all ranks. The next step may go on.
            GraceError: another thread is in a step, or the handover is closed.
            TransportError, StepMismatch, and others: the exchange has ended, on all ranks. ``error`` keeps what ended it,
                and every later step raises it again.
        """
        with self._session.turn():
            self._check(gradients)
            absent = self._agree_absent([x is None for x in gradients])
            tensors = self._copy(gradients)  # a method's state may keep what it was given
            if lr is not None:
                self.lr = lr
            self._steps.scale = scale
            given = {
                name: copy.view(_flatten(shape))
                for name, copy, shape in zip(self.names, tensors, self.shapes, strict=True)
            }
            self._exchange(given)
            means = [None if none else copy.detach() for none, copy in zip(absent, tensors, strict=True)]
        self._session.logs.report()
        return means

    def agree_absent(self, absent: Sequence[bool]) -> list[bool]:
        """Finds the tensors without a gradient on any rank; ``absent``: those without one here. All ranks call it before their
        first step, with the same number of tensors. A toolkit that traces a graph first calls it; otherwise :meth:`mean` does.

        Raises:
            InputError: a gradient where no rank had one in the first step, or another number of them.
            TransportError: a rank has failed or left, or does not come to its first step.
        """
        with self._session.turn():
            return self._agree_absent(list(absent))

    def fail(self, error: BaseException) -> None:
        """Ends the exchange with this error, which later steps raise. The other ranks hear of it."""
        self._session.close(error)

    def close(self) -> None:
        """Leaves the job: this rank makes no more steps. Ranks that still wait for it hear of it."""
        self._session.close()

    # ---- states -----------------------------------------------------------------------------------------------------
    def load_state_dict(self, saved: Any) -> None:
        """Goes on where ``saved`` stopped, under the same method, tensors and number of workers. All ranks call it, each
        with its own state; either all of them load, or none. Under ``auto`` a state of any method is loaded.

        Args:
            saved: what :meth:`state_dict` gave, or the numpy arrays that :func:`grace.state.flat` made of it.

        Raises:
            StateError: one does not fit, or they do not belong together; on every rank. Nothing has changed then.
        """
        if isinstance(saved, Mapping) and STRUCTURE in saved:
            saved = nested(saved)
        super().load_state_dict(saved)

    # ---- within -----------------------------------------------------------------------------------------------------
    def _exchange(self, gradients: dict[str, Tensor]) -> None:
        """Replaces the gradients by their means: all at once, or as ``auto`` says."""
        if not self.chooses:
            self._steps.step(gradients, into=gradients)
            return
        self._exchange_in_turn(self._buckets, gradients)

    def _copy(self, gradients: Sequence[Tensor | None]) -> list[Tensor]:
        """The gradients in storage of our own, zeros for None."""
        tensors = self._pool.take().tensors
        for x, copy in zip(gradients, tensors, strict=True):
            if x is None:
                copy.zero_()
            else:
                copy.copy_(x)
        return tensors

    def _check(self, gradients: Sequence[Tensor | None]) -> None:
        if len(gradients) != len(self.names):
            raise InputError(
                f"{len(gradients)} gradients, and {len(self.names)} variables when the exchange began; give all of them in "
                "each step, in their order, and None where there is none"
            )
        for name, x, shape, dtype in zip(self.names, gradients, self.shapes, self.dtypes, strict=True):
            if x is not None and (x.shape != shape or x.dtype != dtype or x.layout != torch.strided):
                got = f"{_name(x.dtype)} {tuple(x.shape)}" if x.layout == torch.strided else str(x.layout)
                raise InputError(f"the gradient of {name!r} is {got}, and was {_name(dtype)} {shape} when it began")

    def _agree_absent(self, present: list[bool]) -> list[bool]:
        """See :meth:`agree_absent`. Compared once: a collective in each step would cost as much as a small model sends."""
        if self._absent is None:
            if len(present) != len(self.names):
                raise InputError(f"{len(present)} gradients for {len(self.names)} variables")
            told = self._session.run(_ask(AllGather(torch.tensor(present, dtype=torch.uint8, device="cpu"))))  # [W, n]
            self._absent = told.bool().all(0).tolist()
        new = [name for name, here, then in zip(self.names, present, self._absent, strict=True) if then and not here]
        if new:
            raise InputError(
                f"a gradient of {', '.join(map(repr, new))} has come, where no rank had one in the first step; give zeros "
                "there from the beginning"
            )
        return self._absent


class _Buffer:
    """Storage for one tensor of each kind, side by side."""

    def __init__(self, shapes: Sequence[tuple[int, ...]], dtypes: Sequence[torch.dtype]):
        sizes = [math.prod(shape) * dtype.itemsize for shape, dtype in zip(shapes, dtypes, strict=True)]
        starts = list(itertools.accumulate((-(-size // _ALIGN) * _ALIGN for size in sizes), initial=0))
        flat = torch.empty(starts[-1], dtype=torch.uint8, device="cpu")
        self.tensors = [
            flat[start : start + size].view(dtype).view(shape)
            for start, size, dtype, shape in zip(starts, sizes, dtypes, shapes, strict=False)
        ]
        self._storage = flat.untyped_storage()
        del flat
        self._alone = self._count()

    def _count(self) -> int:
        """Number of holders of the storage: tensors, and through them DLPack capsules and arrays of any toolkit."""
        return int(torch._C._storage_Use_Count(self._storage._cdata))

    @property
    def free(self) -> bool:
        """True if nobody holds what was handed out."""
        return self._count() == self._alone


class _Pool:
    """Buffers that are used in turn: fresh memory costs several times as much as copying into it (page faults)."""

    def __init__(self, shapes: Sequence[tuple[int, ...]], dtypes: Sequence[torch.dtype]):
        self._new: Callable[[], _Buffer] = functools.partial(_Buffer, shapes, dtypes)
        self._kept: list[_Buffer] = []

    def take(self) -> _Buffer:
        """A buffer that nobody holds: a kept one, else a new one."""
        for buffer in self._kept:
            if buffer.free:
                return buffer
        buffer = self._new()
        self._kept = [*self._kept, buffer][-_KEPT:]  # whoever holds an older one keeps it alive
        return buffer


def make_unique(names: Sequence[str]) -> list[str]:
    """The names, with the position in front of those that repeat."""
    counts = collections.Counter(names)
    unique = [f"{i}:{name}" if counts[name] > 1 else name for i, name in enumerate(names)]
    if len(set(unique)) < len(unique):  # "1:w" beside two "w"
        return [f"{i}:{name}" for i, name in enumerate(names)]
    return unique


def _ask(op: Collective) -> Exchange[Tensor]:
    return (yield op)


def _flatten(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that is exchanged: a matrix, where there are more dimensions."""
    return shape if len(shape) <= 2 else (math.prod(shape[:-1]), shape[-1])


def _read_dtype(name: str, dtype: torch.dtype | str) -> torch.dtype:
    given = dtype if isinstance(dtype, torch.dtype) else getattr(torch, dtype, None)
    if given not in DTYPES:
        raise InputError(f"{name!r} is {_name(dtype)}; legal: {', '.join(map(_name, DTYPES))}. Leave it out")
    assert isinstance(given, torch.dtype)
    return given


def _name(dtype: torch.dtype | str) -> str:
    return str(dtype).removeprefix("torch.")
