"""Arrivals: the tensors of a step that have come, and the groups that are complete."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from grace.errors import InputError
from grace.run.groups import Group
from grace.run.session import Session


class Arrivals:
    """The tensors of one step, in as many parts as an adapter likes: every name comes once in a step.

    Args:
        session: says which tensors there are, and which belong together.
        absent: what a user can do about a tensor that did not come.
    """

    def __init__(self, session: Session, absent: str):
        self._session, self._absent = session, absent
        self._names: set[str] = set()  # of this step
        self._tensors: dict[str, Tensor] = {}  # of groups that are not complete
        self._into: dict[str, Tensor] = {}  # where their means go

    def add(self, tensors: Mapping[str, Tensor], into: Mapping[str, Tensor]) -> list[Group]:
        """Notes what has come, and where its mean goes. Returns the groups that this completes.

        Raises:
            InputError: an unknown name, another shape or dtype, a name that comes twice in a step.
        """
        ready = []
        session, names = self._session, self._names
        for name, x in tensors.items():
            session.check(name, x)
            if name in names:
                step = session.worker.step
                raise InputError(f"{name!r} comes a second time in step {step}; end the step first (last=True)")
            names.add(name)
            self._tensors[name] = x
            if name in into:
                self._into[name] = into[name]
            group = session.group_of[name]
            if len(group.members) == 1 or all(member in self._tensors for member in group.members):
                ready.append(group)
        return ready

    def pop(self, groups: list[Group]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The members of groups that are complete: tensors, and where means go, each by name."""
        names = [name for group in groups for name in group.members]
        tensors = {name: self._tensors.pop(name) for name in names}
        return tensors, {name: self._into.pop(name) for name in names if name in self._into}

    def check_complete(self) -> None:
        """Checks, as the step ends, that every tensor has come.

        Raises:
            InputError: some tensor did not come.
        """
        like = self._session.like
        if len(self._names) != len(like):
            absent = ", ".join(repr(name) for name in like if name not in self._names)
            raise InputError(
                f"step {self._session.worker.step} ended without {absent}, and every tensor takes part in every step. "
                f"{self._absent}"
            )

    def clear(self) -> None:
        """Starts over: for a step that begins, or one that is left out."""
        self._names.clear()
        self._tensors.clear()
        self._into.clear()
