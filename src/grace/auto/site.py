"""The site of a choice: what a driver must know of the door that it works behind."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from grace.auto.choices import Buckets, guess_buckets
from grace.predict.ways import TO_ALL, Way
from grace.registry.policy import Policy
from grace.run.session import Session
from grace.transports.base import Transport

_CPU = torch.device("cpu")
_MEMORY = 8  # of what is free for a worker, a memory may take one part in so many


def _as_it_is(policy: Policy) -> Policy:
    return policy


@dataclass(frozen=True)
class Site:
    """The tensors that an integration exchanges, and how.

    Attributes:
        shapes: of the tensors by name, in the order in which a backward pass comes to them last. Rules go by these.
        way: how they are exchanged.
        holds: whether a bucket may wait for later ones, and travel with them. If not, the model is listened to while it waits
            for each exchange: see :meth:`grace.auto.driver.Driver.waits`.
        resolve: makes of a policy for these shapes one for the session's tensors.
        names: of the tensors of each bucket, where they are known before the first step.
        device: where tensors are.
        note: what a reader of the explanation must know of it.
        parts: shapes of what is exchanged of each tensor, the same on all ranks; None: all of it.
        beyond: in what exchanges differ from those of the runs that quality was measured in.
        beside: between ranks that exchange other parts of the same tensors, in lines of their own: all decide alike.
    """

    shapes: Mapping[str, tuple[int, ...]]
    way: Way = TO_ALL
    holds: bool = True
    resolve: Callable[[Policy], Policy] = _as_it_is
    names: tuple[tuple[str, ...], ...] = ()
    device: torch.device = _CPU
    note: str = ""
    parts: Mapping[str, tuple[int, ...]] | None = None
    beside: Transport | None = None
    beyond: tuple[str, ...] = ()

    @classmethod
    def of(cls, session: Session) -> Site:
        """The site where a session's tensors are averaged as they are."""
        device = next(iter(session.like.values())).device
        return cls({name: tuple(x.shape) for name, x in session.like.items()}, device=device)

    def buckets(self, most: int, keep: tuple[tuple[str, str], ...]) -> Buckets:
        """The buckets that are to be expected, of ``most`` numbers where nobody knows better."""
        if self.names:
            return Buckets(self.names, self.shapes, keep, self.parts)
        return guess_buckets(self.shapes, most, keep)

    def refuse_memory(self, free: int, *, everywhere: bool = False) -> str:
        """The reason why no method with a memory fits, where each rank keeps one of all rows; empty: it fits.

        Args:
            free: bytes, of one worker.
            everywhere: whether a memory of what is exchanged is looked at as well where there are no rows.
        """
        shapes = self.shapes if self.way.joins or self.parts is None else self.parts
        wanted = 4 * sum(math.prod(shape) for shape in shapes.values())
        if not (self.way.joins or everywhere) or wanted * _MEMORY <= free:
            return ""
        of = "the rows of all ranks, " if self.way.joins else ""
        return (
            f"keeps a memory of {of}{wanted / 1e9:.2g} GB on each, and {free / 1e9:.2g} GB are free, of which it may take one "
            f"part in {_MEMORY}"
        )
