"""The handle of gossip: after each step of the optimizer the worker mixes its parameters with those of its neighbours."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from grace.adapters.handle import BaseHandle
from grace.adapters.outer.saved import WindowCheckpoint
from grace.adapters.taken import release, take
from grace.adapters.trained import find_trained, refuse_split, zero_nonfinite_state
from grace.errors import ConfigurationError, GraceError, NonFiniteError, StateError
from grace.gossip.algorithms import Mixed
from grace.gossip.saved import read_saved, save_states
from grace.gossip.settings import GossipSettings, with_graph
from grace.gossip.worker import GossipWorker, consensus
from grace.run.checkpoint import GIVEN
from grace.run.lane import Inline, Lane, lane_for
from grace.run.options import Options
from grace.run.saved import OwnState, fill
from grace.run.session import Session
from grace.run.steps import Steps
from grace.transports.base import Transport, closed_on_error
from grace.transports.choose import transport_between

if TYPE_CHECKING:
    from torch.distributed.checkpoint.stateful import Stateful

_TAKEN = "already gossips: its replica is mixed with those of other ranks after each step; use handle.detach() first"


class GossipHandle(BaseHandle):
    """Gossip at work on one model and its optimizer. Made by :func:`grace.gossip`; all ranks call its methods alike.

    ``settings``: with the graph of these workers. ``graph``: who hears whom. ``disagreement``: the distance of the replicas to
    their average when it was last measured, by :meth:`average`, :meth:`measure` or :meth:`averaged_model`, relative to
    the length of the average: ``sqrt(mean of |x_i - mean|^2) / |mean|``; None: not yet.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        settings: GossipSettings,
        options: Options,
        *,
        automatic: bool = True,
        group: dist.ProcessGroup | None = None,
        transport: str | Transport | None = "auto",
    ):
        self._model, self._optimizer = model, optimizer
        self._parameters = find_trained(model, optimizer)
        refuse_split(self._parameters)
        self._kept = {
            name: torch.empty(p.shape, dtype=torch.promote_types(p.dtype, torch.float32), device=p.device)
            for name, p in self._parameters.items()
        }
        over = transport_between(group, transport)
        with closed_on_error(over):
            self.settings, self.graph = with_graph(settings, over.world)
            self._worker = GossipWorker(self._kept, self.settings, self.graph)
            self._texts = self.settings.texts(self.graph)
        session = Session(self._kept, "none", over, options, knobs={**self._texts, "automatic": automatic})
        super().__init__(Steps(session, counted=False))
        with session.telling():
            session.broadcast_(model.parameters())
            for name, p in self._parameters.items():
                self._kept[name].copy_(p.detach())
            self._worker.begin(self._kept)
        self.disagreement: float | None = None
        self._total = 0
        self._sent: dict[str, Tensor] = {}  # numbers that are being mixed beside training, as they were sent
        self._mixed: dict[str, Mixed] | BaseException = {}
        self._landing: dict[str, Tensor] = {}  # how far mixing is to move parameters, once that was saved or loaded
        self._spoiled: list[str] = []  # of those that were not finite somewhere, likewise
        self._synchronized = True  # whether all replicas are the same
        device = next(iter(self._parameters.values())).device
        self._lane: Lane = lane_for(device) if self.settings.overlap else Inline()
        self.stats.overlaps = self._lane.overlaps
        self._hook = optimizer.register_step_post_hook(lambda *_: self.step()) if automatic else None
        self._open = True
        take(self, self._parameters.values(), _TAKEN)

    # ---- during training --------------------------------------------------------------------------------------------
    @torch.no_grad()
    def step(self) -> None:
        """Mixes, once after each step of the optimizer. Its hook calls this, unless ``automatic=False``; then the training
        loop does, also after a step that a gradient scaler has skipped.

        Raises:
            NonFiniteError: with ``nonfinite="error"``, on all ranks; nothing was mixed. TransportError: a collective failed.
        """
        self._check_open()
        with self._session.telling():
            find_trained(self._model, self._optimizer, known=self._parameters)
        self._total += 1
        self._synchronized = False
        self._session.count_step(sum(p.numel() * p.element_size() for p in self._parameters.values()))
        xs = {name: self._numbers(name) for name in self._parameters}
        spoiled = self._restore(xs, self._land(xs))
        every = self.settings.average_every
        if every and self._total % every == 0:
            apart = self._average(xs)
            self._synchronized = not apart
            self._worker.begin({name: x for name, x in xs.items() if name not in apart})
            spoiled += self._restore(xs, apart)
            self._session.advance()
        else:
            spoiled += self._restore(xs, self._launch(xs))
        self._write(xs, spoiled)
        self._session.logs.report(self._total)
        if spoiled and self.settings.nonfinite == "error":
            raise NonFiniteError(
                f"some rank has an inf or NaN in {', '.join(map(repr, sorted(set(spoiled))))} in step {self._total}; "
                "nonfinite='agree' leaves such tensors out"
            )

    def _numbers(self, name: str) -> Tensor:
        """Numbers of this worker for a tensor, of any shape; where parameters are narrow, with what rounding has cut off."""
        p, kept = self._parameters[name].detach(), self._kept[name]
        if p.dtype == kept.dtype:
            return p
        return kept + (p.to(kept.dtype) - kept.to(p.dtype).to(kept.dtype))

    def _launch(self, xs: dict[str, Tensor]) -> list[str]:
        """Mixes these numbers, or begins to; names those that are not finite on some rank."""
        sent = {name: x.clone() for name, x in xs.items()} if self._lane.overlaps else dict(xs)
        peers = {name: self._session.peer(name) for name in sent}

        def run() -> None:
            try:
                self._mixed = self._session.run(self._worker.mix(sent, peers.__getitem__), counted=True)
                self._session.advance()
            except BaseException as error:  # raised where it is waited for
                self._mixed = error

        self._sent = sent
        self._lane.submit(run)
        return [] if self._lane.overlaps else self._land(xs)

    def _land(self, xs: dict[str, Tensor]) -> list[str]:
        """Waits for what was begun, and moves these numbers as far as that says; names those that are not finite somewhere."""
        moves, spoiled = self._take()
        for name, move in moves.items():
            xs[name] = move if xs[name] is self._sent.get(name) else xs[name] + move
        self._sent = {}
        return spoiled

    def _take(self) -> tuple[dict[str, Tensor], list[str]]:
        """By name what was mixed, where nothing has come between; else how far it moves. And what was not finite."""
        with self.stats.wait() if self._lane.overlaps else contextlib.nullcontext():
            self._lane.drain()
        if isinstance(self._mixed, BaseException):
            raise self._mixed
        mixed, self._mixed = self._mixed, {}
        moves, self._landing = self._landing, {}
        fine = {name: out.mean for name, out in mixed.items() if out.finite}
        moves.update({name: mean - self._sent[name] if self._lane.overlaps else mean for name, mean in fine.items()})
        spoiled, self._spoiled = [*self._spoiled, *(name for name, out in mixed.items() if not out.finite)], []
        return moves, spoiled

    def _settle(self) -> None:
        """Waits for what was begun, and keeps what is to come of it."""
        moves, spoiled = self._take()
        self._landing, self._spoiled, self._sent = moves, spoiled, {}

    def _restore(self, xs: dict[str, Tensor], spoiled: list[str]) -> list[str]:
        """Puts back what was last finite, on the rank whose numbers of these tensors are not. Returns the names."""
        self.stats.nonfinite += len(spoiled)
        for name in spoiled if self.settings.nonfinite == "agree" else ():
            if not bool(xs[name].isfinite().all()):
                xs[name] = self._kept[name].clone()
                zero_nonfinite_state(self._optimizer, self._parameters[name])
        return spoiled

    def _write(self, xs: Mapping[str, Tensor], spoiled: list[str]) -> None:
        """Puts numbers, of any shapes, into the parameters. Of those that are not finite the next exchange tells all ranks."""
        for name, p in self._parameters.items():
            if (self._lane.overlaps or name in spoiled) and not bool(xs[name].isfinite().all()):
                continue
            self._kept[name].copy_(xs[name])
            p.copy_(self._kept[name])

    # ---- averages ---------------------------------------------------------------------------------------------------
    @torch.no_grad()
    def average(self) -> None:
        """Makes all replicas their exact average, by one all-reduce; what is on its way is mixed in before. For the end of
        training, or an evaluation after which training goes on from the average. Measures :attr:`disagreement`.

        Raises:
            NonFiniteError: some rank has an inf or NaN; nothing has changed. TransportError: a collective failed.
        """
        self._check_open()
        xs = {name: self._numbers(name) for name in self._parameters}
        self._restore(xs, self._land(xs))
        spoiled = self._average(xs)
        self._worker.begin({name: x for name, x in xs.items() if name not in spoiled})
        self._write(xs, spoiled)
        self._refuse(spoiled)
        self._synchronized = True

    @torch.no_grad()
    def measure(self) -> float:
        """Measures :attr:`disagreement` by one all-reduce, as :meth:`average` does, and changes nothing.

        Raises:
            NonFiniteError: some rank has an inf or NaN. TransportError: a collective failed.
        """
        self._check_open()
        self._refuse(self._average({name: self._numbers(name) for name in self._parameters}))
        assert self.disagreement is not None
        return self.disagreement

    @contextlib.contextmanager
    def averaged_model(self) -> Iterator[nn.Module]:
        """The model with the average of all replicas in its parameters, to evaluate or save, for as long as the block lasts:
        then the rank's own are back. Do not train within. One all-reduce, by all ranks.

        Raises:
            NonFiniteError, TransportError: as :meth:`measure`.
        """
        self._check_open()
        with torch.no_grad():
            own = {name: p.detach().clone() for name, p in self._parameters.items()}
            means = {name: self._numbers(name) for name in self._parameters}
            self._refuse(self._average(means))
            for name, p in self._parameters.items():
                p.copy_(means[name])
        try:
            yield self._model
        finally:
            with torch.no_grad():
                for name, p in self._parameters.items():
                    p.copy_(own[name])

    def _average(self, xs: dict[str, Tensor]) -> list[str]:
        """Makes these numbers the averages over the ranks, and measures how far they were from it; names those that are not
        finite on some rank, which stay.
        """
        with self.stats.wait() if self._lane.overlaps else contextlib.nullcontext():
            self._lane.drain()
        means = self._session.exchange({name: x.clone() for name, x in xs.items()})
        fine = [name for name, mean in means.items() if bool(mean.isfinite().all())]  # on all ranks alike
        averages = {name: means[name].clone() for name in fine}
        if fine:
            apart = consensus([xs[name] for name in fine], list(averages.values()))
            self.disagreement = self.stats.disagreement = self._session.run(apart, counted=True)
        xs.update(averages)
        return [name for name in means if name not in averages]

    def _refuse(self, spoiled: list[str]) -> None:
        if spoiled:
            raise NonFiniteError(
                f"some rank has an inf or NaN in {', '.join(map(repr, spoiled))}: there is no average of it"
            )

    # ---- for the user -----------------------------------------------------------------------------------------------
    def switch(self, method: Any) -> None:
        """Refused: what neighbours know of each other was sent by one compressor.

        Raises:
            ConfigurationError: always.
        """
        raise ConfigurationError(
            f"gossip keeps its compressor, got {method!r:.60}; legal: handle.detach(), then grace.gossip(...) again"
        )

    def state_dict(self) -> dict[str, Any]:
        """State that the next step depends on, except the optimizer's: this rank's parameters, what it knows of its
        neighbours, and what is on its way. Each rank saves and loads its own.
        """
        self._check_open()
        self._settle()
        return OwnState({
            **super().state_dict(),
            "gossip": repr(sorted((what, str(value)) for what, value in self._texts.items())),
            "steps": self._total,
            "conversations": save_states(self._worker.states),
            "replica": {name: p.detach().clone() for name, p in self._parameters.items()},
            "kept": {name: x.clone() for name, x in self._kept.items()},
            "flight": {name: x.clone() for name, x in self._landing.items()},
            "spoiled": list(self._spoiled),
            "alike": self._synchronized,
        })  # fmt: skip

    @torch.no_grad()
    def load_state_dict(self, saved: Any) -> None:
        """Goes on where ``saved`` stopped: it writes the model's parameters as well. All ranks call it, each with its own
        state; either all of them load, or none.

        Raises:
            StateError: one does not fit, or they do not belong together; on every rank. Nothing has changed then.
        """
        self._check_open()
        self._settle()
        super().load_state_dict(saved)
        self._total = saved["steps"]
        for name, talk in self._worker.talks.items():
            self._worker.states[name] = fill(name, talk.init(self._kept[name]), saved["conversations"][name])
        for name, p in self._parameters.items():
            p.copy_(saved["replica"][name])
            self._kept[name].copy_(saved["kept"][name])
        self._landing = {name: x.to(self._kept[name].device).clone() for name, x in saved["flight"].items()}
        self._spoiled, self._synchronized = list(saved["spoiled"]), saved["alike"]

    def _load(self, saved: Any) -> None:
        def read(saved: Mapping[str, Any]) -> Mapping[str, object]:
            text = repr(sorted((what, str(value)) for what, value in self._texts.items()))
            return read_saved(saved, text, self._worker, self._kept, self._parameters, flies=self._lane.overlaps)

        self._session.load_state_dict(saved, also=read)

    def checkpoint(self, *, whole: bool = False) -> Stateful:
        """For ``torch.distributed.checkpoint.save`` and ``load``, by all ranks, after :meth:`average`; loads on any number of
        workers, in any graph. It holds the average of all replicas, and loading writes it into the model's parameters: what
        workers know of each other begins anew, as after an average. The optimizer's state is each rank's own.

        Args:
            whole: whether rank 0's ``state_dict()`` holds all that is saved.

        Raises:
            StateError: the replicas differ.
        """
        self._check_open()
        if not self._synchronized:
            raise StateError(
                "the replicas differ; call handle.average() on all ranks first. handle.state_dict() is all that one rank has"
            )
        return WindowCheckpoint(
            self._session, "mean", None, whole, chooser=GIVEN, steps=self._total, held={"reference": self._kept},
            go_on=self._go_on,
        )  # fmt: skip

    @torch.no_grad()
    def _go_on(self, steps: int) -> None:
        """Begins at the average, which was loaded."""
        self._take()
        self._landing, self._spoiled, self._sent = {}, [], {}
        self._total, self._synchronized = steps, True
        for name, p in self._parameters.items():
            p.copy_(self._kept[name])
            self._worker.states[name] = self._worker.talks[name].init(self._kept[name])
        self._worker.begin(self._kept)

    def detach(self) -> None:
        """The optimizer goes on alone, and the replicas stay different: call :meth:`average` first to end with one."""
        if not self._open:
            return
        self._open = False
        release(self)
        if self._hook is not None:
            self._hook.remove()
        self._lane.close()
        self._lane = Inline()
        self._session.close()

    def _check_open(self) -> None:
        if not self._open:
            raise GraceError("this handle is detached; call grace.gossip(...) again")
        if self.error is not None:
            raise self.error

    def __repr__(self) -> str:
        where = f"rank {self.rank} of {self.world} over {self.transport}"
        graph = f"{self.graph.name} (spectral gap {self.graph.gap:.3g})"
        sent = self._texts["compressor"]
        return f"<GossipHandle {where}: {self.settings.algorithm} on {graph}, compressor {sent}>"
