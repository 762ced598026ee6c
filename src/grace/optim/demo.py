"""DeMo (Peng, Quesnelle and Kingma, 2024): decoupled momenta, of which each rank sends the fast-moving components only."""

from __future__ import annotations

from collections.abc import Mapping

import torch.distributed as dist
from torch import Tensor
from torch.optim.optimizer import ParamsT

from grace.collectives import Exchange
from grace.contract.knobs import Count, Share, check_value
from grace.memories import ErrorFeedback
from grace.optim.base import CompressedOptimizer
from grace.optim.parts import local
from grace.optim.tiles import TiledTopK
from grace.registry.policy import Policy
from grace.run.options import DEFAULTS, Options
from grace.transports.base import Transport


class DeMo(CompressedOptimizer):
    """Signs of the largest cosine components of momenta, which each rank keeps for itself.

    ``m_i = beta m_i + g_i;  q_i = the k largest of the DCT of each tile of m_i;  m_i -= q_i;``
    ``x -= lr (sign of the mean of q_i + weight_decay x)``

    It is error feedback with decay around a tiled top-k, and m_i, which differs between ranks, is its memory. A tile is as
    high and wide as the largest divisors up to ``tile`` of the sides of a matrix: choose sides with such divisors. Where a
    tile has at most k numbers all of them are averaged, uncompressed. A parameter without a gradient counts as zeros.

    Args:
        params: parameters, or groups of them, with names or without.
        lr: the learning rate, >= 0: the length of each step of each number.
        weight_decay: decoupled, >= 0.
        beta: decay of the momentum, in (0, 1].
        k: components of a tile that are sent, >= 1.
        tile: the longest side of a tile, >= 1.
        group, transport, options: as for :class:`grace.optim.OneBitAdam`. The tiles of a DTensor are those of its shards.

    Raises:
        What :class:`grace.optim.OneBitAdam` raises.

    Differs from the authors' code: the momentum takes g, as in the paper, not lr g; places travel as packed bits, not int64.
    That code divides by the number of ranks that have sent a component: the sign is the same. Sums that are 0 but for their
    rounding have the sign 0.

    Example:
        >>> model = torch.nn.Linear(128, 64)
        >>> optimizer = grace.optim.DeMo(model.named_parameters(), lr=1e-3)
        >>> model(torch.randn(8, 128)).square().mean().backward()
        >>> optimizer.step()

    Reference:
        Peng, Quesnelle and Kingma, "DeMo: Decoupled Momentum Optimization", 2024, arXiv 2411.19870, algorithm 1.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        weight_decay: float = 0.0,
        *,
        beta: float = 0.999,
        k: int = 32,
        tile: int = 64,
        group: dist.ProcessGroup | None = None,
        transport: str | Transport | None = "auto",
        options: Options = DEFAULTS,
    ):
        check_value("DeMo", "beta", beta, Share)
        check_value("DeMo", "k", k, Count)
        check_value("DeMo", "tile", tile, Count)
        codec = ErrorFeedback(TiledTopK(k, tile), beta=beta)
        super().__init__(
            params, {"lr": lr, "weight_decay": weight_decay}, Policy([("*", codec)]), group=group, transport=transport,
            options=options, knobs={},
        )  # fmt: skip

    def _begin(self, p: Tensor) -> dict[str, Tensor]:
        return {}  # the momentum is the memory of the method

    def _update(self, gradients: Mapping[str, Tensor | None]) -> Exchange[list[str]]:
        means = yield from self.session.exchanging(self._lend(gradients))
        if bad := self._find_nonfinite(means):
            return bad
        for name, p, entry, _ in self._each():
            lr, decay = float(entry["lr"]), entry["weight_decay"]
            if decay:
                p.mul_(1 - lr * decay)
            p.add_(means[name].sign(), alpha=-lr)
        return []

    def momentum(self, name: str) -> Tensor:
        """The momentum that this rank has of a parameter, of its shape, by name; zeros before the first step."""
        held = self.session.worker.state.debts().get(name)
        p = next(local(p) for p, known in self._names.items() if known == name)
        return p.new_zeros(p.shape) if held is None else held
