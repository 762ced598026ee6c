"""A handle that goes on when the workers have changed: what an adapter does with :class:`grace.run.elastic.Elastic`."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from grace.adapters.broadcast import send_object
from grace.adapters.choosing import Choosing
from grace.adapters.handle import Handle
from grace.errors import ConfigurationError, GraceError
from grace.run.elastic import Elastic, Regrouped
from grace.transports.base import Transport


class Regrouping(Choosing, Handle):
    """A handle that can go on among other workers. To derive from."""

    @property
    def elastic(self) -> Elastic | None:
        """The object that makes steps survive a loss of workers, from the first ``regroup`` on: ``elastic.wants`` and
        ``elastic.wanted`` are for a new worker that waits.
        """
        return self._steps.elastic

    def _regroup(
        self,
        transport: Transport,
        replicated: Iterable[Tensor],
        optimizer: torch.optim.Optimizer | None,
        own: type[torch.optim.Optimizer] | None = None,
    ) -> Regrouped:
        """See :meth:`grace.run.elastic.Elastic.regroup`; nothing is on its way.

        Args:
            transport: between those who go on, or begin.
            replicated: what is the same on all workers between two steps.
            optimizer: whose state is, too.
            own: its class, as it was before Grace.

        Raises:
            GraceError: a step has failed before this was called for the first time.
            ConfigurationError: under ``auto``.
        """
        steps, session = self._steps, self._session
        if steps.elastic is None:
            try:
                if self.error is not None:
                    raise GraceError(
                        "a step has failed in a handle that does not keep what would undo it: call regroup once before the "
                        "first step, or load a checkpoint"
                    )
                if self._driver is not None:
                    raise ConfigurationError(
                        "regroup: auto has measured the workers with which it began; name a method, grace advise says which"
                    )
            except GraceError as error:
                transport.close(error)
                raise
            steps.elastic = Elastic(session)
        steps.forget()

        def copy(source: int) -> None:
            session.broadcast_(replicated, source)
            if optimizer is not None:
                kind = own or type(optimizer)
                local = kind.state_dict(optimizer) if session.rank == source else {}
                kind.load_state_dict(optimizer, send_object(local, source, session.network))

        answer = steps.elastic.regroup(transport, copy)
        self.rank, self.world = answer.rank, answer.world
        return answer
