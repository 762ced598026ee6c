"""Checks of a collective before anything is sent: a collective that fails on one rank only leaves the others in it."""

from __future__ import annotations

from collections.abc import Collection

import torch

from grace.collectives import AllReduce, AllToAll, Broadcast, Collective, Permute, ReduceScatter, signature
from grace.errors import TransportError

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
SUMMABLE = (*FLOATS, torch.uint8, torch.int8, torch.int32, torch.int64)
MOVABLE = (*SUMMABLE, torch.bool)
# The devices of the tensors that a backend of torch.distributed takes; others take what torch lets them.
DEVICES = {"gloo": ("cpu", "cuda"), "nccl": ("cuda",)}


def refuse_unfit(op: Collective, rank: int, world: int, devices: Collection[str] = ()) -> None:
    """Raises for what cannot be done: a dtype, a shape, a rank that does not exist, or a tensor that is not on ``devices``.

    Raises:
        TransportError: says what is legal; nothing was sent.
    """
    legal: tuple[torch.dtype, ...] = MOVABLE
    if isinstance(op, AllReduce | ReduceScatter):
        legal = FLOATS if op.op == "mean" else SUMMABLE
    problem = None
    if op.axis:
        problem = f"there is no axis {op.axis!r} here; legal: a transport over a grid of ranks"
    elif op.buf.dtype not in legal:
        problem = f"legal dtypes: {', '.join(str(d).removeprefix('torch.') for d in legal)}"
    elif devices and op.buf.device.type not in devices:
        problem = f"the tensor is on {op.buf.device}; legal: {', '.join(devices)}"
    elif isinstance(op, AllToAll | ReduceScatter) and (op.buf.ndim == 0 or op.buf.shape[0] != world):
        problem = f"the first dimension must be the number of workers, {world}"
    elif isinstance(op, Broadcast) and not 0 <= op.root < world:
        problem = f"the root must be one of ranks 0 to {world - 1}"
    elif isinstance(op, Permute) and not all(0 <= rank < world for pair in op.pairs for rank in pair):
        problem = f"every source and destination must be one of ranks 0 to {world - 1}"
    if problem:
        raise TransportError(f"rank {rank}: {signature(op)} is refused: {problem}; nothing was sent")
