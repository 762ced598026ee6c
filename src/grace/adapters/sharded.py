"""Grace at work on a model under ``torch.distributed.fsdp.fully_shard`` (FSDP2, and HSDP on a mesh of two dimensions).

Under FSDP the reduce-scatter of gradients is one all-to-all of compressed rows, with a memory on the sender; the owner of a
shard keeps float32, and there is no second hop. Under HSDP torch reduces inside a machine as it always does, and shards are
averaged between machines by any method; the reduce-scatter before may go through another. Weights are gathered as torch
gathers them, or through a compressor (:mod:`grace.adapters.weights`).

A memory is of what a worker compresses: of the rows of all ranks under FSDP, as large as the gradient of the whole model in
float32; of this rank's shard alone under HSDP.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from grace.adapters.applied import Applied
from grace.adapters.axes import Axes, names_held, resolve
from grace.adapters.choosing import Choosing
from grace.adapters.doors import register_door
from grace.adapters.fsdp import (
    DTYPES,
    Hooked,
    LateGradients,
    ParameterGroup,
    explain_dtype,
    find_groups,
    is_sharded,
    one_group,
    plain_name,
)
from grace.adapters.handle import Handle
from grace.adapters.passes import Passes
from grace.adapters.sharded_checkpoint import ShardedCheckpoint
from grace.adapters.sharded_choice import read_sharded_choice, site_between_replicas, site_of_rows
from grace.adapters.sharded_rows import half_of_dense, is_plain, plan_rows, whole_rows
from grace.adapters.trained import refuse_in_backward
from grace.adapters.unexchanged import Unexchanged, refuse_foreign
from grace.adapters.unsharded import REMEDY, check_sharded
from grace.adapters.weights import Weights, read_weights
from grace.auto.settings import Auto
from grace.auto.site import Site
from grace.contract.method import Method
from grace.errors import ConfigurationError, GraceError, InputError, NonFiniteError
from grace.flags.capturing import capturing
from grace.flags.finite import on_host
from grace.registry.adaptive import Adaptive
from grace.registry.policy import Policy
from grace.run.checkpoint import Memories
from grace.run.optimizer import Settings, read_settings
from grace.run.options import Options
from grace.run.plan import ExchangePlan
from grace.run.scattering import sum_rows
from grace.run.session import Session
from grace.run.stats import Stats
from grace.run.steps import Steps
from grace.transports.agreement import agree
from grace.transports.base import Transport
from grace.transports.choose import transport_beside

_NO_AXES = Axes()


class ShardedHandle(Choosing, Handle):
    """Grace at work on one model under ``fully_shard``. Made by :func:`grace.attach`; all ranks call its methods alike.

    ``rank`` and ``world`` are those of the axis that is compressed: the replicas under HSDP, else the shards. A step is a
    backward pass that reduces gradients.
    """

    def __init__(
        self,
        model: nn.Module,
        method: Policy | Method[Any] | Auto | str | None,
        options: Options,
        *,
        axes: Axes = _NO_AXES,
        ignored: Collection[Tensor] = (),
        optimizer: torch.optim.Optimizer | None = None,
        transport: str | Transport | None = "auto",
    ):
        compressor = read_weights(axes.weights)
        if options.granularity != "parameter":
            raise ConfigurationError(
                f"granularity={options.granularity!r}: a sharded model is compressed by parameter; torch's groups of "
                "parameters travel together"
            )
        if options.on_difference != "error":
            raise ConfigurationError(
                f"on_difference={options.on_difference!r}: no rank has the whole of a sharded model; legal: 'error'"
            )
        groups = find_groups(model)
        left_out = check_sharded(model, ignored)
        trained = {piece.name: piece.inside.sharded_param for group in groups for piece in group.pieces}
        refuse_in_backward(trained)
        refuse_foreign(
            optimizer, [*model.parameters(), *trained.values()], "made after fully_shard of model.parameters()"
        )
        self._model, self._groups, self._pieces = (
            model,
            groups,
            {piece.name: piece for group in groups for piece in group.pieces},
        )
        self._replicated = groups[0].replicas is not None
        if self._replicated and options.nonfinite == "error":
            raise ConfigurationError(
                "nonfinite='error' between replicas: an inf is seen by those that have the same shard alone, and the others "
                "would wait for them; legal: 'propagate', 'skip'"
            )
        auto, slow, fast, more = read_sharded_choice(*axes.choose(method, self._replicated))
        if not self._replicated:  # every rank applies means of its own
            options = replace(options, check_replicas_every=0)
        group = one_group(groups)
        shards = groups[0].shards.size()
        rows = {
            name: torch.empty(shards, piece.width, device="meta", dtype=torch.float32)
            for name, piece in self._pieces.items()
        }
        parts = {
            name: torch.empty(piece.shard, device="meta", dtype=torch.float32) for name, piece in self._pieces.items()
        }
        like = names_held((parts if self._replicated else rows).items())
        self._names = frozenset(like)
        policy = self._resolve(options.read(slow))
        over = transport_beside(group, transport)
        knobs: dict[str, object] = {"sharded": "between replicas" if self._replicated else "reduce-scatter", **more}
        if axes:
            knobs.update({name: str(given) for name, given in (("shard", fast), ("weights", compressor))})
        super().__init__(Steps(Session(like, policy, over, options, knobs=knobs, scatters=not self._replicated)))
        self._optimizer, self._given_transport = optimizer, transport
        self._beside: Transport | None = None  # where auto chooses: to the ranks that have the other shards
        self._passes = Passes(groups[0].device, self._end, self.stats.wait)
        self.stats.overlaps = self._passes.overlaps
        self._late: LateGradients | None = None  # between the two axes of a group
        self._fast: Session | None = None
        self._weights: Weights | None = None
        self._hooked: Hooked | None = Hooked(groups, model)
        self._unexchanged = Unexchanged(
            model, trained, left_out, apart=lambda: False, remedy=REMEDY, optimizer=optimizer, session=self._session
        )
        try:
            if fast is not None:
                self._fast = self._open_fast(options.read(fast), names_held(rows.items()), transport)
            named = {plain_name(name): p for name, p in model.named_parameters()}
            sessions = [session for session in (self._session, self._fast) if session is not None]
            held = {name for session in sessions for name in session.like}
            self._applied = Applied(sessions, {name: p for name, p in named.items() if name in held}, optimizer)
            self._begin_auto(auto)
            if compressor is not None:
                self._weights = Weights(groups, compressor, options, transport, lambda: self._session.worker.step)
                self._hooked.gather_by(self._gather)
        except BaseException as error:
            self._close(error)
            raise
        self.stats.beside = tuple(session.stats for session in self._sessions()[1:])
        self._check_optimizer()
        if self._replicated:
            self._hooked.average_replicas_by(self._average)
        if self._fast is not None or not self._replicated:
            self._hooked.reduce_by(self._scatter)

    def _begin_auto(self, auto: Auto | Adaptive | None) -> None:
        if auto is not None and self._replicated:  # those that average other shards decide alike
            if self._beside is None:
                self._beside = transport_beside(self._groups[0].shards, self._given_transport)
            agree({"auto": str(auto)}, self._beside)
        super()._begin_auto(auto)

    def _site(self) -> Site:
        if self._beside is not None:
            return site_between_replicas(self._groups, self._resolve, self._beside)
        return site_of_rows(self._groups, self._resolve, self._session.options)

    def _resolve(self, policy: Policy) -> Policy:
        return resolve(policy, self._pieces.values(), self._names, scatters=not self._replicated)

    def _open_fast(self, policy: Policy, like: dict[str, Tensor], transport: str | Transport | None) -> Session:
        """The session of the reduce-scatter within a machine, where another one follows between machines."""
        policy = resolve(policy, self._pieces.values(), like.keys(), scatters=True, fast=True)
        options = replace(self._session.options, check_replicas_every=0)
        over = transport_beside(self._groups[0].shards, transport)
        knobs = {"sharded": "reduce-scatter, then between replicas"}
        session = Session(like, policy, over, options, knobs=knobs, scatters=True)
        session.stats.overlaps = self._passes.overlaps
        return session

    @property
    def axes(self) -> dict[str, Stats]:
        """Cost of each axis so far: "replicate", "shard", "weights", as far as Grace is at work there.
        ``stats.ratio`` is that of all of them.
        """
        out = {"replicate" if self._replicated else "shard": replace(self.stats, beside=())}
        if self._fast is not None:
            out["shard"] = self._fast.stats
        if self._weights is not None:
            out["weights"] = self._weights.session.stats
        return out

    @property
    def error(self) -> BaseException | None:
        """Exception that has ended an exchange; None while all go on."""
        return next((session.error for session in self._sessions() if session.error is not None), None)

    def _sessions(self) -> list[Session]:
        weights = None if self._weights is None else self._weights.session
        return [session for session in (self._session, self._fast, weights) if session is not None]

    def _settings(self) -> Settings | None:
        return None if self._optimizer is None else read_settings(self._optimizer)

    # ---- during the forward and backward pass -----------------------------------------------------------------------
    def _gather(self, group: ParameterGroup, shard: Tensor, out: Tensor) -> None:
        """Fills ``out`` with the weights of a group; see :meth:`grace.adapters.weights.Weights.gather`."""
        assert self._weights is not None
        if self.error is not None:
            raise self.error
        with self._leaving():
            self._weights.gather(group, shard, out)

    def _scatter(self, group: ParameterGroup, flat: Tensor, out: Tensor) -> None:
        """Fills ``out`` ``[sum of c]`` with the sum over ranks of this rank's row of ``flat`` ``[W * sum of c]``: at once, or
        when the pass ends.
        """
        if not self._begin(group, flat, flat.numel() // group.shards.size()):
            out.zero_()
            return
        if self._fast is None:
            self._comes(piece.name for piece in group.pieces)
        with self._while_it_waits() as waits:
            late = group.later(out) if self._passes.overlaps and not waits else None
            sums, lr = out if late is None else late.sums, self.lr
            if self._fast is not None:
                self._late = late
            self._passes.submit(lambda: self._scatter_now(group, flat, sums, lr), wait=late is None)
        if self._fast is None:
            self._passes.settle(late)

    def _scatter_now(self, group: ParameterGroup, flat: Tensor, sums: Tensor, lr: float | None) -> None:
        session = self._fast or self._session
        rows = flat.view(session.world, -1)
        widths = [piece.width for piece in group.pieces]
        names = [piece.name for piece in group.pieces]
        parts = dict(zip(names, torch.split(rows, widths, dim=1), strict=True))
        bucket = contextlib.nullcontext() if self._fast else self._bucket_alone(names, lambda: whole_rows(parts))
        with self._leaving(), bucket:
            held = {name: session.like[name] for name in names if name in session.like}
            if is_plain(session, group) and session.worker.owes_nothing(held):
                sums.copy_(session.run(sum_rows(rows), counted=True).view(-1))
                return
            tensors = {name: parts[name] for name in held}  # on an accelerator where torch left them
            if on_host(flat.device) or session.world == 1:  # then torch goes on with the rows
                layout = torch.contiguous_format
                tensors = {n: x.to(torch.float32, memory_format=layout, copy=True) for n, x in tensors.items()}
            means = session.scatter(tensors, lr=lr)
            places = dict(zip(names, torch.split(sums, widths), strict=True))
            _fill({name: places[name] for name in means}, means, session.world)

    def _average(self, group: ParameterGroup, flat: Tensor) -> None:
        """Replaces a flat shard by its mean over replicas: at once, or when the pass ends."""
        late, self._late = self._late, None
        if not self._begin(group, flat, flat.numel()):
            flat.zero_()
            return
        self._comes(piece.name for piece in group.pieces)
        with self._while_it_waits() as waits:
            if late is None and self._passes.overlaps and not waits:
                late = group.later(flat, flat.clone())
            sums, lr = flat if late is None else late.sums, self.lr
            factor = self.world if group.divided else 1
            self._passes.submit(lambda: self._average_now(group, sums, factor, lr), wait=late is None)
        self._passes.settle(late)

    def _average_now(self, group: ParameterGroup, flat: Tensor, factor: int, lr: float | None) -> None:
        widths = [piece.width for piece in group.pieces]
        shards = {
            piece.name: part[: math.prod(piece.shard)].view(piece.shard)
            for piece, part in zip(group.pieces, torch.split(flat, widths), strict=True)
            if piece.name in self._session.like
        }
        given = {name: torch.empty_like(x, dtype=torch.float32) for name, x in shards.items()}
        if given:
            torch._foreach_copy_(list(given.values()), list(shards.values()))
        if self._fast is not None:  # what comes is a sum over shards, which torch divides later; a memory keeps means
            factor *= self._fast.world
            if given:
                torch._foreach_div_(list(given.values()), self._fast.world)
        with self._leaving(), self._bucket_alone([piece.name for piece in group.pieces], lambda: given):
            means = self._session.exchange(given, lr=lr) if given else {}
        _fill(shards, means, factor)

    @contextlib.contextmanager
    def _leaving(self) -> Iterator[None]:
        """After an error this rank leaves the job on every axis, so that all ranks hear of it."""
        try:
            yield
        except NonFiniteError:
            raise
        except BaseException as error:
            self._close(error)
            raise

    def _close(self, error: BaseException | None = None) -> None:
        for session in self._sessions():
            session.close(error)
        if self._beside is not None:
            self._beside.close(error)

    def _begin(self, group: ParameterGroup, flat: Tensor, width: int) -> bool:
        """The first exchange of a backward pass begins a step, which ends with the pass. False: there is no exchange in what
        is left of this pass, since one has failed. ``flat``: rows of ``width`` numbers, or one.
        """
        if self._passes.begin():
            if self.error is not None:
                raise self.error
            self._applied.look()
            self._applied.settle()
            if self._optimizer is not None:
                self.lr = float(self._optimizer.param_groups[0]["lr"])
            self._began()
            if self._fast is not None:
                self._fast.worker.step = self._session.worker.step  # which a checkpoint may have set
        self._applied.hand_out(piece.name for piece in group.pieces if piece.name in self._names)
        error: Exception | None = None
        new = [piece.name for piece in group.pieces if piece.name not in self._pieces]
        if flat.dtype not in DTYPES:
            error = InputError(explain_dtype(flat.dtype))
        elif new:
            error = GraceError(
                f"{', '.join(map(repr, new))}: frozen when Grace was attached, and trained now: nothing is known of its "
                "exchange. Call handle.detach() when you unfreeze, and attach again; freezing needs nothing"
            )
        elif width != sum(piece.width for piece in group.pieces):
            error = GraceError(f"torch reduces other gradients than those of {[piece.name for piece in group.pieces]}")
        if error is not None:
            self._passes.fail(error)
            self._close(error)  # so that ranks that wait for this one hear of it
        return not self._passes.failed

    def _end(self) -> None:
        if self.error is not None:
            return
        self._applied.end()
        with self._leaving():
            self._session.advance()
            if self._driver is not None:
                self._end_step(self._driver)
        if self._fast is not None:
            self._fast.advance()
        if not capturing():  # each replay counts
            self._count_step()
            self._session.logs.report()

    def _count_step(self) -> None:
        for session in self._sessions():
            weights = self._weights is not None and session is self._weights.session
            scatters = not self._replicated or session is self._fast
            session.count_step(0 if weights else half_of_dense(session) if scatters else None)

    def replayed(self, *, applied: bool = True) -> None:
        for session in (self._session, self._fast):
            if session is not None:
                session.replayed(applied, counts=False)
        self._count_step()

    # ---- for the user -----------------------------------------------------------------------------------------------
    def switch(self, method: Policy | Method[Any] | Auto | Adaptive | str) -> None:
        self._check_attached()
        auto, fixed, *_ = read_sharded_choice(method, None)
        super().switch(auto or self._resolve(self._session.options.read(fixed)))

    def plan(self, axis: str = "") -> ExchangePlan:
        """The exchange of the coming step: parameter, shape, method, bytes and their share.

        Args:
            axis: "shard": of the reduce-scatter, where replicas are averaged after it; else of the slowest axis.

        Raises:
            ConfigurationError: another axis.
        """
        legal = self.axes.keys() - {"weights"}
        if axis and axis not in legal:
            raise ConfigurationError(f"plan({axis!r}); legal here: {', '.join(map(repr, sorted(legal)))}")
        session = self._fast if axis == "shard" and self._fast is not None else self._session
        if self._replicated and session is self._session:
            return session.plan()
        return plan_rows(session, self._groups)

    def load_state_dict(self, saved: Any) -> None:
        self._check_attached()
        super().load_state_dict(saved)

    def checkpoint(
        self, memories: Memories = "mean", workers: int | None = None, *, whole: bool = False
    ) -> ShardedCheckpoint:
        """For ``torch.distributed.checkpoint.save`` and ``load``, by all ranks; loads on any number of workers.

        It keeps the mean of what the memories owe, sharded as the parameters are, and what replicas share where there are as
        many shards. Momenta start afresh. What ``auto`` has chosen is kept.

        Raises:
            ConfigurationError: anything but the mean; no rank holds the whole of it.
        """
        if memories != "mean" or workers is not None or whole:
            raise ConfigurationError(
                f"checkpoint({memories!r}, workers={workers}, whole={whole}) of a sharded model; legal: checkpoint(), which "
                "keeps the mean of the memories, each rank a shard of it. handle.state_dict() is all of one rank's"
            )
        self._check_attached()
        parameters = {plain_name(name): p for name, p in self._model.named_parameters()}
        return ShardedCheckpoint(
            self._session,
            {name: parameters[name] for name in self._session.like},
            self._groups[0].shards if self._replicated else None,
            self._chooser,
        )

    def detach(self) -> None:
        """The model goes on without compression, as torch alone would."""
        if self._hooked is not None:
            self._hooked.restore()
            self._hooked = None
            self._unexchanged.close()
            self._passes.close()
            self._end_run()
            self._close()

    def _check_attached(self) -> None:
        if self._hooked is None:
            raise GraceError("this handle is detached; attach again")


def _fill(places: Mapping[str, Tensor], means: Mapping[str, Tensor], factor: int) -> None:
    """Sets the places, of any shapes, to their means times this factor: one operation for all of them, or two."""
    if not means:
        return
    values = list(means.values())
    if factor > 1:
        torch._foreach_mul_(values, factor)
    torch._foreach_copy_([places[name] for name in means], values)


@register_door("sharded")
class ShardedDoor:
    """The door for models under ``fully_shard``, for whose groups of parameters ``auto`` can choose."""

    chooses = True

    def takes(self, model: object) -> str | None:
        """See :class:`grace.adapters.doors.Door`."""
        return None if is_sharded(model) else ""

    def open(
        self,
        model: nn.Module,
        method: Policy | Method[Any] | Auto | str | None,
        options: Options,
        *,
        optimizer: torch.optim.Optimizer | None,
        scaler: torch.amp.GradScaler | None,
        transport: str | Transport | None,
        axes: Axes = _NO_AXES,
        ignored: Collection[Tensor] = (),
    ) -> ShardedHandle:
        """See :class:`grace.adapters.doors.Door`."""
        if scaler is not None:
            raise ConfigurationError(
                "attach: scaler= is for DistributedDataParallel; a sharded model is reduced in float32 or bfloat16"
            )
        return ShardedHandle(
            model, method, options, axes=axes, ignored=ignored, optimizer=optimizer, transport=transport
        )
