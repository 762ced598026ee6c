"""A script in the manner of GRACE's example for Horovod and Keras, with all its callbacks."""

import horovod.tensorflow.keras as hvd
import tensorflow as tf
from grace_dl.tensorflow.communicator.allgather import Allgather
from grace_dl.tensorflow.compressor.topk import TopKCompressor
from grace_dl.tensorflow.memory.residual import ResidualMemory

hvd.init()
tf.random.set_seed(7 + hvd.rank())

images = tf.random.stateless_normal([512, 64], [hvd.rank(), 1])
teacher = tf.random.stateless_normal([64, 10], [3, 4])
labels = tf.argmax(images @ teacher, axis=1)
dataset = tf.data.Dataset.from_tensor_slices((images, labels)).repeat().shuffle(512).batch(64)

model = tf.keras.Sequential(
    [tf.keras.layers.Dense(32, activation="relu"), tf.keras.layers.Dense(10, activation="softmax")]
)

# Horovod: adjust learning rate based on the number of workers.
opt = tf.optimizers.Adam(0.01 * hvd.size())

# GRACE: compression algorithm
grc = Allgather(TopKCompressor(0.3), ResidualMemory(), hvd.size())

# Horovod: add Horovod DistributedOptimizer.
opt = hvd.DistributedOptimizer(opt, grace=grc)

model.compile(
    loss=tf.losses.SparseCategoricalCrossentropy(),
    optimizer=opt,
    metrics=["accuracy"],
    experimental_run_tf_function=False,
)

callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd.callbacks.MetricAverageCallback(),
    hvd.callbacks.LearningRateWarmupCallback(warmup_epochs=2, verbose=1),
]
history = model.fit(dataset, steps_per_epoch=16, callbacks=callbacks, epochs=3, verbose=0).history

sums = hvd.allgather(tf.stack([tf.reduce_sum(tf.abs(v)) for v in model.trainable_variables])[tf.newaxis])
assert bool(tf.reduce_all(sums == sums[0])), sums
every = hvd.allgather(tf.constant([history["accuracy"]]))
assert bool(tf.reduce_all(every == every[0])), every  # the callback has averaged them
assert history["loss"][-1] < history["loss"][0]
assert abs(float(opt.learning_rate) - 0.01 * hvd.size()) < 1e-6
if hvd.rank() == 0:
    print("keras: %d workers, loss %.3f -> %.3f" % (hvd.size(), history["loss"][0], history["loss"][-1]))
