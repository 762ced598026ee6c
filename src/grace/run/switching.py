"""Switching of a session's method: to one that the ranks agree on at each switch, or among choices that they agree on once."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from grace.contract.method import Method
from grace.contract.peer import Peer
from grace.errors import ConfigurationError
from grace.registry.policy import Policy
from grace.run.groups import Group, form_groups, regroup
from grace.run.options import Options
from grace.run.plan import ExchangePlan, plan_groups
from grace.run.worker import Worker
from grace.transports.agreement import ATTACH, agree
from grace.transports.base import Transport

_SWITCH = (
    "switch the method",
    "did not switch in this step: all ranks switch, in the same step, each with handle.switch(...)",
)


class Switching(abc.ABC):
    """Use and change of methods, as a base class of :class:`grace.run.session.Session`."""

    like: dict[str, Tensor]
    groups: Sequence[Group]
    options: Options
    worker: Worker
    world: int
    _knobs: dict[str, object]
    _transport: Transport

    @abc.abstractmethod
    def _check_open(self) -> None: ...

    @abc.abstractmethod
    def _sort_into(self, groups: Sequence[Group]) -> None: ...

    @abc.abstractmethod
    def _agree(self, policy: Policy, seconds: float | None = None, *, doing: tuple[str, str] = ATTACH) -> None: ...

    @abc.abstractmethod
    def _warn_about(self, policy: Policy) -> None: ...

    @abc.abstractmethod
    def peer(self, name: str = "") -> Peer: ...

    @property
    def policy(self) -> Policy:
        """The method of each tensor, or group of tensors."""
        return self.worker.policy

    def plan(self) -> ExchangePlan:
        """The exchange plan of this worker for the coming step, if no other method is switched to."""
        return plan_groups(self.groups, self.like, self.worker.policy, self.peer())

    def switch(self, method: Policy | Method[Any] | str) -> None:
        """Uses another method or policy from the next step on. What memories owe is added to the next tensors.

        Raises:
            FingerprintMismatch: the ranks switch to different methods. They then go on as before.
        """
        self._check_open()
        policy = self.options.read(method)
        groups, group_policy = form_groups(self.like, policy, self.options)
        self._check_axes(policy)
        self._agree(policy, doing=_SWITCH)
        self._warn_about(policy)
        if groups == self.groups:
            self.worker.switch(group_policy)
        else:
            owed = regroup(self.worker.take_debts(), self.groups, groups)
            self.worker.switch(group_policy)
            self.worker.add_debts(owed)
        self._sort_into(groups)

    def offer(
        self, choices: Sequence[Policy | Method[Any] | str], first: int = 0, *, also: Mapping[str, str] | None = None
    ) -> None:
        """The ranks agree once on what :meth:`use` then changes between, without asking again. From now on ``first`` is used.

        Args:
            choices: methods or policies.
            first: the number of one of them.
            also: what else the ranks must have in common, each under its name.

        Raises:
            FingerprintMismatch: the ranks offer different choices. They go on as before then.
            ConfigurationError: nothing is offered, a policy follows the step, or ``granularity`` is not "parameter": what is
                exchanged as one tensor must not depend on the choice.
        """
        self._check_open()
        if self.options.granularity != "parameter":
            raise ConfigurationError(
                f"choices are made for each parameter, and granularity={self.options.granularity!r}; legal: 'parameter'"
            )
        policies = [self.options.read(choice) for choice in choices]
        for policy in policies:
            self._check_axes(policy)
        texts = {f"choice {number}": repr(policy) for number, policy in enumerate(policies)}
        agree(
            {"choices": str(len(policies)), "choice that is used first": str(first), **texts, **(also or {})},
            self._transport,
            doing=_SWITCH,
        )
        self.worker.offer(policies)
        self.worker.use(first)

    def use(self, number: int, *, trial: bool = False) -> None:
        """Uses one of the choices from the next step on. All ranks call it alike, between two steps; nothing is compared.

        Args:
            number: of the choice, in the order in which they were offered.
            trial: whether it comes back soon: then memories only wait. Otherwise the one that stays takes over what others are
                owed, or, where it has no memory, the next gradients do, in instalments.

        Raises:
            ConfigurationError: there is no such choice.
        """
        self._check_open()
        self.worker.use(number, trial=trial)

    def _check_axes(self, policy: Policy) -> None:
        wanted, has = policy.axes(self.world), {axis: size for axis, (_, size) in self.worker.axes.items()}
        if wanted and dict(wanted) != has:
            raise ConfigurationError(
                f"this run's workers lie on {has or 'no grid'}, where the method takes {dict(wanted)}: connections are made "
                "at the start. Attach with a method of the same machine=, and switch then"
            )

    def change_knobs(self, **knobs: object) -> None:
        """Changes settings of an adapter from the next step on. All ranks call it.

        Raises:
            FingerprintMismatch: the ranks change to different values. They go on as before then.
        """
        self._check_open()
        agree({name: repr(value) for name, value in knobs.items()}, self._transport, doing=_SWITCH)
        self._knobs.update(knobs)
