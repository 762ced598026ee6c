"""GRACE's ``Communicator`` on TensorFlow tensors, in eager mode and in ``tf.function``.

Letters: W workers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
import torch
from torch import Tensor

from grace.collectives import AllGather, AllReduce, Broadcast, Collective
from grace.tensorflow.calls import call_host, keep_python
from grace_dl.communicator import Communicator
from grace_dl.parts import KnownMemory


class TensorFlowCommunicator(Communicator):
    """As :class:`grace_dl.communicator.Communicator`. If a part is yours, its TensorFlow operations stay in the graph, and
    only the collectives call the host. A communicator of yours overrides ``send_receive(tensors, ctx)``.
    """

    @keep_python
    def step(self, tensor: Any, name: str) -> Any:
        tensor = tf.convert_to_tensor(tensor)
        if self.method is not None:
            return call_host(lambda xs: [Communicator.step(self, xs[0], name)], [tensor])[0]
        self.compare(name, tensor.shape, tensor.dtype.name)  # in a graph: while it is traced
        memory = _InVariables.around(self.memory)
        tensor = memory.compensate(tensor, name)
        compressed, ctx = self.compressor.compress(tensor, name)
        updates = memory.update(tensor, name, self.compressor, compressed, ctx) or []
        with tf.control_dependencies([update for update in updates if tf.is_tensor(update)]):
            return self.send_receive(compressed, ctx)

    def send_step(self, tensor: Any, name: str) -> tuple[Any, Any]:
        raise NotImplementedError("communicators of GRACE have step(tensor, name) only on TensorFlow")

    def receive_step(self, handles: Any, ctx: Any) -> Any:
        raise NotImplementedError("communicators of GRACE have step(tensor, name) only on TensorFlow")

    @keep_python
    def send_receive(self, tensors: Any, ctx: Any) -> Any:  # type: ignore[override]
        """Sends this worker's tensors, and averages everyone's."""
        if not self.kind:
            raise NotImplementedError(f"{type(self).__name__} lacks send_receive(tensors, ctx)")
        compressor, world = self.compressor, self.transport.world
        tensors = [tf.convert_to_tensor(t) for t in tensors]
        if self.kind == "allreduce":
            sums = [self._run(t, lambda x: AllReduce(x, "sum")) for t in tensors]
            return compressor.decompress([s / world if compressor.average else s for s in sums], ctx)
        if self.kind == "broadcast" and compressor.tensors_size_are_same:
            ranks = [[self._run(t, functools.partial(Broadcast, root=root)) for t in tensors] for root in range(world)]
        else:
            ranks = [list(row) for row in zip(*[self._rows(t, world) for t in tensors], strict=True)]
        decompressed = [compressor.decompress(row, ctx) for row in ranks]
        total = tf.add_n(decompressed) if _aggregates_by_default(compressor) else compressor.aggregate(decompressed)
        return total / world if compressor.average else total

    def _rows(self, t: Any, world: int) -> Sequence[Any]:
        """Everyone's tensor."""
        if self.compressor.tensors_size_are_same:
            rows = self._run(t, AllGather, [world, *t.shape])
            return [rows[rank] for rank in range(world)]
        size = tf.shape(t, out_type=tf.int64)[:1]
        sizes = tf.reshape(self._run(size, AllGather, [world, 1]), [world])
        most = tf.reduce_max(sizes)
        padded = tf.pad(t, [[0, most - size[0]], *([0, 0] for _ in t.shape[1:])])
        rows = self._run(padded, AllGather, [world, None, *t.shape[1:]])
        return [rows[rank, : sizes[rank]] for rank in range(world)]

    def _run(self, t: Any, op: Callable[[Tensor], Collective], shape: Sequence[int | None] | None = None) -> Any:
        """The answer of a collective."""

        def host(xs: Sequence[Tensor]) -> list[Tensor]:
            x = xs[0].contiguous()
            raw = x if op is not AllGather else x.reshape(-1).view(torch.uint8)  # for any type
            try:
                answer = self.transport.run(op(raw.reshape(max(raw.shape, (1,)))))
            except BaseException as error:
                self.transport.close(error)
                raise
            if op is AllGather:
                return [answer.reshape(-1).view(x.dtype).view(-1, *x.shape)]
            return [answer.view(x.shape)]

        like = t if shape is None else tf.TensorSpec(shape, t.dtype)
        return call_host(host, [t], like=[like])[0]


def _aggregates_by_default(compressor: Any) -> bool:
    from grace_dl.parts import Compressor

    return type(compressor).aggregate is Compressor.aggregate


class _InVariables:
    """GRACE's own memory with a compressor of yours: residuals are variables, which outlive a graph's run."""

    def __init__(self, memory: KnownMemory):
        self._memory = memory

    @classmethod
    def around(cls, memory: Any) -> Any:
        """The memory itself, if it is one of yours, or remembers nothing."""
        return cls(memory) if isinstance(memory, KnownMemory) and memory.feeds_back else memory

    def compensate(self, tensor: Any, name: str) -> Any:
        """See :class:`grace_dl.parts.Memory`."""
        if name not in self._memory.residuals:
            with tf.init_scope():
                self._memory.residuals[name] = tf.Variable(tf.zeros(tensor.shape, tensor.dtype), trainable=False)
        return self._memory.compensate(tensor, name)

    def update(self, tensor: Any, name: str, compressor: Any, tensor_compressed: Any, ctx: Any) -> list[Any]:
        """See :class:`grace_dl.parts.Memory`."""
        residual = self._memory.residuals[name]
        return [residual.assign(tensor - compressor.decompress(tensor_compressed, ctx))]
