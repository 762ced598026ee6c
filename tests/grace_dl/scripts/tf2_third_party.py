"""A script for TensorFlow 2 with compressors and a communicator of its own."""

import horovod.tensorflow as hvd
import tensorflow as tf
from grace_dl.tensorflow import Communicator, Compressor
from grace_dl.tensorflow.communicator.allgather import Allgather
from grace_dl.tensorflow.communicator.allreduce import Allreduce
from grace_dl.tensorflow.communicator.broadcast import Broadcast
from grace_dl.tensorflow.helper import grace_from_params
from grace_dl.tensorflow.memory.none import NoneMemory
from grace_dl.tensorflow.memory.residual import ResidualMemory
from horovod.tensorflow import _allreduce

hvd.init()


class SignScale(Compressor):
    def compress(self, tensor, name):
        return [tf.cast(tensor >= 0, tf.uint8), tf.reshape(tf.reduce_mean(tf.abs(tensor)), [1])], tf.shape(tensor)

    def decompress(self, tensors, ctx):
        return tf.reshape((tf.cast(tensors[0], tf.float32) * 2 - 1) * tensors[1], ctx)


class Largest(Compressor):
    """Sizes differ between ranks."""

    def __init__(self):
        super().__init__(tensors_size_are_same=False)

    def compress(self, tensor, name):
        flat = tf.reshape(tensor, [-1])
        index = tf.where(tf.abs(flat) >= 0.1 * tf.reduce_max(tf.abs(flat)))
        return [tf.gather_nd(flat, index), index], tf.shape(tensor)

    def decompress(self, tensors, ctx):
        values, index = tensors
        return tf.reshape(tf.scatter_nd(index, values, [tf.cast(tf.reduce_prod(ctx), tf.int64)]), ctx)


class Half(Compressor):
    def compress(self, tensor, name):
        return [tensor / 2], None

    def decompress(self, tensors, ctx):
        return tensors[0] * 2


class Own(Communicator):
    def send_receive(self, tensors, ctx):
        return self.compressor.decompress([_allreduce(t) / hvd.size() for t in tensors], ctx)


grcs = [
    Allgather(SignScale(), ResidualMemory(), hvd.size()),
    Allgather(Largest(), ResidualMemory(), hvd.size()),
    Broadcast(SignScale(), NoneMemory(), hvd.size()),
    Allreduce(Half(), NoneMemory(), hvd.size()),
    Own(Half(), NoneMemory()),
    grace_from_params({"compressor": "fp16", "memory": "none", "communicator": "allreduce"}),
]
teacher = tf.random.stateless_normal([32, 4], [1, 2])
for number, grc in enumerate(grcs):
    w, b = (
        tf.Variable(tf.random.stateless_normal([32, 4], [3, 4]) * 0.1, name="w"),
        tf.Variable(tf.zeros([4]), name="b"),
    )

    def step(x):
        y = tf.argmax(x @ teacher, axis=1)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, x @ w + b))
        tape = hvd.DistributedGradientTape(tape, grace=grc)
        for g, v in zip(tape.gradient(loss, [w, b]), [w, b]):
            v.assign_sub(0.5 * g)
        return loss

    graph = tf.function(step)
    losses = [float((graph if i else step)(tf.random.stateless_normal([64, 32], [hvd.rank(), i]))) for i in range(12)]
    sums = hvd.allgather(tf.reduce_sum(tf.abs(w))[tf.newaxis])
    assert float(sums[0]) == float(sums[1]), (number, sums)
    assert losses[-1] < 0.8 * losses[0], (number, losses)

x = tf.constant([3.0, -1.0]) * (hvd.rank() + 1)
assert grcs[-1].step(x, "by hand").numpy().tolist() == [4.5, -1.5]
print("third parties: rank %d learns" % hvd.rank())
