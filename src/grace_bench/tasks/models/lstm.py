from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

State = list[tuple[Tensor, Tensor]]  # for each layer its last output and its cell, [n, h] each


class _LSTMLayer(nn.Module):
    """An LSTM layer with one kernel ``[4 h, inputs + h]`` and one bias ``[4 h]``, gates in torch's order.

    ``nn.LSTM`` has two kernels and two biases a layer: 11 vectors and 19,785,600 parameters for the whole model. Views
    of the one kernel go to the library's routine, so that it is as fast.
    """

    def __init__(self, inputs: int, hidden: int, bound: float):
        super().__init__()
        self.kernel = nn.Parameter(torch.empty(4 * hidden, inputs + hidden))
        self.bias = nn.Parameter(torch.zeros(4 * hidden))
        self.inputs = inputs
        nn.init.uniform_(self.kernel, -bound, bound)

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        kernels = [self.kernel[:, : self.inputs].contiguous(), self.kernel[:, self.inputs :].contiguous()]
        weights = [*kernels, self.bias, torch.zeros_like(self.bias)]
        before = [state[0][None], state[1][None]]
        y, h, c = torch.lstm(x, before, weights, True, 1, 0.0, self.training, False, False)
        return y, (h[0], c[0])


class LSTMLanguageModel(nn.Module):
    """The "medium" model for Penn Treebank: 19,775,200 parameters, 7 vectors.

    An embedding, two LSTM layers, a softmax of its own weights. Dropout after the embedding and after each layer.
    """

    def __init__(
        self, words: int = 10_000, hidden: int = 650, layers: int = 2, dropout: float = 0.5, bound: float = 0.05
    ):
        super().__init__()
        self.embedding = nn.Parameter(torch.empty(words, hidden).uniform_(-bound, bound))
        self.layers = nn.ModuleList(_LSTMLayer(hidden, hidden, bound) for _ in range(layers))
        self.weight = nn.Parameter(torch.empty(words, hidden).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(words).uniform_(-bound, bound))
        self.hidden, self.dropout = hidden, dropout

    def forward(self, tokens: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Logits ``[n, t, words]`` for ``tokens`` ``[n, t]``, and the state after them, cut off from the graph. The
        state before them is what the last call returned, or None: zeros.
        """
        if state is None:
            zero = self.weight.new_zeros(len(tokens), self.hidden)
            state = [(zero, zero)] * len(self.layers)
        x = functional.embedding(tokens.t(), self.embedding)  # [t, n, h]
        x = functional.dropout(x, self.dropout, self.training)
        after = []
        for layer, before in zip(self.layers, state, strict=True):
            x, (h, c) = layer(x, before)
            x = functional.dropout(x, self.dropout, self.training)
            after.append((h.detach(), c.detach()))
        return functional.linear(x, self.weight, self.bias).transpose(0, 1), after
