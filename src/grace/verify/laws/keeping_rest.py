"""Law 6, the rest is free: keeping it does not change the mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from grace.contract.method import Method
from grace.verify.inputs import UGLY
from grace.verify.outcome import Held, Profile, no_promise
from grace.verify.running import run, tolerance
from grace.verify.subject import Subject
from grace.verify.trials import make_workers


def rest_is_free(method: Method[Any], xs: Sequence[Tensor]) -> None:
    """True if the rest is kept makes no difference to the mean."""
    kept, not_kept = run(method, xs, keep_rest=True)[0], run(method, xs)[0]
    if xs[0].dtype == torch.float32:
        assert torch.equal(kept.mean, not_kept.mean), "keep_rest changes the mean"  # except for the sign of a zero
    else:  # uncompressed tensors are summed in their own dtype, those with a rest in float32
        error = float((kept.mean.double() - not_kept.mean.double()).abs().max()) if xs[0].numel() else 0.0
        assert error <= tolerance(xs), f"keep_rest changes the mean by {error:.3g}"


def check(subject: Subject, profile: Profile) -> Held:
    """Checks the law; returns the report's entry about it."""
    if not subject.conserves:
        return no_promise("it has no rest")
    for name in ("normal", "odd size", "f16", "f64"):
        rest_is_free(subject.core, make_workers(UGLY[name], max(2, subject.least_world)))
    return Held("bit for bit")
