"""The law of very large numbers: what is returned agrees with its flag, and what overflows is not kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from grace.contract.method import Method
from grace.verify import laws


def overflow_is_not_kept(
    method: Method[Any], large: Sequence[Sequence[Tensor]], plain: Sequence[Sequence[Tensor]]
) -> None:
    """Some steps with finite gradients near the largest number are followed by ordinary ones. A mean is finite if its flag
    says so, on all ranks alike; states stay finite; and if an ordinary step was not finite, the next one is.
    """
    before = True
    states = [method.init(x) for x in large[0]]
    for step, xs in enumerate([*large, *plain]):
        outs = laws.run(method, xs, states, step=step)
        states = [out.state for out in outs]
        for rank, out in enumerate(outs):
            finite = bool(out.mean.isfinite().all())
            where = f"overflow: step {step}, rank {rank}:"
            assert bool(out.finite) == finite, f"{where} finite={bool(out.finite)}, but the mean is {finite=}"
            assert bool(out.finite) == bool(outs[0].finite), f"{where} ranks differ in their flag"
            for leaf in laws.leaves(out.state):
                assert not leaf.is_floating_point() or bool(leaf.isfinite().all()), f"{where} the state is not finite"
            assert finite or before or step <= len(large), f"{where} still not finite"
        before = bool(outs[0].finite)
