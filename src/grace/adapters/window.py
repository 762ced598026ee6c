"""The part of a window of local steps that is saved besides the memories, and how it is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from grace.errors import StateError
from grace.run.checkpoint import Checkpoint, Chooser, Memories, pack, unpack
from grace.run.session import Session


class WindowCheckpoint(Checkpoint):
    """As :class:`~grace.run.checkpoint.Checkpoint`, with x_ref, which is the same on all ranks between windows.

    Args:
        session, memories, workers, whole, chooser: as there.
        steps: those made so far.
        reference: x_ref.
        go_on: called with the steps and the x_ref that were loaded.
    """

    def __init__(
        self,
        session: Session,
        memories: Memories,
        workers: int | None,
        at_rank0: bool,
        *,
        chooser: Chooser,
        steps: int,
        reference: Mapping[str, Tensor],
        go_on: Callable[[int, Mapping[str, Tensor]], None],
    ):
        super().__init__(session, memories, workers, at_rank0, chooser)
        self._steps, self._reference, self._go_on = steps, reference, go_on

    def state_dict(self) -> dict[str, Any]:
        reference = {name: x.clone() for name, x in self._reference.items()}
        return {**super().state_dict(), "window": pack({"steps": self._steps}), "reference": reference}

    def load_state_dict(self, saved: Any) -> None:
        super().load_state_dict(saved)
        self._go_on(self._read_more(saved)["steps"], saved["reference"])

    def _read_more(self, saved: Any) -> dict[str, int]:
        if missing := {"window", "reference"} - saved.keys():
            raise StateError(f"not a checkpoint of local steps: it lacks {', '.join(sorted(missing))}")
        window = unpack(saved["window"])
        steps = window.get("steps") if isinstance(window, dict) else None
        if type(steps) is not int or steps < 0:
            raise StateError(f"the checkpoint counts {steps!r} steps; legal: a whole number >= 0")
        check_fits("x_ref", saved["reference"], self._reference)
        return {"steps": steps}


def read_window(
    saved: Mapping[str, Any], *, every: int, reference: Mapping[str, Tensor], replica: Mapping[str, Tensor]
) -> dict[str, object]:
    """Reads a saved window; returns what all ranks must have in common of it, and changes nothing.

    Args:
        saved: the state.
        every: H of this run.
        reference: tensors like x_ref.
        replica: tensors like the parameters.

    Raises:
        StateError: it does not fit.
    """
    if missing := {"steps", "taken", "reference", "local"} - saved.keys():
        raise StateError(f"not a state of local steps: it lacks {', '.join(sorted(missing))}")
    steps, taken = saved["steps"], saved["taken"]
    if type(steps) is not int or steps < 0:
        raise StateError(f"the state counts {steps!r} steps; legal: a whole number >= 0")
    if type(taken) is not int or not 0 <= taken < every:
        raise StateError(f"the state is {taken!r} steps into a window; windows of this run have every={every}")
    check_fits("x_ref", saved["reference"], reference)
    if taken:
        check_fits("replica", saved["local"], replica)
    return {"steps": steps, "steps into the window": taken}


def check_fits(what: str, tensors: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> None:
    """Refuses saved tensors that are not like those of this run.

    Raises:
        StateError: which does not fit.
    """
    if not isinstance(tensors, Mapping):
        raise StateError(f"the {what} that was saved should be tensors by name, got {type(tensors).__name__}")
    if strange := tensors.keys() ^ like.keys():
        raise StateError(f"the {what} that was saved has other parameters: {', '.join(sorted(map(str, strange)))}")
    for name, x in tensors.items():
        p = like[name]
        if not isinstance(x, Tensor) or x.shape != p.shape or x.dtype != p.dtype:
            got = f"{x.dtype} {tuple(x.shape)}" if isinstance(x, Tensor) else repr(x)
            raise StateError(f"the {what} of {name!r} should be {p.dtype} {tuple(p.shape)}, got {got}")
