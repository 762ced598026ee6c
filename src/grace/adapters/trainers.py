"""Shared parts of the callbacks for other libraries' trainers: they attach, and put memories into the trainers'
checkpoints.
"""

from __future__ import annotations

import warnings
import weakref
from typing import Any

import torch

import grace.adapters.torch_ddp  # noqa: F401 - which is a door
from grace.adapters.doors import find_door
from grace.adapters.handle import Handle
from grace.auto.settings import Auto, wanted
from grace.contract.method import Method
from grace.errors import ConfigurationError, GraceWarning, StateError, out_of_range
from grace.registry.adaptive import Adaptive
from grace.registry.policy import Policy
from grace.run.checkpoint import MEMORIES, Memories
from grace.run.log import PREFIX
from grace.run.options import Granularity, NonFinite, OnDifference, Options
from grace.transports.base import Transport


class AttachingCallback:
    """Grace beside a trainer that wraps the model itself. To derive a callback from.

    Args:
        method, granularity, seed, nonfinite, check, check_replicas_every, on_difference, checksum, local_world_size,
            steps_per_epoch, transport: as for :func:`grace.attach`.
        memories: what a checkpoint holds, in one file: "mean", the mean of the workers' memories, which loads on any number
            of workers and under any method; or "all", each worker's state, gathered by rank 0: the same number of workers goes
            on with the same bits.
        errors_every: steps from one measurement of compression errors to the next; 0 measures none.

    Raises:
        ConfigurationError: an unknown method, or a knob out of range.

    ``handle``: of the model that is trained, to switch the method or to read ``stats``; None before training.
    """

    def __init__(
        self,
        method: Policy | Method[Any] | Auto | Adaptive | str,
        *,
        granularity: Granularity = Options.granularity,
        seed: int = Options.seed,
        nonfinite: NonFinite = Options.nonfinite,
        check: bool = Options.check,
        check_replicas_every: int = Options.check_replicas_every,
        on_difference: OnDifference = Options.on_difference,
        checksum: bool = Options.checksum,
        local_world_size: int | None = Options.local_world_size,
        steps_per_epoch: int | None = Options.steps_per_epoch,
        transport: str | Transport | None = "auto",
        memories: Memories = "mean",
        errors_every: int = 0,
    ):
        super().__init__()
        if memories not in MEMORIES:
            raise out_of_range(type(self).__name__, "memories", memories, " or ".join(map(repr, MEMORIES)))
        if type(errors_every) is not int or errors_every < 0:
            raise out_of_range(type(self).__name__, "errors_every", errors_every, "a whole number >= 0")
        self.handle: Handle | None = None
        self._options = Options(
            seed, nonfinite, steps_per_epoch, check, granularity, check_replicas_every=check_replicas_every,
            on_difference=on_difference, checksum=checksum, local_world_size=local_world_size,
        )  # fmt: skip
        self._method: Any = wanted(method) or self._options.read(method)  # type: ignore[arg-type]
        self._transport = transport
        self._memories, self._errors_every = memories, errors_every
        self._found: dict[str, float] = {}  # of the last step
        self._trained: weakref.ref[Any] | None = None  # the module of the last training
        self._left: dict[str, Any] | None = None  # its state, which goes on if it is trained again

    def _attach(
        self, model: Any, how: str, optimizer: Any, scaler: torch.amp.GradScaler | None, *, resumes: bool = False
    ) -> None:
        """Attaches to the model that the trainer has wrapped; ``how``: how to make it wrap it in DistributedDataParallel. If
        this callback has trained the same module before, memories go on from there, unless a checkpoint ``resumes``.

        Raises:
            ConfigurationError: there are several workers, and it has not.
        """
        self._detach()
        try:
            door = find_door(model)
        except ConfigurationError as error:
            text = f"the trained model is a {type(model).__name__}, not a DistributedDataParallel model"
            world = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
            if world > 1:
                raise ConfigurationError(f"{type(self).__name__}: {text}; {how}") from error
            warnings.warn(f"{text}: nothing is exchanged. For several workers {how}", GraceWarning, stacklevel=2)
            return
        self.handle = door.open(
            model, self._method, self._options, optimizer=optimizer, scaler=scaler, transport=self._transport
        )
        module = getattr(model, "module", model)
        again = self._trained is not None and self._trained() is module
        left, self._left, self._trained = self._left, None, weakref.ref(module)
        if left is not None and again and not resumes:
            try:
                self.handle.load_state_dict(left)
            except StateError as error:  # on all ranks
                if self.handle.rank == 0:
                    warnings.warn(f"memories of the last training start empty: {error}", GraceWarning, stacklevel=2)

    def _detach(self) -> None:
        if self.handle is not None:
            if self.handle.error is None:
                self._left = self.handle.state_dict()
            self.handle.detach()
            self.handle = None

    def _save(self) -> dict[str, Any]:
        """For a checkpoint that rank 0 writes. All ranks call it."""
        return {} if self.handle is None else self.handle.checkpoint(self._memories, whole=True).state_dict()

    def _load(self, saved: dict[str, Any] | None) -> None:
        """Loads what such a checkpoint holds; None: it holds nothing of Grace. All ranks call it.

        Raises:
            StateError: it does not fit, on all ranks.
        """
        if self.handle is None:
            return
        if saved is not None:
            self.handle.checkpoint(self._memories, whole=True).load_state_dict(saved)
        elif self.handle.rank == 0:
            warnings.warn("the checkpoint holds no memories of Grace: they start empty", GraceWarning, stacklevel=2)

    def _watch(self, every: int) -> None:
        """Notes, every ``every`` steps, what they were like, for :meth:`_take`."""
        if self.handle is not None:
            every = max(1, every)
            self.handle.log(
                lambda values, step: self._found.update(values), every=every, errors_every=self._errors_every
            )

    def _take(self, separator: str = "/") -> dict[str, float]:
        """Take what was noted since the last call."""
        values = {f"grace{separator}{key.removeprefix(PREFIX)}": value for key, value in self._found.items()}
        self._found = {}
        return values
