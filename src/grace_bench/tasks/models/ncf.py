from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional


class NCFModel(nn.Module):
    """Neural matrix factorization: 31,832,577 parameters, 10 vectors.

    Args:
        factors: width of the factorization part. layers: widths of the perceptron, the input first.
    """

    def __init__(
        self,
        users: int = 138_493,
        items: int = 26_744,
        factors: int = 64,
        layers: Sequence[int] = (256, 256, 128, 64),
        dropout: float = 0.5,
    ):
        super().__init__()
        # One table for each side holds both parts, as in the TensorFlow program: 10 vectors. Four tables have as many
        # parameters, but make 12 vectors.
        width = factors + layers[0] // 2
        self.user = nn.Parameter(torch.empty(users, width))
        self.item = nn.Parameter(torch.empty(items, width))
        self.layers = nn.ModuleList(nn.Linear(i, o) for i, o in itertools.pairwise(layers))
        self.head = nn.Linear(factors + layers[-1], 1)
        self.factors, self.dropout = factors, dropout
        nn.init.normal_(self.user, 0, 0.01)
        nn.init.normal_(self.item, 0, 0.01)
        for layer in self.layers:
            assert isinstance(layer, nn.Linear)
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
        bound = math.sqrt(3 / self.head.in_features)
        nn.init.uniform_(self.head.weight, -bound, bound)
        nn.init.zeros_(self.head.bias)

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        """The logits ``[n]`` of ``n`` pairs."""
        u, v = functional.embedding(users, self.user), functional.embedding(items, self.item)
        product = u[:, : self.factors] * v[:, : self.factors]
        hidden = torch.cat([u[:, self.factors :], v[:, self.factors :]], dim=1)
        for layer in self.layers:
            hidden = functional.dropout(functional.relu(layer(hidden)), self.dropout, self.training)
        out: Tensor = self.head(torch.cat([product, hidden], dim=1)).squeeze(1)
        return out
