"""A checkpoint of an optimizer that exchanges by itself, which loads on any number of workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from grace.errors import StateError
from grace.run.checkpoint import Checkpoint, Memories, pack, unpack
from grace.run.saved import check_fits
from grace.run.session import Session

if TYPE_CHECKING:
    from grace.optim.saved import SavedOptimizer


class OptimizerCheckpoint(Checkpoint):
    """As :class:`~grace.run.checkpoint.Checkpoint`, with the optimizer's averages, which are the same on all ranks.

    Args:
        session, memories, workers, whole: as there.
        optimizer: the state is of.
    """

    def __init__(
        self,
        session: Session,
        memories: Memories,
        workers: int | None,
        whole: bool,
        *,
        optimizer: SavedOptimizer,
    ):
        super().__init__(session, memories, workers, whole)
        self._optimizer = optimizer

    def state_dict(self) -> dict[str, Any]:
        optimizer = self._optimizer
        about = {"optimizer": type(optimizer).__name__, **optimizer._counters()}
        averages = {label: x.clone() for label, x in optimizer.shared_state().items()}
        return {**super().state_dict(), "counters": pack(about), "averages": averages}

    def load_state_dict(self, saved: Any) -> None:
        super().load_state_dict(saved)
        self._optimizer.adopt(unpack(saved["counters"]), saved["averages"])

    def _read_more(self, saved: Any) -> Mapping[str, object]:
        if missing := {"counters", "averages"} - saved.keys():
            raise StateError(f"not a checkpoint of grace.optim: it lacks {', '.join(sorted(missing))}")
        counters, optimizer = unpack(saved["counters"]), self._optimizer
        wanted = {"optimizer", *optimizer._counters()}
        if not isinstance(counters, dict) or counters.keys() != wanted:
            raise StateError(f"the checkpoint counts {counters!r:.80}; this optimizer {sorted(wanted)}")
        if counters["optimizer"] != type(optimizer).__name__:
            raise StateError(f"the checkpoint is of {counters['optimizer']}, this is {type(optimizer).__name__}")
        averages: Mapping[str, Tensor] = saved["averages"]
        check_fits("state", averages, optimizer.shared_state())
        return {f"counter {key}": value for key, value in counters.items()}
