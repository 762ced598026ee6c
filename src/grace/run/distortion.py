"""Distortion: the distance of what is sent from what should have been sent: |x - C(x)| / |x| of one tensor."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from grace.contract.method import Method
from grace.contract.peer import Peer
from grace.run.saved import copy_state, fill
from grace.run.simulate import simulate


def measure_distortion(method: Method[Any], x: Tensor, state: Any, peer: Peer) -> float | None:
    """The compression error of one exchange of ``x``, of any shape, from this state, found by a trial with this worker alone.

    x is what the method compresses: the gradient with the memory added. The trial compresses it once more, on copies:
    neither ``x`` nor the state nor the exchange that follows is changed, and nothing is sent.

    Returns:
        |x - C(x)| / |x|: 0 where nothing is lost, 1 where nothing is sent; it may exceed 1 for signs without a scale, which
        are in units of their own. None where x is not finite.

    Example:
        >>> import torch, grace
        >>> x = torch.tensor([[3.0, 0.0, 4.0, 0.0]])
        >>> method = grace.method("topk:ratio=0.25")
        >>> measure_distortion(method, x, method.init(x), Peer(0, 1))  # 4 is sent, and 3 is not
        0.6
    """
    method, x, state = method.distortion_of(x, state)
    state = fill(peer.name, method.init(x), copy_state(state))
    alone = Peer(0, 1, peer.step, peer.name, peer.seed, peer.lr, peer.steps_per_epoch)
    out = simulate([method.exchange(x.clone(), state, alone)])[0]
    owed = method.owed(out.state)
    lost = x.double() - out.mean.double() if owed is None else owed.double()
    whole = x.double() if owed is None else out.mean.double() + lost
    share = torch.linalg.vector_norm(lost) / torch.linalg.vector_norm(whole).clamp(min=1e-300)
    return float(share) if bool(share.isfinite()) else None
