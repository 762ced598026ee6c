"""Base of all adapters: the ranks agree on what they exchange, and then exchange any of it, over any transport."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

import torch
from torch import Tensor

from grace.collectives import Exchange
from grace.communicators.hierarchical import INSIDE
from grace.contract.method import NARROW, Method
from grace.contract.peer import Peer
from grace.contract.workspace import Workspace
from grace.errors import ConfigurationError, GraceError, InputError, NonFiniteError, ReplicasDifferError, TransportError
from grace.flags.capturing import capturing
from grace.registry.policy import Policy
from grace.run.drive import broadcast_, drive
from grace.run.fingerprint import fingerprint
from grace.run.groups import Group, form_groups, whole_groups
from grace.run.inputs import check_tensor, refuse_devices
from grace.run.keeping import Keeping
from grace.run.log import Logs
from grace.run.options import DEFAULTS, Options
from grace.run.plan import warn_of_more_than_bf16, warn_uncompressed
from grace.run.replicas import Replicas, repair_
from grace.run.stats import Stats
from grace.run.streams import CudaStreams, StreamOrder
from grace.run.switching import Switching
from grace.run.worker import Worker
from grace.transports.agreement import ATTACH, agree
from grace.transports.base import Transport, closed_on_error, describe, find_axes
from grace.transports.checked import Checked
from grace.transports.checksummed import checksummed
from grace.transports.grid import GridTransport, lay_out
from grace.transports.launchers import local_world
from grace.transports.timed import Timed
from grace.transports.traced import Tracer

T = TypeVar("T")
_NO_REPAIR = (
    "on_difference='broadcast' copies the parameters and the optimizer's state, which are not known here; legal: 'error'. "
    "grace.attach(..., optimizer=...), grace.DistributedOptimizer, grace.outer and grace.local know them"
)


class Session(Switching, Keeping):
    """A worker's part in averaging the tensors of a model. It knows no toolkit, and not what a step of training is:
    :class:`grace.run.steps.Steps` does. All ranks make one with the same arguments, and call its methods alike and in the same
    order.

    Args:
        like: a tensor for each name that is exchanged; only its shape and dtype count, so meta tensors will do. The order of
            names is the same on all ranks.
        method: a method, the string that makes it, or a :class:`grace.Policy`.
        transport: between the ranks; the session takes it over, and closes it.
        options: how to exchange.
        knobs: what else the ranks must have in common, each under its name.
        repairs: whether :meth:`repair` is called after each step, so that ``on_difference="broadcast"`` can be.

    Raises:
        ConfigurationError, InputError: a method that cannot work, nothing to exchange, an unsuitable tensor (by name).
        FingerprintMismatch: ranks that differ, on every rank.
        The transport is closed then, whichever it is.

    ``stats`` counts. ``error`` is what ended the session, if anything has; every later exchange raises it again. ``transport``
    says what it runs over, and why. An adapter calls ``logs.report()`` in the user's thread to tell the logs of a step.
    ``groups`` are the tensors that are exchanged as one, and ``group_of`` has that of each name.

    Example, with one rank:
        >>> from grace.transports.alone import Alone
        >>> like = {"layer": torch.empty(64, 64), "head": torch.empty(64, 64)}
        >>> session = Session(like, "topk:ratio=0.1", Alone())
        >>> for step in range(4):  # one of the two in turn
        ...     name = ("layer", "head")[step % 2]
        ...     means = session.exchange({name: torch.ones(64, 64)})
        ...     session.advance()
        >>> list(means), session.worker.step
        (['head'], 4)
    """

    def __init__(
        self,
        like: Mapping[str, Tensor],
        method: Policy | Method[Any] | str,
        transport: Transport,
        options: Options = DEFAULTS,
        *,
        knobs: Mapping[str, object] | None = None,
        repairs: bool = False,
        scatters: bool = False,
    ):
        with closed_on_error(transport):
            if options.on_difference == "broadcast" and not repairs:
                raise ConfigurationError(_NO_REPAIR)
            if not like:
                raise ConfigurationError("there is nothing to exchange: no parameter requires a gradient")
            for name, x in like.items():
                check_tensor(name, x)
            refuse_devices(like)
            self.like = {name: x.detach() for name, x in like.items()}
            device = next(iter(self.like.values())).device
            self._device = None if device.type == "meta" else device
            self._kinds = {name: (x.shape, x.dtype) for name, x in self.like.items()}
            self._dense_bytes = sum(x.numel() * x.element_size() for x in self.like.values())
            self._scatters = scatters
            self.options, self._knobs = options, {**asdict(options), **(knobs or {})}
            policy = options.read(method)
            groups, group_policy = form_groups(self.like, policy, options)
            self._sort_into(groups)
            self._turn = threading.RLock()
            self.error: BaseException | None = None
            self._order = StreamOrder(CudaStreams(device)) if device.type == "cuda" else None
            self._tracer = Tracer(transport.rank, transport.world)
            self.stats = Stats(transport.world)
            self._connect(transport, policy)
            self.worker = Worker(group_policy, self.rank, self.world, options, axes=find_axes(self._transport))
            self.logs = Logs(self.worker, self.stats)

    def _connect(self, transport: Transport, policy: Policy, seconds: float | None = None) -> None:
        """Agrees with the other ranks of this transport, and uses it."""
        transport = lay_out(transport, policy.axes(transport.world), INSIDE)
        self.rank, self.world = transport.rank, transport.world
        self._transport, self.transport = transport, describe(transport)
        try:
            self._agree(policy, seconds)
            if isinstance(transport, GridTransport):
                with local_world(self.options.local_world_size):
                    transport.connect()
                self.transport = describe(transport)
            self._warn_about(policy)
            if self.rank == 0:
                warn_of_more_than_bf16(policy, self.like, self.world, self._scatters)
        except BaseException:
            transport.close()
            raise
        self._checked = Checked(transport) if self.options.check else None
        self._timed = Timed(self._checked or transport)
        self._timed.collectives = self.stats.collectives
        self._tracer.place(self.rank, self.world, find_axes(transport))
        self.stats.world = self.world
        self.replicas = Replicas(self.like, self.options.check_replicas_every, self.world, self.options.on_difference)
        self._closed = False
        self._finalizer = weakref.finalize(self, transport.close)
        self._finalizer.atexit = False  # at exit the process ends, and its connections with it

    def reconnect(self, transport: Transport, seconds: float | None = None) -> None:
        """Goes on over another transport, between other workers, also after an error. All of them call it, or begin.

        :class:`grace.run.elastic.Elastic` calls it, and sees to what workers owe. ``seconds``: how long the slowest may take.

        Raises:
            FingerprintMismatch: ranks that differ, on every rank; the session is closed then.
        """
        self.close()
        self._connect(transport, self._policy, seconds)
        self.error = None

    def _sort_into(self, groups: Sequence[Group]) -> None:
        self.groups = groups
        self.group_of = {name: group for group in groups for name in group.members}

    def _agree(self, policy: Policy, seconds: float | None = None, *, doing: tuple[str, str] = ATTACH) -> None:
        agree(fingerprint(policy, self.like, self._knobs), self._transport, seconds=seconds, doing=doing)
        self._policy = policy

    def _warn_about(self, policy: Policy) -> None:
        """Warns of what was hardly intended, on all ranks alike."""
        policy.check_names(self.like.keys())
        if self.rank == 0:
            warn_uncompressed(policy, self.like, self.world)

    # ---- exchanges --------------------------------------------------------------------------------------------------
    def exchange(
        self,
        tensors: Mapping[str, Tensor],
        *,
        into: Mapping[str, Tensor] | None = None,
        scale: float | Tensor = 1.0,
        lr: float | None = None,
    ) -> dict[str, Tensor]:
        """Averages any of the tensors that were agreed on: one worker's -> the means. It ends no step: :meth:`advance` does.

        What is not exchanged keeps its memory for the next time.

        Args:
            tensors: by name, donated; the same names in the same order on all ranks. What is compressed as one tensor comes
                together.
            into: where means are copied to, by name; it may be the tensors themselves. Other means are handed out where they
                are, and stay valid until the next call.
            scale: the factor that tensors come with and means leave with: memories are in units without it. On an accelerator
                it may be a 0-d float32 tensor, which the host does not read.
            lr: the learning rate that the means are applied with, the same on all ranks, for memories that follow it.

        Raises:
            InputError: an unknown name, another shape or dtype, or a part of a group.
            NonFiniteError: with ``nonfinite="error"``, on all ranks. The next exchange may go on. On an accelerator it comes
                two steps later.
            GraceError: another thread is in a step, or the session is closed.
            TransportError, RoundMismatch, PayloadError, or what a method raises: memories are as they were before this call,
                and the session has ended: the other ranks hear of it.
        """
        with self.turn():
            for name, x in tensors.items():
                self.check(name, x)
            return self.exchange_groups(whole_groups(tensors, self.group_of), tensors, into or {}, scale=scale, lr=lr)

    @property
    def device(self) -> torch.device:
        """The device of what is exchanged, on which messages about it are sent as well."""
        return torch.device("cpu") if self._device is None else self._device

    def check(self, name: str, x: Tensor, *, narrow: bool = False) -> None:
        """Refuses a tensor that is not like the one that was agreed on; ``narrow``: in 16 bits it may be, too.

        Raises:
            InputError: an unknown name, another shape or dtype, a sparse tensor, a tensor on another device.
        """
        kind = self._kinds.get(name)
        if kind is None:
            raise InputError(f"{name!r} was not there when the exchange began; legal: the names given then")
        same = x.dtype == kind[1] or (narrow and x.dtype in NARROW)
        if x.shape != kind[0] or not same or x.layout != torch.strided:
            check_tensor(name, x)
            raise InputError(
                f"{name!r} is {x.dtype} {tuple(x.shape)}, and was {kind[1]} {tuple(kind[0])} when it began"
            )
        if self._device is not None and x.device != self._device:
            raise InputError(
                f"{name!r} is on {x.device}, and what is exchanged with it on {self._device}: move it there, or let each "
                "device have a handle of its own"
            )

    def exchange_groups(
        self,
        groups: Sequence[Group],
        tensors: Mapping[str, Tensor],
        into: Mapping[str, Tensor],
        *,
        scale: float | Tensor = 1.0,
        lr: float | None = None,
        flags: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """As :meth:`exchange`, within a :meth:`turn`: tensors that have passed :meth:`check`, all members of ``groups``.
        ``flags``: see :meth:`grace.run.steps.Steps.step`.
        """
        if not groups:
            return {}
        worker, stats = self.worker, self.stats
        worker.lr = lr
        aside = worker.aside_seconds
        with stats.time(self._timed):
            means = self._exchange(groups, tensors, into, scale, flags)
        stats.leave_out(worker.aside_seconds - aside)
        return means

    def scatter(self, rows: Mapping[str, Tensor], *, lr: float | None = None) -> dict[str, Tensor]:
        """A step of a reduce-scatter of any of the tensors that were agreed on, each as rows: row j is for rank j, which
        alone learns its mean. It ends no step.

        Args:
            rows: by name, ``[W, c]``, donated; the same names in the same order on all ranks. They may be float32 or of
                16 bits, and parts of the rows of one matrix.
            lr: as for :meth:`exchange`.

        Returns:
            By name the mean ``[c]`` of this rank's row; valid until the next call.

        Raises:
            What :meth:`exchange` raises.
        """
        with self.turn():
            for name, x in rows.items():
                self.check(name, x, narrow=True)
            worker, stats = self.worker, self.stats
            worker.lr = lr
            seen = worker.nonfinite_seen
            with stats.time(self._timed):
                try:
                    outs = self._drive(worker.scatter(rows))
                finally:
                    stats.nonfinite += worker.nonfinite_seen - seen
            worker.workspace.reset()
            return {name: out.mean for name, out in outs.items()}

    def _exchange(
        self,
        groups: Sequence[Group],
        given: Mapping[str, Tensor],
        into: Mapping[str, Tensor],
        scale: float | Tensor,
        flags: Tensor | None,
    ) -> dict[str, Tensor]:
        return self._drive(self._exchanging(groups, given, into, scale, flags))

    def exchanging(self, tensors: Mapping[str, Tensor], *, lr: float | None = None) -> Exchange[dict[str, Tensor]]:
        """Averages tensors as :meth:`exchange` does, as a part of an exchange of the caller's own: for :meth:`run`, and for
        several workers in one process (:func:`grace.run.simulate.simulate`).
        """
        for name, x in tensors.items():
            self.check(name, x)
        self.worker.lr = lr
        return (yield from self._exchanging(whole_groups(tensors, self.group_of), tensors, {}, 1.0, None))

    def _exchanging(
        self,
        groups: Sequence[Group],
        given: Mapping[str, Tensor],
        into: Mapping[str, Tensor],
        scale: float | Tensor,
        flags: Tensor | None,
    ) -> Exchange[dict[str, Tensor]]:
        worker = self.worker
        tensors = {group.name: group.join(given, worker.workspace) for group in groups}
        seen = worker.nonfinite_seen
        scaled = isinstance(scale, Tensor) or scale != 1.0
        if scaled:
            once = scale.double().reciprocal().float() if isinstance(scale, Tensor) else 1.0 / scale
            torch._foreach_mul_(list(tensors.values()), once)
        try:
            outs = yield from worker.exchange(tensors, flags)
        finally:
            self.stats.nonfinite += worker.nonfinite_seen - seen
        means = dict[str, Tensor]()
        for group in groups:
            whole = outs[group.name].mean
            means.update({group.members[0]: whole} if len(group.members) == 1 else group.split(whole))
        if scaled:
            _scale(means, into, scale)
        for name in means.keys() & into.keys():
            if into[name].data_ptr() != means[name].data_ptr():
                into[name].copy_(means[name])
            means[name] = into[name]
        if not capturing():
            self.replicas.note(means)
        worker.workspace.reset()  # what was taken stays readable until the next exchange
        return means

    def _drive(self, exchange: Exchange[T]) -> T:
        """Runs what counts."""
        if self._checked is not None:
            self._checked.step = self.worker.step
        try:
            return drive(self.count(exchange), self._timed)
        except TransportError as error:
            text, *more = error.args
            error.args = (f"{text} This rank had made {self.worker.step} steps.", *more)
            raise

    def count(self, exchange: Exchange[T]) -> Exchange[T]:
        """The same exchange, whose rounds and bytes ``stats`` counts: for whoever drives it otherwise than by :meth:`run`."""
        result = yield from self._tracer.trace(self._check_payloads(exchange))
        self.stats.traffic, self.stats.by_axis = self._tracer.traffic, self._tracer.by_axis
        return result

    def _check_payloads(self, exchange: Exchange[T]) -> Exchange[T]:
        if not self.options.checksum:
            return exchange
        return checksummed(exchange, self.rank, self.world, self.worker.axes, self.worker.step)

    def run(self, exchange: Exchange[T], *, counted: bool = False) -> T:
        """Runs an exchange of one's own. All ranks call it.

        Args:
            exchange: as methods write it: a generator of collectives. :meth:`peer` says who this worker is in it.
            counted: whether it is a part of the training: then ``stats`` have its time and bytes, ``check`` compares it, and
                a failure ends the session, as in :meth:`exchange`.
        """
        if not counted:
            self._check_open()
            return drive(self._check_payloads(exchange), self._transport)
        with self.turn(), self.stats.time(self._timed):
            return self._drive(exchange)

    @property
    def network(self) -> Transport:
        """The transport, for measurements of it: all ranks use it alike, between two exchanges; nothing is counted."""
        self._check_open()
        return self._transport

    def all_gather_text(self, text: str, seconds: float) -> list[str]:
        """Everyone's text, in the order of the ranks; see :class:`grace.transports.base.Transport`."""
        return self._transport.all_gather_text(text, seconds=seconds)

    def grouped(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """These tensors, of the shapes that were agreed on, as groups, whole ones: each a flat ``[n]`` where it has several
        members, else as it is.
        """
        groups = whole_groups(tensors, self.group_of)
        return {group.name: group.join(tensors, Workspace()) for group in groups}

    def peer(self, name: str = "") -> Peer:
        """Identity of this worker in an exchange of a tensor of this name, in the coming step."""
        return self.worker.peer(name)

    def advance(self) -> None:
        """The step has ended, on all ranks: schedules and random numbers go on. Every ``check_replicas_every`` steps the ranks
        compare what they have applied.

        Raises:
            ReplicasDifferError: on all ranks; the session has ended. What :meth:`exchange` raises.
        """
        if not capturing() and self.replicas.end_step(self.worker.step):
            self.run(self.replicas.compare(), counted=True)
        self.worker.advance()

    def replayed(self, applied: bool = True, *, counts: bool = True) -> None:
        """A graph that holds a captured step has been submitted: see :meth:`grace.adapters.handle.BaseHandle.replayed`.
        ``counts``: whether this counts the step of training, too.
        """
        with self.turn():
            self.worker.replayed(applied)
            if counts:
                self.count_step()
            self.stats.dropped += not applied

    def repair(self, tensors: Callable[[], Iterable[Tensor]]) -> None:
        """Repairs replicas, if the last step has found that they differ and they are to be repaired: all ranks get what most
        of them have. All ranks call it after each step, before anything else is exchanged.

        Args:
            tensors: what is the same on all ranks, if no bit flips: means that are not applied yet, parameters, and the state
                of the optimizer.
        """
        if (difference := self.replicas.take_difference()) is not None:
            repair_(difference, tensors(), self.worker, self._transport)

    def count_step(self, dense_bytes: int | None = None) -> None:
        """Counts a step of training that has ended; ``dense_bytes``: of its gradients, by default those of all tensors."""
        self.stats.steps += 1
        self.stats.dense_bytes += self._dense_bytes if dense_bytes is None else dense_bytes

    def scratch_like(self, like: Tensor) -> Tensor:
        """An uninitialized tensor like this one, to be filled and given to the coming exchange."""
        return self.worker.workspace.take(tuple(like.shape), like.dtype, like.device)

    def broadcast_(self, tensors: Iterable[Tensor], root: int = 0) -> None:
        """Copies the numbers of rank ``root`` into these tensors, of whatever shape and dtype, on all ranks."""
        broadcast_(tensors, self._transport, root)

    # ---- failures ---------------------------------------------------------------------------------------------------
    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Admits one thread at a time, which may enter again. An error inside ends the session, and the other ranks hear of
        it; but not a NonFiniteError or a ReplicasDifferError, which all ranks raise in step.

        Raises:
            GraceError: another thread is inside, or the session is closed.
        """
        self._check_open()
        if not self._turn.acquire(blocking=False):
            raise GraceError("another thread is in a step: exchanges need one order, which all ranks share")
        try:
            with contextlib.nullcontext() if self._order is None else self._order.turn():
                yield
        except NonFiniteError:
            raise
        except ReplicasDifferError as error:  # others may still be receiving what has told this one
            self.error = error
            self.close()
            raise
        except BaseException as error:
            self.close(error)
            raise
        finally:
            self._turn.release()

    @contextlib.contextmanager
    def telling(self) -> Iterator[None]:
        """An error within ends the session, so that ranks that wait for this one hear of it."""
        try:
            yield
        except BaseException as error:
            self.close(error)
            raise

    def close(self, error: BaseException | None = None) -> None:
        """Leaves the job. With an error, the other ranks hear of it, and every later exchange raises it."""
        if error is not None and self.error is None:
            self.error = error
        if not self._closed:
            self._closed = True
            self._finalizer.detach()
            self._transport.close(error)

    def _check_open(self) -> None:
        if self.error is not None:
            raise self.error
        if self._closed:
            raise GraceError("this exchange is closed; begin another")


def _scale(means: dict[str, Tensor], into: Mapping[str, Tensor], scale: float | Tensor) -> None:
    """Multiplies means, of any shapes, where they are if their place is there; others may be somebody's memory."""
    places = {name: name in into and into[name].data_ptr() == mean.data_ptr() for name, mean in means.items()}
    if there := [means[name] for name, stays in places.items() if stays]:
        torch._foreach_mul_(there, scale)
    if names := [name for name, stays in places.items() if not stays]:
        means.update(zip(names, torch._foreach_mul([means[name] for name in names], scale), strict=True))
