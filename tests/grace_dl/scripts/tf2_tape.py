"""A script in the manner of GRACE's example for Horovod and TensorFlow 2, with a GradientTape."""

import horovod.tensorflow as hvd
import tensorflow as tf
from grace_dl.tensorflow.communicator.allgather import Allgather
from grace_dl.tensorflow.compressor.topk import TopKCompressor
from grace_dl.tensorflow.memory.residual import ResidualMemory

# Horovod: initialize Horovod.
hvd.init()
tf.random.set_seed(7 + hvd.rank())

images = tf.random.stateless_normal([512, 8, 8, 1], [hvd.rank(), 1])
teacher = tf.random.stateless_normal([64, 10], [3, 4])
labels = tf.argmax(tf.reshape(images, [-1, 64]) @ teacher, axis=1)
dataset = tf.data.Dataset.from_tensor_slices((images, labels)).repeat().shuffle(512).batch(64)

model = tf.keras.Sequential(
    [
        tf.keras.layers.Conv2D(4, [3, 3], activation="relu"),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dense(32, activation="relu"),
        tf.keras.layers.Dense(10, activation="softmax"),
    ]
)
loss = tf.losses.SparseCategoricalCrossentropy()

# Horovod: adjust learning rate based on the number of workers.
opt = tf.optimizers.Adam(0.003 * hvd.size())

# GRACE: compression algorithm
grc = Allgather(TopKCompressor(0.3), ResidualMemory(), hvd.size())


@tf.function
def training_step(images, labels, first_batch):
    with tf.GradientTape() as tape:
        probs = model(images, training=True)
        loss_value = loss(labels, probs)

    # Horovod: add Horovod Distributed GradientTape.
    tape = hvd.DistributedGradientTape(tape, grace=grc)

    grads = tape.gradient(loss_value, model.trainable_variables)
    opt.apply_gradients(zip(grads, model.trainable_variables))

    # Horovod: broadcast initial variable states from rank 0 to all other processes.
    if first_batch:
        hvd.broadcast_variables(model.variables, root_rank=0)
        hvd.broadcast_variables(opt.variables(), root_rank=0)

    return loss_value


first = None
for batch, (x, y) in enumerate(dataset.take(60)):
    loss_value = training_step(x, y, batch == 0)
    first = loss_value if first is None else first

sums = hvd.allgather(tf.stack([tf.reduce_sum(tf.abs(v)) for v in model.trainable_variables])[tf.newaxis])
assert bool(tf.reduce_all(sums == sums[0])), sums
mean = hvd.allreduce(loss_value)
assert float(mean) < 0.8 * float(first), (float(first), float(mean))
if hvd.rank() == 0:
    print("tape: %d workers, loss %.3f -> %.3f" % (hvd.size(), first, mean))
