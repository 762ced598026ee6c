"""Base of the handles of all adapters."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any

from grace.contract.method import Method
from grace.registry.policy import Policy
from grace.run.checkpoint import GIVEN, Checkpoint, Chooser, Memories
from grace.run.optimizer import Settings, check_optimizer
from grace.run.plan import ExchangePlan
from grace.run.saved import OwnState, refuse_dcp
from grace.run.stats import Stats
from grace.run.steps import Steps

if TYPE_CHECKING:
    from torch.distributed.checkpoint.stateful import Stateful


class BaseHandle:
    """Grace at work on one model: :class:`~grace.run.steps.Steps`, and what a user asks of them. To derive from.

    ``rank``, ``world``: this worker, and how many there are. All ranks call the methods alike.
    """

    def __init__(self, steps: Steps):
        self._steps, self._session = steps, steps.session
        self.rank, self.world = self._session.rank, self._session.world

    @property
    def stats(self) -> Stats:
        """Cost of the exchanges so far."""
        return self._session.stats

    @property
    def transport(self) -> str:
        """The transport, and why it was chosen: ``mpi (PMI_RANK is set)``."""
        return self._session.transport

    @property
    def error(self) -> BaseException | None:
        """Exception that has ended the exchange; None while it goes on."""
        return self._session.error

    @property
    def lr(self) -> float | None:
        """The learning rate of the coming step, the same on all ranks, for memories that follow it. Set it before each
        step, where nothing else does.
        """
        return self._steps.lr

    @lr.setter
    def lr(self, lr: float | None) -> None:
        self._steps.lr = lr

    def plan(self) -> ExchangePlan:
        """The exchange of the coming step: parameter, shape, method, bytes and their share. It prints as a table."""
        return self._session.plan()

    def log(self, to: Any, *, every: int = 1, errors_every: int = 0) -> None:
        """Tells ``to``, every ``every`` steps, what they were like; may be called several times, and on some ranks only.

        Args:
            to: a TensorBoard ``SummaryWriter``, a run of Weights & Biases, a logger with ``log_metrics(dict, step)`` as
                Lightning has them, or a function ``log(dict, step)``.
            every: steps from one line to the next, >= 1. Numbers are per step, over the steps since the last line.
            errors_every: steps from one measurement of compression errors to the next, >= 0; 0 measures none. It costs
                one more compression of every tensor, on this rank, in such a step.

        ==========================  =====================================================================================
        ``grace/sent_bytes``        bytes that this worker sent
        ``grace/ratio``             how many times fewer than a ring all-reduce of the gradients as they are
        ``grace/codec_seconds``     encoding, decoding, fusing
        ``grace/exchange_seconds``  in collectives, waiting for other ranks included
        ``grace/exposed_seconds``   of both, what training waited for
        ``grace/nonfinite``         tensors in which some rank had an inf or NaN
        ``grace/memory_norm``       of what this worker owes the model, over all tensors
        ``grace/error/NAME``        ``|x - C(x)| / |x|`` of a tensor or group; x has the memory in it
        ==========================  =====================================================================================

        Raises:
            ConfigurationError: nothing to log to, or a knob out of range.
        """
        self._session.logs.add(to, every=every, errors_every=errors_every)

    def replayed(self, *, applied: bool = True) -> None:
        """Call it after each ``graph.replay()``, on all ranks, if a step with this exchange was captured into a CUDA graph: it
        ends the step, which a graph cannot. An inf, NaN or illegal payload is raised or counted two steps later. The
        current stream must be the one that replays: there the next replay finds the number of its step.

        Args:
            applied: False where no optimizer applies the gradients of this replay, on all ranks alike: the step owes nothing,
                memories are what they were before it.

        Raises:
            GraceError: no step was captured, or ``applied=False`` to a handle that keeps nothing to be undone.
        """
        self._session.replayed(applied)

    def switch(self, method: Policy | Method[Any] | str) -> None:
        """Uses another method or policy from the next step on. What memories owe is added to what is exchanged next.

        Raises:
            FingerprintMismatch: the ranks switch to different methods; they then go on as before.
            GraceError: the handle is detached.
        """
        self._session.switch(method)
        self._check_optimizer()

    def _check_optimizer(self) -> None:
        """Warns, on rank 0, of a method in use that needs another optimizer."""
        if self.rank == 0:
            check_optimizer(self._session.policy, self._session.group_tensors(), self._settings())

    def _settings(self) -> Settings | None:
        """The settings of the optimizer that uses the means; None: it has not been given."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """State that the next step depends on. Each rank saves and loads its own.

        Raises:
            StateError: ``torch.distributed.checkpoint`` asks for it, as in ``dcp.save({"grace": handle})``, or is given it:
                that would keep the memories of one rank only. Give it ``handle.checkpoint()``.
        """
        refuse_dcp()
        return OwnState(self._session.state_dict())

    def load_state_dict(self, saved: Any) -> None:
        """Goes on where ``saved`` stopped, under the same method, model and number of workers. All ranks call it, each with
        its own state; either all of them load, or none.

        Raises:
            StateError: one does not fit, or they do not belong together; on every rank. Nothing has changed then.
        """
        self._load(saved)

    def _load(self, saved: Any) -> None:
        self._session.load_state_dict(saved)

    @property
    def _chooser(self) -> Chooser:
        """The chooser of its methods, for checkpoints."""
        return GIVEN

    def __repr__(self) -> str:
        return f"<{type(self).__name__} rank {self.rank} of {self.world} over {self.transport}: {self._session.policy}>"


class Handle(BaseHandle, abc.ABC):
    """The handle of an exchange of gradients, as :func:`grace.attach` returns. Its state is the session's. To derive from."""

    @abc.abstractmethod
    def detach(self) -> None:
        """Leaves the job: from now on the gradients are this rank's, or the model's own wrapper exchanges them."""

    def checkpoint(self, memories: Memories = "mean", workers: int | None = None, *, whole: bool = False) -> Stateful:
        """For ``torch.distributed.checkpoint.save`` and ``load``, by all ranks; loads on any number of workers.

        Also for libraries that call ``state_dict()`` on all ranks and write that of rank 0, such as Accelerate.

        Args:
            memories: "mean": the mean of the workers' memories, once. "all": each worker's state: the same number of workers
                goes on with the same bits, any other number with the mean. What ``auto`` has chosen is kept with either.
            workers: for "all" only, how many workers saved it, if not as many as there are now.
            whole: whether rank 0's ``state_dict()`` holds all workers' states, where one rank writes the file that all read.
                It is gathered there, and ``workers`` is found in the file.
        """
        return Checkpoint(self._session, memories, workers, whole, self._chooser)
