"""The doors of outer loops: ``outer(model, optimizer, "diloco:every=32")`` and, of one preset, ``local(...)``."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from grace.adapters.outer.loop import OuterLoop
from grace.adapters.outer.presets import OuterMethod, OuterSettings, read_outer
from grace.run.options import OnDifference, Options
from grace.transports.base import Transport


class LocalSteps(OuterLoop):
    """Local steps at work on one model and its optimizer: the outer loop that :func:`local` makes."""


def outer(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    method: OuterMethod | None = None,
    *,
    preset: str | None = None,
    every: int | None = None,
    fragments: int | None = None,
    delay: int | None = None,
    alpha: float | None = None,
    lr: float | None = None,
    momentum: float | None = None,
    nesterov: bool | None = None,
    warmup_steps: int | None = None,
    offload: bool = False,
    seed: int = Options.seed,
    check: bool = Options.check,
    check_replicas_every: int = Options.check_replicas_every,
    on_difference: OnDifference = Options.on_difference,
    checksum: bool = Options.checksum,
    local_world_size: int | None = Options.local_world_size,
    steps_per_epoch: int | None = Options.steps_per_epoch,
    automatic: bool = True,
    group: dist.ProcessGroup | None = None,
    transport: str | Transport | None = "auto",
) -> OuterLoop:
    """From now on each rank trains a replica of its own, and every so many steps the ranks exchange how far the replicas have
    moved, which an outer optimizer applies: ``outer(model, optimizer, "diloco:every=32")``. All call it alike.

    The optimizer given is the inner one, whichever the preset names. It starts with rank 0's parameters on all ranks. Buffers,
    such as the running averages of BatchNorm, and the state of the inner optimizer stay each rank's own. All ranks must make
    the same number of steps.

    ====================  =================================================================================================
    ``local_sgd``         the replicas are averaged every H steps (Stich, 1805.09767): lr 1
    ``post_local_sgd``    the same after steps that average gradients (Lin et al., 1808.07217)
    ``diloco``            H 500, outer Nesterov 0.7, 0.9 (Douillard et al., 2311.08105)
    ``streaming_diloco``  H 100, 4 fragments in ``e3m0``, applied one step later, alpha 0.5 (Douillard et al., 2501.18512)
    ``sparseloco``        H 30, lr 1, ``chunktopk``: 64 of 4096, 2 bits, error feedback (Sarfi et al., 2508.15706)
    ``muloco``            H 30, 2 bits with error feedback, outer Nesterov 0.7, 0.9 (Therien et al., 2505.23725)
    ====================  =================================================================================================

    Args:
        model: a plain module, not wrapped.
        optimizer: what trains it, the inner optimizer; ``optimizer.step()`` is an inner step, and exchanges where one is due.
        method: what compresses pseudo-gradients, one tensor for each parameter, as for :func:`grace.attach`; or a preset with
            its knobs, ``"sparseloco:every=32,lr=0.4,method=(topk:ratio=0.01)"``. None: the preset's.
        preset: where ``method`` is a method, a preset with its knobs; by default ``local_sgd``.
        every: H, inner steps from one exchange of a tensor to the next, >= 1.
        fragments: parts of the model, of about the same size, that are exchanged in turn; they divide ``every``.
        delay: inner steps beside which an exchange runs, 0 <= delay < every / fragments. Its mean is applied exactly so many
            steps later, on all ranks alike.
        alpha: share of its own parameters that each rank keeps when a mean is applied, 0 to 1. With ``delay`` and 0, what a
            rank has trained meanwhile is lost.
        lr: of the outer optimizer, > 0.
        momentum: of the outer optimizer, 0 <= momentum < 1.
        nesterov: whether that momentum is Nesterov's.
        warmup_steps: steps at the start in which gradients are averaged, uncompressed, before each rank applies them.
        offload: whether theta and the outer momentum are kept in the memory of the host.
        seed: of all random streams.
        check: compare all collectives between ranks before they start; slow, for debugging.
        check_replicas_every: exchanges from one comparison of the replicas to the next, >= 0; 0: none.
        on_difference: what replicas that differ lead to: ReplicasDifferError on all ranks ("error"), or copies of those that
            most ranks have, with a warning ("broadcast").
        checksum: whether payloads carry four bytes that are checked on receipt: for machines that flip bits.
        local_world_size: how many workers a machine has, >= 1; see :func:`local`.
        steps_per_epoch: exchanges in an epoch, for schedules that count epochs.
        automatic: whether the optimizer's hook counts steps; if not, call ``handle.step()`` after each.
        group: the ranks; by default all. They get a process group of their own beside it.
        transport: between the ranks, in place of such a group: an object, or a name as for :func:`grace.transport`.

    Returns:
        A handle: ``stats``, ``synchronized``, ``sync()``, ``drain()``, ``model``, ``shared_model()``, ``state_dict()``,
        ``load_state_dict(s)``, ``checkpoint()``, ``step()``, ``average_gradients()``, ``detach()``.

    Raises:
        ConfigurationError: a wrapped model, an optimizer of other parameters, a knob out of range, fragments that do not
            divide the steps, a delay that is too long.
        CompositionError: a method that takes a majority vote.
        UnknownNameError: an unknown preset, knob or method.
        InputError: a complex or otherwise unsuitable parameter, by name.
        FingerprintMismatch: ranks that differ in method, settings or model, on every rank, within a minute.
    """
    options = Options(
        seed, steps_per_epoch=steps_per_epoch, check=check, check_replicas_every=check_replicas_every,
        on_difference=on_difference, checksum=checksum, local_world_size=local_world_size,
    )  # fmt: skip
    settings, method = read_outer(
        method, preset, every=every, fragments=fragments, delay=delay, alpha=alpha, lr=lr, momentum=momentum,
        nesterov=nesterov, warmup_steps=warmup_steps,
    )  # fmt: skip
    return OuterLoop(
        model,
        optimizer,
        method,
        options,
        settings,
        automatic=automatic,
        offload=offload,
        group=group,
        transport=transport,
    )


def local(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    method: OuterMethod,
    *,
    every: int,
    warmup_steps: int = 0,
    seed: int = Options.seed,
    check: bool = Options.check,
    check_replicas_every: int = Options.check_replicas_every,
    on_difference: OnDifference = Options.on_difference,
    checksum: bool = Options.checksum,
    local_world_size: int | None = Options.local_world_size,
    steps_per_epoch: int | None = Options.steps_per_epoch,
    automatic: bool = True,
    group: dist.ProcessGroup | None = None,
    transport: str | Transport | None = "auto",
) -> LocalSteps:
    """From now on each rank makes ``every`` steps of its own, then the ranks exchange what has changed. All call it alike.

    It starts with rank 0's parameters on all ranks. Buffers, such as the running averages of BatchNorm, and the state of
    the optimizer stay local; each rank keeps its own. All ranks must make the same number of steps.

    Args:
        model: a plain module, not wrapped.
        optimizer: what trains it; ``optimizer.step()`` ends a local step, and at the end of a window exchanges.
        method: as for :func:`grace.attach`; it gets the differences of the parameters, one tensor for each. "auto" chooses
            one for each ``bucket_bytes`` of them, by rounds: windows and their exchange.
        every: H, local steps in a window; 1 exchanges after each.
        warmup_steps: steps at the start in which gradients are averaged, uncompressed, before each rank applies them
            (post-local SGD).
        seed: of all random streams.
        check: compare all collectives between ranks before they start; slow, for debugging.
        check_replicas_every: exchanges from one comparison of the replicas to the next, >= 0; 0: none.
        on_difference: what replicas that differ lead to: ReplicasDifferError on all ranks ("error"), or copies of those that
            most ranks have, with a warning ("broadcast").
        checksum: whether payloads carry four bytes that are checked on receipt: for machines that flip bits.
        local_world_size: how many workers a machine has, >= 1: those of ``machine=local``, and the most that share memory; 1:
            none do. By default what GRACE_LOCAL_WORLD_SIZE says, or else the launcher.
        steps_per_epoch: synchronizations in an epoch, for schedules that count epochs.
        automatic: whether the optimizer's hook counts steps. If not, call ``handle.step()`` after each: with a gradient
            scaler, which may skip a step on one rank alone. In a warm-up, call ``handle.average_gradients()`` before each.
        group: the ranks; by default all. They get a process group of their own beside it.
        transport: between the ranks, in place of such a group: an object, or a name as for :func:`grace.transport`.

    Returns:
        A handle: ``stats``, ``synchronized``, ``sync()``, ``model``, ``state_dict()``, ``load_state_dict(s)``,
        ``checkpoint()``, ``step()``, ``average_gradients()``, ``detach()``.

    Raises:
        ConfigurationError: a wrapped model, an optimizer of other parameters, a knob out of range.
        InputError: a complex or otherwise unsuitable parameter, by name.
        FingerprintMismatch: ranks that differ in method, knobs or model, on every rank, within a minute.
    """
    options = Options(
        seed, steps_per_epoch=steps_per_epoch, check=check, check_replicas_every=check_replicas_every,
        on_difference=on_difference, checksum=checksum, local_world_size=local_world_size,
    )  # fmt: skip
    settings = OuterSettings(every=every, warmup_steps=warmup_steps)
    return LocalSteps(
        model, optimizer, method, options, settings, automatic=automatic, group=group, transport=transport
    )
