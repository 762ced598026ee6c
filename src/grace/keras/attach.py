"""The one line for a training script: ``handle = grace.keras.attach(model, "topk:ratio=0.01")``, after ``compile``."""

from __future__ import annotations

from typing import Any

from grace.auto.settings import Auto
from grace.contract.method import Method
from grace.keras.handle import KerasHandle
from grace.registry.adaptive import Adaptive
from grace.registry.policy import Policy
from grace.run.options import Granularity, NonFinite, OnDifference, Options
from grace.transports.base import Transport
from grace.transports.choose import transport_for_handle


def attach(
    model: Any,
    method: Policy | Method[Any] | Auto | Adaptive | str,
    *,
    optimizer: Any = None,
    transport: Transport | str = "auto",
    granularity: Granularity = Options.granularity,
    seed: int = Options.seed,
    nonfinite: NonFinite = Options.nonfinite,
    check: bool = Options.check,
    check_replicas_every: int = Options.check_replicas_every,
    on_difference: OnDifference = Options.on_difference,
    checksum: bool = Options.checksum,
    local_world_size: int | None = Options.local_world_size,
    steps_per_epoch: int | None = Options.steps_per_epoch,
) -> KerasHandle:
    """Exchanges this model's gradients with a compression method from now on. All ranks call it alike, after ``compile``.

    All ranks then have rank 0's variables, of the model and of the optimizer. ``fit``, ``train_on_batch`` and a
    ``train_step`` of your own that applies this optimizer work as before. Memories that follow the learning rate
    (``follow_lr=true``) find it in the optimizer.

    Args:
        model: a compiled and built ``keras.Model``, on any backend of Keras.
        method: as for :func:`grace.attach`. Tensors have the names that ``variable.path`` gives, such as ``dense/kernel``.
            One of more than two dimensions is compressed as the matrix ``[-1, shape[-1]]``.
        optimizer: which optimizer of the model, where it has several, as a GAN does: built, with
            ``optimizer.build(variables)``. Each that trains gets a handle of its own. By default the one of ``compile``.
        transport: between the ranks; a name such as "gloo" or "mpi", or "auto": what the launcher implies.
        granularity: what is compressed as one tensor: each "parameter", each "bucket", or the whole "model".
        seed: of all random streams.
        nonfinite: what happens to a tensor in which some rank has an inf or NaN: all ranks see a NaN mean ("propagate"), 0
            ("skip"), or NonFiniteError ("error"). Under a ``LossScaleOptimizer`` all ranks skip the step.
        check: compare all collectives between ranks before they start; slow, for debugging.
        check_replicas_every: steps from one comparison of the replicas to the next, >= 0; 0: none.
        on_difference: replicas that differ raise ReplicasDifferError, on all ranks ("error"); "broadcast", which repairs them
            elsewhere, is refused.
        checksum: whether payloads carry four bytes that are checked on receipt: for machines that flip bits.
        local_world_size: how many workers a machine has, >= 1: those of ``machine=local``, and the most that share memory; 1:
            none do. By default what GRACE_LOCAL_WORLD_SIZE says, or else the launcher.
        steps_per_epoch: updates in an epoch, for schedules that count epochs.

    Returns:
        A handle: ``stats``, ``state_dict()``, ``load_state_dict(s)``, ``save(path)``, ``load(path)``, ``switch(method)``,
        ``detach()``.

    Raises:
        ConfigurationError: a model that is not compiled or not built, several optimizers of which none
            is named, several replicas in one process, XLA where it cannot call the host, or a method that cannot work.
        InputError: a complex or otherwise unsuitable variable, by name.
        FingerprintMismatch: ranks that differ in method, options or model, on every rank, within a minute.

    Warns (each rank):
        UnexchangedWarning: another optimizer of the model is applied, and no handle is attached to it.

    Example::

        model.compile("adam", "mse")
        handle = grace.keras.attach(model, "topk:ratio=0.01")
        model.fit(x, y, callbacks=[grace.keras.AverageMetrics(handle), grace.keras.LogTraffic(handle)])
    """
    options = Options(
        seed, nonfinite, steps_per_epoch, check, granularity, check_replicas_every=check_replicas_every,
        on_difference=on_difference, checksum=checksum, local_world_size=local_world_size,
    )  # fmt: skip
    return KerasHandle(model, method, transport_for_handle(transport), options, optimizer)
