"""Grace's methods -> what they are inside XLA, or why they are not available there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from grace.communicators import Allgather, Allreduce, ScatterReduce
from grace.contract.method import Method
from grace.errors import ConfigurationError
from grace.jax.xla.blocks import block_random_k, check_block_random_k
from grace.jax.xla.casts import CastCodec, FP8Codec, IdentityCodec
from grace.jax.xla.codec import Codec
from grace.jax.xla.communicators import allgather, cast_sum, dense, scatter_reduce
from grace.jax.xla.levels import LevelsCodec
from grace.jax.xla.low_rank import check_power_sgd, power_sgd
from grace.jax.xla.place import TracedPeer
from grace.jax.xla.random import Array
from grace.jax.xla.signs import SignsCodec
from grace.jax.xla.sparse import TopKCodec
from grace.jax.xla.together import Talk
from grace.memories import ErrorFeedback
from grace.methods import BF16, FP8, FP16, QSGD, BlockRandomK, EFSignSGD, Identity, PowerSGD, TopK
from grace.registry import spell

CODECS: dict[type, type[Codec]] = {
    Identity: IdentityCodec,
    BF16: CastCodec,
    FP16: CastCodec,
    FP8: FP8Codec,
    QSGD: LevelsCodec,
    TopK: TopKCodec,
    EFSignSGD: SignsCodec,
}
LEGAL = (
    "inside XLA there are: none, bf16, fp16, fp8, qsgd, topk and efsignsgd with communicator=allgather or scatterreduce "
    "(none, bf16 and fp16 also with allreduce), blockrandomk and powersgd; memory=residual or none; knobs that do not "
    "change with the step. grace.jax.compressed_mean_on_host has every method"
)


@dataclass(frozen=True)
class TensorPlan:
    """The treatment of a tensor with this method.

    core: the method without its memory. beta, gamma: of the memory; None where there is none.
    """

    core: Method[Any]
    beta: float | None = None
    gamma: float | None = None

    @property
    def has_memory(self) -> bool:
        """True if what was not sent is kept."""
        return self.beta is not None

    @property
    def transparent(self) -> bool:
        """True if the network sums gradients as they are, unchecked."""
        return not self.has_memory and self._sums(Identity)

    def init(self, shape: tuple[int, ...]) -> Any:
        """The method's own state, replicated: numpy, or None."""
        if not isinstance(self.core, PowerSGD):
            return None
        q = self.core.init(torch.empty(shape, dtype=torch.float32, device="cpu"))
        return None if q is None else q.numpy().astype(np.float32)

    def exchange(self, x: Array, state: Any, place: TracedPeer) -> Talk[tuple[Array, Array, Any]]:
        """``x``, in the shape that the method sees -> the mean, the rest (both like x), and the next state."""
        if x.size == 0:
            return x, x, state
        if isinstance(self.core, PowerSGD) and state is not None:
            return (yield from power_sgd(x, state, place))
        mean, rest = yield from self._flat(x.reshape(-1), place)
        return mean.reshape(x.shape), rest.reshape(x.shape), state

    def _flat(self, x: Array, place: TracedPeer) -> Talk[tuple[Array, Array]]:
        core, keep = self.core, self.has_memory
        if isinstance(core, PowerSGD) or self._sums(Identity):
            return (yield from dense(x, place))
        if isinstance(core, BlockRandomK):
            return (yield from block_random_k(core, x, place, keep))
        assert isinstance(core, Allgather | Allreduce | ScatterReduce)
        codec = CODECS[type(core.compressor)](core.compressor)
        if isinstance(core, Allreduce):
            return (yield from cast_sum(codec, x, place, keep))
        return (yield from (allgather if isinstance(core, Allgather) else scatter_reduce)(codec, x, place, keep))

    def _sums(self, compressor: type) -> bool:
        return isinstance(self.core, Allreduce) and isinstance(self.core.compressor, compressor)


def plan(method: Method[Any]) -> TensorPlan:
    """The form of this method inside XLA.

    Raises:
        ConfigurationError: it is not available inside XLA; says what is.
    """
    out = TensorPlan(method)
    if type(method) is ErrorFeedback:
        if method.follow_lr:
            raise ConfigurationError(f"{spell(method)}: follow_lr needs the learning rate; {LEGAL}")
        out = TensorPlan(method.method, float(method.beta), float(method.gamma))
    core = out.core
    if type(core) is BlockRandomK:
        check_block_random_k(core)
    elif type(core) is PowerSGD:
        check_power_sgd(core)
    elif type(core) in (Allgather, Allreduce, ScatterReduce) and type(core.compressor) in CODECS:  # type: ignore[attr-defined]
        if getattr(core, "server_memory", False):
            raise ConfigurationError(f"{spell(method)}: no server memory; {LEGAL}")
        CODECS[type(core.compressor)](core.compressor).check()  # type: ignore[attr-defined]
    else:
        raise ConfigurationError(f"{spell(method)}: {LEGAL}")
    return out
