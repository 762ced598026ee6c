"""Which tensors of a step have come, and which groups are complete."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from grace.errors import InputError
from grace.run.groups import Group
from grace.run.worker import check_tensor


class Arrivals:
    """The tensors of one step, in as many parts as an adapter likes: every name comes once in a step.

    Args:
        like: a tensor for each name; its shape and dtype count.
        absent: what a user can do about a tensor that did not come.

    Call :meth:`sort_into` before the first step.
    """

    def __init__(self, like: Mapping[str, Tensor], absent: str):
        self._kinds = {name: (x.shape, x.dtype) for name, x in like.items()}
        self._absent = absent
        self._group_of: dict[str, Group] = {}
        self._names: set[str] = set()  # of this step
        self._waiting: dict[str, tuple[Tensor, Tensor | None]] = {}  # of groups that are not complete

    def sort_into(self, groups: Sequence[Group]) -> None:
        """Exchanges tensors in these groups from now on."""
        self._group_of = {name: group for group in groups for name in group.members}

    def note(self, tensors: Mapping[str, Tensor], into: Mapping[str, Tensor], step: int) -> list[Group]:
        """Notes what has come, and where its mean goes. Returns the groups that this completes.

        Raises:
            InputError: an unknown name, another shape or dtype, a name that comes twice in a step.
        """
        ready = []
        for name, x in tensors.items():
            kind = self._kinds.get(name)
            if kind is None:
                raise InputError(f"{name!r} was not there when the exchange began; legal: the names given then")
            if x.shape != kind[0] or x.dtype != kind[1] or x.layout != torch.strided:
                check_tensor(name, x)
                raise InputError(
                    f"{name!r} is {x.dtype} {tuple(x.shape)}, and was {kind[1]} {tuple(kind[0])} when it began"
                )
            if name in self._names:
                raise InputError(f"{name!r} comes a second time in step {step}; end the step first (last=True)")
            self._names.add(name)
            self._waiting[name] = (x, into.get(name))
            group = self._group_of[name]
            if len(group.members) == 1 or all(member in self._waiting for member in group.members):
                ready.append(group)
        return ready

    def take(self, group: Group) -> dict[str, tuple[Tensor, Tensor | None]]:
        """The members of a group that is complete: each tensor, and where its mean goes."""
        return {name: self._waiting.pop(name) for name in group.members}

    def check_complete(self, step: int) -> None:
        """Checks, as the step ends, that every tensor has come.

        Raises:
            InputError: some tensor did not come.
        """
        if len(self._names) != len(self._kinds):
            absent = ", ".join(repr(name) for name in self._kinds if name not in self._names)
            raise InputError(
                f"step {step} ended without {absent}, and every tensor takes part in every step. {self._absent}"
            )

    def forget(self) -> None:
        """Starts over: for a step that begins, or one that is left out."""
        self._names.clear()
        self._waiting.clear()
