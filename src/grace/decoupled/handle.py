"""``grace.decoupled(model, optimizer, "host:4711", name="a", every=100)``: this process is a learner, and waits for nobody."""

from __future__ import annotations

import secrets
import time
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from grace.adapters.taken import release, take
from grace.adapters.trained import find_trained, refuse_split
from grace.decoupled.learner import Learner, LearnerStats
from grace.decoupled.messages import FromLearner, Progress
from grace.decoupled.plan import Plan
from grace.errors import AgreementError, ConfigurationError, GraceError, PayloadError, UnexchangedWarning, stack_level
from grace.transports.base import closed_on_error

_SMOOTHING = 0.1  # of the time of a step
_POLL = 0.2  # seconds
_TAKEN = "is already trained by a decoupled learner, which exchanges it; use handle.detach() first"


class DecoupledHandle:
    """A learner: hears of each step of its optimizer, and lets the syncer's fragments in between two of them."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        learner: Learner,
        address: str,
        credentials: Any = None,
    ):
        from grace.decoupled.network import SyncerLink

        self._learner, self._address = learner, address
        self._model = model
        self._told = False  # that the syncer is not there
        self._last: float | None = None
        self._seconds = 0.0
        link = SyncerLink(address, credentials)
        with closed_on_error(link):
            self._hook = optimizer.register_step_post_hook(lambda *_: self.step())
        self._link: SyncerLink | None = link

    # ---- during training --------------------------------------------------------------------------------------------
    def step(self) -> None:
        """Counts a step; the optimizer's hook calls it. Never waits for the syncer.

        Raises:
            AgreementError: the syncer refuses this learner: another process has its name, or its model differs.
        """
        now = time.monotonic()
        if self._last is not None:
            took = now - self._last
            self._seconds += (took - self._seconds) * (_SMOOTHING if self._seconds else 1.0)
        self._last = now
        self._send(self._learner.step(self._seconds))
        self._read(None)

    def _read(self, timeout: float | None) -> None:
        from grace.decoupled.network import Closed, Opened
        from grace.decoupled.packing import read_syncer

        if self._link is None:
            return
        for event in self._link.events(timeout):
            if isinstance(event, Opened):
                self._send([self._learner.hello()])
            elif isinstance(event, Closed):
                if self._learner.welcome:
                    self._tell(event.reason)
                self._learner.disconnected()
            else:
                try:
                    message = read_syncer(event.data, f"the syncer at {self._address}")
                    self._send(self._learner.receive(message, self._seconds))
                except PayloadError as error:
                    self._tell(str(error))
                    self._learner.disconnected()
                    self._link.reopen()
                except AgreementError:
                    self.detach()
                    raise
        if self._learner.synchronized:
            self._told = False

    def _send(self, messages: list[FromLearner]) -> None:
        from grace.decoupled.packing import pack

        if self._link is not None:
            for message in messages:
                self._link.send(pack(message), droppable=isinstance(message, Progress))

    def _tell(self, why: str) -> None:
        """Says once that the syncer is not there, until it is."""
        if not self._told:
            self._told = True
            warnings.warn(
                UnexchangedWarning(
                    f"learner {self.name!r} trains alone, since the syncer at {self._address} is not there: {why}. It looks "
                    "for it again, and what it computes counts as soon as that is back"
                ),
                stacklevel=stack_level(),
            )

    def wait(self, timeout: float) -> bool:
        """Waits for the syncer's parameters, at the start of training; returns whether they have come.

        Raises:
            AgreementError: as :meth:`step`.
        """
        end = time.monotonic() + timeout
        while not self._learner.synchronized and (left := end - time.monotonic()) > 0:
            self._read(min(_POLL, left))
        if not self._learner.synchronized:
            self._tell(f"nothing has come within {timeout:g} seconds")
        return self._learner.synchronized

    # ---- for the user -----------------------------------------------------------------------------------------------
    @property
    def name(self) -> str:
        """The learner's."""
        return self._learner.name

    @property
    def connected(self) -> bool:
        """True if the syncer is there."""
        return self._learner.welcome

    @property
    def stats(self) -> LearnerStats:
        """Totals of this learner since its start."""
        return self._learner.stats

    @property
    def tokens_per_step(self) -> int:
        """Tokens, or samples, of one step; it may be changed between two of them, >= 1."""
        return self._learner.tokens_per_step

    @tokens_per_step.setter
    def tokens_per_step(self, tokens: int) -> None:
        self._learner.tokens_per_step = tokens

    def merged(self) -> dict[str, Tensor]:
        """The merged parameters as they last came, float32 on the host, by name: evaluate and save these. The model's own have
        trained on since then. Buffers are not among them: they stay with each learner.

        Raises:
            GraceError: they have not come yet.
        """
        if (parameters := self._learner.merged()) is None:
            raise GraceError("no merged parameters yet: the syncer has not sent every fragment")
        return parameters

    def state_dict(self) -> dict[str, Any]:
        """All of this learner but the optimizer's state, parameters included: plain tensors, for ``torch.save``. It goes on
        with ``grace.decoupled(..., state=saved)``.
        """
        return self._learner.state_dict()

    def detach(self) -> None:
        """The optimizer goes on alone, and this learner is gone for good: what it owes is written off by the syncer."""
        release(self)
        self._hook.remove()
        if self._link is not None:
            link, welcome = self._link, self._learner.welcome
            self._send(self._learner.goodbye())
            self._link = None
            link.close(patience=5.0 if welcome else 0.0)

    def __repr__(self) -> str:
        there = "with" if self.connected else "without"
        plan = self._learner.plan
        return f"<DecoupledHandle {self.name!r}, {there} the syncer at {self._address}, every {plan.every} steps, {plan.up}>"


def decoupled(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    address: str,
    *,
    name: str,
    every: int,
    method: str = "none",
    down: str | None = None,
    fragments: int = 1,
    overlap: int = 1,
    tokens_per_step: int = 1,
    seed: int = 0,
    state: Any = None,
    timeout: float = 30.0,
    credentials: Any = None,
) -> DecoupledHandle:
    """From now on this process is a learner of Decoupled DiLoCo: it trains at its own pace, and a syncer merges its
    fragments with those of others (``grace syncer``). It starts with the merged parameters, or brings the first ones.

    Args:
        model: a plain module, not wrapped. Its buffers stay local.
        optimizer: what trains it; its step is the learner's.
        address: ``host:port`` of the syncer.
        name: which no other learner has; a process that takes this one's place has the same.
        every: H, steps from one exchange of a fragment to the next, >= 1.
        method: a compressor for what is sent, such as ``"topk:ratio=0.01"``; what it leaves out is sent later.
        down: a compressor for what comes; by default bf16, or none where ``method`` is. A coarse one lags behind,
            and with outer momentum the training may then diverge.
        fragments: P, of about equal sizes, exchanged in turn: 1 to ``every``, and to the number of parameters.
        overlap: steps that the exchange of a fragment may take, >= 0; within them the syncer waits for more learners.
        tokens_per_step: tokens, or samples, of one step, >= 1: learners that see more of them weigh more.
        seed: of all random streams.
        state: of :meth:`DecoupledHandle.state_dict`; this process goes on with it.
        timeout: seconds to wait for the first parameters. After that it trains alone, says so, and looks for the syncer again.
        credentials: ``grpc.ChannelCredentials``; None: in the clear.

    Raises:
        ConfigurationError: a knob out of range, a wrapped model or one under fully_shard, parameters that another handle
            or optimizer of Grace exchanges, or packages that are not installed.
        AgreementError: the syncer has another model, or other settings, or enough learners.
        StateError: a state that does not fit.
    """
    if not isinstance(address, str) or not address.rpartition(":")[2].isdigit():
        raise ConfigurationError(
            f"decoupled: address={address!r}; legal: host:port of the syncer, such as 10.0.0.1:4711"
        )
    parameters = find_trained(model, optimizer)
    refuse_split(parameters)
    embeddings = {m.weight for m in model.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)}
    plan = Plan.of(
        parameters, every=every, fragments=fragments, overlap=overlap, up=method, down=down,
        plain=[key for key, p in parameters.items() if p in embeddings], seed=seed,
    )  # fmt: skip
    learner = Learner(name, parameters, plan, tokens_per_step=tokens_per_step, start=secrets.randbits(32))
    if state is not None:
        learner.load_state_dict(state)
    handle = DecoupledHandle(model, optimizer, learner, address, credentials)
    take(handle, parameters.values(), _TAKEN)
    try:
        handle.wait(timeout)
    except BaseException:
        handle.detach()
        raise
    return handle
