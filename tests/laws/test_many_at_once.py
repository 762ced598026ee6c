"""Buckets of tensors of the same sizes in one exchange: what is kept of one of them is not taken for the other, which is
prepared while the network has the first.

Triton's interpreter, and tensors on the CPU, stand in for an accelerator.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import pytest

pytest.importorskip("triton", reason="needs the package triton")

from grace.compute import backends
from grace.contract.workspace import Workspace
from grace.flags.finite import cpu_as_accelerator
from grace.registry.policy import Policy
from tests.laws.bucket_runs import Run, Shapes
from tests.unit.kernels.triton_checks import interpreter

__all__ = ["interpreter"]

EQUAL: Shapes = ((41,), (41,))
# Methods of the two tensors, and whether each goes as a bucket, or alone.
PAIRS = (
    ("bf16", "bf16", False),
    ("blockrandomk:ratio=0.4,mode=clt", "blockrandomk:ratio=0.4,mode=clt,memory=none", True),
    ("randomk:ratio=0.3,memory=dgc", "randomk:ratio=0.3,momentum=0.5,memory=dgc", True),
    ("signum", "signum:beta=0.5", True),
    ("topk:ratio=0.2,memory=ef21", "topk:ratio=0.4,memory=ef21", True),
    ("powersgd", "powersgd:memory=none", True),
    ("acpsgd", "acpsgd:memory=none", True),
    ("efsignsgd:memory=distef", "efsignsgd:block=16,memory=distef", True),
)


def outcome(first: str, second: str, backend: str, together: bool) -> Any:
    """Means, states and traffic of two steps, and what the network was given."""
    with backends.using(backend), cpu_as_accelerator():
        run = Run(Policy([("layer0", first), ("*", second)]), 2, EQUAL, lambda _: together)
        return [run.step() for _ in range(2)], run.seen


@pytest.mark.parametrize(("first", "second", "together"), PAIRS)
def test_buckets_of_equal_sizes_do_not_meet(first: str, second: str, together: bool) -> None:
    assert outcome(first, second, "triton", together) == outcome(first, second, "reference", False)


class Nameless(dict[Hashable, Any]):
    """A cache by sizes and settings alone, whatever the names of the tensors."""

    def get(self, key: Hashable, default: Any = None) -> Any:
        return super().get(_without_names(key), default)

    def __setitem__(self, key: Hashable, value: Any) -> None:
        super().__setitem__(_without_names(key), value)


def _without_names(key: Any) -> Hashable:
    return tuple(part for part in key if not isinstance(part, tuple) or "layer" not in str(part))


# What is kept for the two before the last follows from sizes alone, and that for the last is read only if something is not
# finite, which nothing is here.
@pytest.mark.parametrize(("first", "second", "together"), PAIRS[:-3])
def test_what_is_kept_without_names_is_caught(
    first: str, second: str, together: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = Workspace.__init__

    def begin(self: Workspace) -> None:
        start(self)
        self.kept = Nameless()

    monkeypatch.setattr(Workspace, "__init__", begin)
    assert outcome(first, second, "triton", together) != outcome(first, second, "reference", False)
