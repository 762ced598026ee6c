from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional


class _TransformerBlock(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads = heads

    def forward(self, x: Tensor) -> Tensor:
        n, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(n, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)  # [n, heads, t, d / heads]
        x = x + self.project(y.transpose(1, 2).reshape(n, t, d))
        out: Tensor = x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))
        return out


class GPT(nn.Module):
    """GPT-2 small, a decoder-only transformer: 124,439,808 parameters, 148 vectors.

    The embedding is the output's matrix too, and counts once.
    """

    def __init__(self, tokens: int = 50_257, context: int = 1024, layers: int = 12, heads: int = 12, width: int = 768):
        super().__init__()
        self.embedding = nn.Parameter(torch.empty(tokens, width).normal_(0, 0.02))
        self.positions = nn.Parameter(torch.empty(context, width).normal_(0, 0.02))
        self.blocks = nn.ModuleList(_TransformerBlock(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear):
                residual = name.endswith(("project", "down"))  # each adds to the stream: 2 layers of them in all
                nn.init.normal_(module.weight, 0, 0.02 / (math.sqrt(2 * layers) if residual else 1))
                nn.init.zeros_(module.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits ``[n, t, tokens]`` for ``tokens`` ``[n, t]``, t up to ``context``."""
        x = functional.embedding(tokens, self.embedding) + self.positions[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return functional.linear(self.norm(x), self.embedding)
