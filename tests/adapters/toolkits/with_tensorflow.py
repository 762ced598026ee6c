"""TensorFlow's cases; see ``running.py``. Each runs on two ranks."""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Sequence
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = ""
import tensorflow as tf
import torch
from torch import Tensor

import grace
import grace.tensorflow as gt
from grace.adapters.handover import Handover
from grace.errors import ConfigurationError, FingerprintMismatch, GraceError, InputError, StateError
from grace.errors import TransportError as Failed
from grace.state import flat
from grace.tensorflow.calls import to_tensorflow, to_torch
from tests.adapters.toolkits.running import raises, serve
from tests.adapters.toolkits.same_bits import METHODS, SHAPES, compare, policy
from tests.patience import PATIENCE

TOP = policy("topk:ratio=0.25")
OF_TF = (tf.errors.UnknownError, tf.errors.InvalidArgumentError)


def variables(shapes: Any = SHAPES) -> list[tf.Variable]:
    return [tf.Variable(tf.zeros(shape), name=name) for name, shape in shapes.items()]


def pair(**options: Any) -> gt.Gradients:
    options.setdefault("method", TOP)
    return gt.Gradients(variables({"v": (4,), "w": (4,)}), **options)


def alike(x: Any, y: Any) -> bool:
    return bool(tf.reduce_all(tf.equal(x, y)))


# ---- the same bits --------------------------------------------------------------------------------------------------
def same_bits(rank: int, world: int) -> None:
    for method in METHODS:
        exchange = gt.Gradients(variables(), policy(method))

        @tf.function
        def step(*given: Any, exchange: gt.Gradients = exchange) -> Any:
            return exchange.mean(given)

        def mean(given: Sequence[Tensor], step: Any = step) -> list[Tensor]:
            return [to_torch(x) for x in step(*[to_tensorflow(x) for x in given])]

        compare(method, rank, mean)
        exchange.close()


def same_bits_in_eager_mode(rank: int, world: int) -> None:
    exchange = gt.Gradients(variables(), policy("powersgd:rank=2"))
    compare("powersgd:rank=2", rank, lambda xs: [to_torch(x) for x in exchange.mean(map(to_tensorflow, xs))], steps=4)


def a_mixed_job(rank: int, world: int) -> None:
    """A rank has TensorFlow, the other torch's tensors."""
    method = "qsgd:bits=4"
    if rank:
        kinds = (list(SHAPES), list(SHAPES.values()), ["float32"] * len(SHAPES))
        handover = Handover(*kinds, policy(method))
        compare(method, rank, lambda xs: [x for x in handover.mean(xs) if x is not None], steps=4)
    else:
        exchange = gt.Gradients(variables(), policy(method))
        compare(method, rank, lambda xs: [to_torch(x) for x in exchange.mean(map(to_tensorflow, xs))], steps=4)


# ---- training -------------------------------------------------------------------------------------------------------
def training(rank: int, world: int) -> None:
    """A sparse embedding, a variable without a gradient, batches of two sizes, and the same in eager mode."""
    tf.random.set_seed(rank)
    table = tf.Variable(tf.random.normal([300, 16], stddev=0.1), name="table")
    w = tf.Variable(tf.random.normal([16, 8], stddev=0.2), name="w")
    trained = [table, w, tf.Variable(tf.zeros([3]), name="unused")]
    gt.broadcast_variables(trained)
    exchange = gt.Gradients(trained, "topk:ratio=0.1")
    teacher = tf.random.stateless_normal([300, 8], [1, 2])
    traces = []

    @tf.function(reduce_retracing=True)
    def step(ids: Any) -> Any:
        traces.append(ids.shape)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.gather(table, ids) @ w - tf.gather(teacher, ids)) ** 2)
        means = gt.DistributedGradientTape(tape, exchange).gradient(loss, trained)
        for mean, v in zip(means, trained, strict=True):
            if mean is not None:
                v.assign_sub(20.0 * mean)
        assert means[2] is None
        return loss

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        losses = [
            float(step(tf.random.stateless_uniform([64 if i % 2 else 48], [i, rank], 0, 300, tf.int32)))
            for i in range(40)
        ]
        losses.append(float(step.python_function(tf.range(64))))
    told = [str(warning.message) for warning in caught if "IndexedSlices" in str(warning.message)]
    assert told == [
        "the gradient of 'table' is tf.IndexedSlices, and is exchanged as a dense tensor of 19,200 bytes"
    ], told
    assert len(traces) in (3, 4), traces
    assert losses[-1] < 0.8 * losses[0], losses
    assert exchange.stats.steps == 41
    assert exchange.stats.ratio > 2
    before = [v.numpy() for v in trained]
    gt.broadcast_variables(trained, root_rank=1)
    assert all((x == v.numpy()).all() for x, v in zip(before, trained, strict=True)), "replicas differ"


def auto(rank: int, world: int) -> None:
    exchange = gt.Gradients(variables(), "auto:methods=(qsgd:bits=4)")
    step = tf.function(lambda *given: exchange.mean(given))
    for i in range(10):
        given = [tf.random.stateless_normal(shape, [i, rank]) for shape in SHAPES.values()]
        means = step(*given)
    assert exchange.chooses
    assert "a step takes" in str(exchange.explain())
    gathered = exchange._session.network.all_gather_text(
        str([float(tf.reduce_sum(x)) for x in means]), seconds=PATIENCE
    )
    assert len(set(gathered)) == 1, gathered
    saved = exchange.state_dict()
    assert set(saved["auto"]["methods"]) == set(SHAPES)
    exchange.switch("none")
    assert not torch.equal(to_torch(step(*given)[0]), to_torch(given[0]))
    assert "the user has switched" in str(exchange.explain())
    exchange.load_state_dict(saved)
    exchange.close()


def sparse_ones_are_refused(rank: int, world: int) -> None:
    table = tf.Variable(tf.zeros([30, 2]), name="table")
    exchange = gt.Gradients([table], "none", sparse="refuse")
    with raises(InputError, "'table' is tf.IndexedSlices", "sparse='densify'", "240 bytes"):
        exchange.mean([tf.IndexedSlices(tf.ones([1, 2]), tf.constant([3]), tf.constant([30, 2]))])


# ---- what is lent is not written, what is handed out is not overwritten ---------------------------------------------
def check_constants(exchange: gt.Gradients) -> None:
    """The gradient of a sum is a constant of the graph: the same memory in each step."""
    v, w = exchange.variables

    @tf.function
    def step() -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(v) + 2.0 * tf.reduce_sum(w)
        own = tape.gradient(loss, [v, w])
        return own, exchange.mean(own)

    for _ in range(3):
        own, means = step()
        assert own[0].numpy().tolist() == [1.0] * 4
        assert own[1].numpy().tolist() == [2.0] * 4
        assert means[1].numpy().tolist() == [2.0] * 4


def check_held(exchange: gt.Gradients) -> None:
    """Means that somebody keeps stay what they were."""
    step = tf.function(lambda x: exchange.mean([x, x]))
    held = [step(tf.constant([1.0, 2.0, 3.0, 10.0 + i])) for i in range(4)]
    copies = [[x.numpy().copy() for x in means] for means in held]
    for i in range(4):
        step(tf.constant([20.0 + i, 3.0, 2.0, 1.0]))
    for means, copy in zip(held, copies, strict=True):
        for x, y in zip(means, copy, strict=True):
            assert (x.numpy() == y).all()


def constants(rank: int, world: int) -> None:
    check_constants(pair(method="none"))
    check_constants(pair(method=policy("bf16")))


def held(rank: int, world: int) -> None:
    check_held(pair())
    check_held(pair(method="none"))


def storage_is_used_again(rank: int, world: int) -> None:
    exchange = pair(method="none")
    step = tf.function(lambda x: exchange.mean([x, x]))
    places = {to_torch(step(tf.ones(4))[0]).data_ptr() for _ in range(10)}
    assert len(places) <= 2, places


def mutants(rank: int, world: int) -> None:
    """The checks above find what they are for."""
    in_place, workspace = pair(method="none"), pair(method="none")

    def write_into_what_is_lent(given: Sequence[Any], lr: Any, scale: float) -> list[Tensor]:
        names = in_place._handover.names
        for x in given:
            x.mul_(10)
        return list(in_place._steps.step({n: x.clone() for n, x in zip(names, given, strict=True)}).values())

    def hand_out_the_workspace(given: Sequence[Any], lr: Any, scale: float) -> list[Tensor]:
        names = workspace._handover.names
        return list(workspace._steps.step({n: x.clone() for n, x in zip(names, given, strict=True)}).values())

    in_place._handover.mean = write_into_what_is_lent
    workspace._handover.mean = hand_out_the_workspace
    with raises(AssertionError):
        check_constants(in_place)
    with raises(AssertionError):
        check_held(workspace)


# ---- graphs ---------------------------------------------------------------------------------------------------------
def two_in_one_graph(rank: int, world: int) -> None:
    first, second = pair(method="none"), pair(method="none")

    @tf.function
    def step(x: Any) -> Any:
        b = second.mean([3 * x, x])  # needs nothing of the other; both keep the order of the program
        a = first.mean([x, 2 * x])
        return a, b

    for i in range(10):
        a, b = step(tf.ones(4) * (rank + i))
        assert float(a[1][0]) == 1 + 2 * i
        assert float(b[0][0]) == 1.5 + 3 * i


def no_gradient_goes_through(rank: int, world: int) -> None:
    exchange, x = pair(method="none"), tf.Variable(tf.ones(4))

    @tf.function
    def step() -> Any:
        with tf.GradientTape() as tape:
            y = exchange.mean([x * x, x])[0]
        assert tape.gradient(y, x) is None
        return y

    places = {to_torch(step()).data_ptr() for _ in range(6)}
    assert len(places) <= 3, places


def xla(rank: int, world: int) -> None:
    exchange = pair(method="none")

    def step(x: Any) -> Any:
        return exchange.mean([x, x])

    with raises(ConfigurationError, "jit_compile=True", "tf.function of its own"):
        tf.function(step, jit_compile=True)(tf.ones(4))
    inner = tf.function(step)
    exchange = pair(method="none")
    with raises(ConfigurationError, "jit_compile=True"):
        tf.function(lambda x: inner(x), jit_compile=True)(tf.ones(4))
    exchange = pair(method="none")
    compiled = tf.function(lambda x: x * 3, jit_compile=True)
    assert float(tf.function(lambda x: exchange.mean([compiled(x), x]))(tf.ones(4))[0][0]) == 3


def made_in_a_graph(rank: int, world: int) -> None:
    with raises(ConfigurationError, "outside of the tf.function"):
        tf.function(lambda: pair())()


def no_gradient(rank: int, world: int) -> None:
    exchange = pair(method="none")
    own = [tf.ones(4) * (rank + 1), None]
    assert exchange.mean(own)[1] is None
    step = tf.function(lambda x: [m for m in exchange.mean([x, None]) if m is not None])
    assert float(step(own[0])[0][0]) == 1.5
    with raises(InputError, "a gradient of 'w' has come"):
        exchange.mean([tf.ones(4), tf.ones(4)])
    exchange = pair(method="none")
    step = tf.function(lambda x: exchange.mean([x, x if rank else None]))
    assert [float(m[0]) for m in step(own[0])] == [1.5, 1.0], "what one rank has is a mean on all"
    exchange = pair(method="none")
    with raises(InputError, "the loss depends on none"):
        exchange.mean([None, None])


def other_variables(rank: int, world: int) -> None:
    exchange = pair()
    v, w = exchange.variables
    late = tf.Variable(tf.ones(4), name="late")
    with tf.GradientTape(persistent=True) as tape:
        loss = tf.reduce_sum(v + w + late)
    tape = gt.DistributedGradientTape(tape, exchange)
    for sources, text in (([v, late], "'late' not among them"), ([w, v], "another order"), ([v], "1 in another order")):
        with raises(ConfigurationError, text, "after the model is built"):
            tape.gradient(loss, sources)
    with raises(InputError, "3 gradients for 2 variables", "make new Gradients"):
        exchange.mean([tf.ones(4)] * 3)


def structures(rank: int, world: int) -> None:
    """Sources come back in the structure in which they were asked for, and the tape's other methods are its own."""
    exchange = pair(method="none")
    v, w = exchange.variables
    with gt.DistributedGradientTape(tf.GradientTape(), exchange) as tape:
        loss = tf.reduce_sum(v) + 2 * tf.reduce_sum(w)
    assert tape.watched_variables() == (v, w)
    means = tape.gradient(loss, {"a": v, "b": w})
    assert means["b"].numpy().tolist() == [2.0] * 4


def replicas(rank: int, world: int) -> None:
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope(), raises(ConfigurationError, "2 replicas", "one process is one replica"):
        pair()
    exchange = pair()
    with strategy.scope(), raises(ConfigurationError, "2 replicas"):
        exchange.mean([tf.ones(4)] * 2)


def dtypes(rank: int, world: int) -> None:
    for dtype in (tf.int32, tf.complex64, tf.bool):
        with raises(InputError, "'steps' is", "legal: float16, bfloat16, float32, float64"):
            gt.Gradients([tf.Variable(tf.cast([0], dtype), name="steps")], "none")
    with raises(InputError, "'names' is string"):
        gt.Gradients([tf.Variable(["a"], name="names")], "none")
    with raises(ConfigurationError, "nothing to exchange"):
        gt.Gradients([], "none")
    with raises(ConfigurationError, "sparse='no'"):
        pair(sparse="no")
    kinds = [tf.float16, tf.bfloat16, tf.float64]
    exchange = gt.Gradients([tf.Variable(tf.zeros([3], dtype), name="same") for dtype in kinds], "none")
    means = exchange.mean([tf.cast([1, 2, rank], dtype) for dtype in kinds])
    assert [m.dtype for m in means] == kinds
    assert all(tf.cast(m, tf.float32).numpy().tolist() == [1, 2, 0.5] for m in means)
    assert exchange._handover.names == ["0:same", "1:same", "2:same"]


# ---- scale, learning rate, state ------------------------------------------------------------------------------------
def loss_scaling(rank: int, world: int) -> None:
    """An inf on one rank alone: all skip that step, and the memory keeps what it had."""
    v = tf.Variable(tf.zeros([4]), name="v")
    optimizer = tf.keras.optimizers.LossScaleOptimizer(tf.keras.optimizers.SGD(1.0), initial_scale=2.0**10)
    optimizer.build([v])
    exchange, plain = gt.Gradients([v], TOP), gt.Gradients([v], TOP)

    @tf.function
    def step(x: Any) -> Any:
        (mean,) = exchange.mean([x * optimizer.dynamic_scale], scale=optimizer.dynamic_scale)
        optimizer.apply([mean], [v])

    applied = tf.zeros(4)
    for i in range(6):
        x = tf.constant([1.0, 2.0, 3.0, 4.0 + i]) * (rank + 1)
        if i == 2:
            step(x * float("inf") if rank else x)
            assert float(optimizer.dynamic_scale) == 2.0**9
        else:
            step(x)
            applied -= plain.mean([x])[0]
        assert alike(v, applied), f"step {i}: {v.numpy()} and {applied.numpy()}"
    assert int(optimizer.inner_optimizer.iterations) == 5


def not_finite(rank: int, world: int) -> None:
    """As an error on all ranks, after which the next step goes on."""
    exchange = pair(nonfinite="error")
    step = tf.function(lambda x: exchange.mean([x, x]))
    with raises(OF_TF, "NonFiniteError", "'v', 'w'"):
        step(tf.ones(4) * (float("inf") if rank else 1.0))
    assert exchange.error is None
    assert float(step(tf.constant([1.0, 1.0, 1.0, 9.0]))[0][3]) == 9
    exchange = pair(method="none", nonfinite="skip")
    means = exchange.mean([tf.ones(4) * (float("nan") if rank else 1.0), tf.ones(4)])
    assert [float(mean[0]) for mean in means] == [0, 1]


def learning_rate(rank: int, world: int) -> None:
    method = policy("topk:ratio=0.25,follow_lr=true")
    v = variables({"v": (4,), "w": (4,)})
    rates = tf.keras.optimizers.schedules.ExponentialDecay(1.0, 1, 0.5)
    optimizer = tf.keras.optimizers.SGD(rates)
    optimizer.build(v)
    exchange = gt.Gradients(v, method, learning_rate=optimizer)
    sim = grace.Simulator(method, world=world)

    @tf.function
    def step(x: Any) -> Any:
        means = exchange.mean([x, 2 * x])
        optimizer.apply(means, v)
        return means

    for i in range(4):
        xs = [torch.tensor([1.0, 2.0, 3.0, 4.0 + i * r]) for r in range(world)]
        expected = sim.step({"v": xs, "w": [2 * x for x in xs]}, lr=0.5**i)
        means = step(to_tensorflow(xs[rank]))
        assert torch.equal(to_torch(means[1]), expected["w"]), i
    with raises(GraceError, "learning rate"):
        pair(method=method).mean([tf.ones(4)] * 2)


def states(rank: int, world: int) -> None:
    whole, first, second = pair(), pair(), pair()

    def gradients_of(i: int) -> list[Any]:
        return [tf.constant([1.0, 2.0, 3.0, 4.0 + i + rank])] * 2

    for i in range(6):
        if i == 3:
            second.load_state_dict(flat(first.state_dict()))
        means = (first if i < 3 else second).mean(gradients_of(i))
        assert all(map(alike, means, whole.mean(gradients_of(i))))
    with raises(StateError):
        second.load_state_dict({} if rank else second.state_dict())
    second.switch("none")
    second.mean(gradients_of(0))


# ---- the start ------------------------------------------------------------------------------------------------------
def start(rank: int, world: int) -> None:
    kinds = [tf.float32, tf.bfloat16, tf.int64, tf.bool, tf.uint8]
    v = [tf.Variable(tf.cast([[rank, 1, rank]], dtype)) for dtype in kinds]
    v += [tf.Variable(float(rank)), tf.Variable(tf.zeros([0, 3]))]
    gt.broadcast_variables(v, root_rank=1)
    assert [tf.cast(x, tf.int32).numpy().tolist() for x in v[:5]] == [[[1, 1, 1]]] * 5
    assert float(v[5]) == 1
    w = tf.Variable(float(rank + 5))
    tf.function(lambda: gt.broadcast_variables([w]))()
    assert float(w) == 5
    gt.broadcast_variables([])
    with raises(ConfigurationError, "root_rank=2", "0 to 1"):
        gt.broadcast_variables(v, root_rank=2)
    with raises(InputError, "is string"):
        gt.broadcast_variables([tf.Variable(["a"])])
    with raises(FingerprintMismatch, "variable 0"):
        gt.broadcast_variables([tf.Variable(tf.zeros([rank + 1]))])
    layer = tf.keras.layers.Dense(3)
    layer.build((None, 2))
    gt.broadcast_variables(layer.variables)
    exchange = gt.Gradients(layer.trainable_variables, "none")
    assert exchange._handover.names == [w.path for w in layer.trainable_variables]
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(tf.ones([1, 2])))
    means = gt.DistributedGradientTape(tape, exchange).gradient(loss, layer.trainable_variables)
    assert means[1].numpy().tolist() == [1.0] * 3


# ---- ranks that differ, leave or die --------------------------------------------------------------------------------
def ranks_that_differ(rank: int, world: int) -> None:
    with raises(FingerprintMismatch, "seed"):
        pair(seed=rank)
    with raises(FingerprintMismatch):
        pair(method="none" if rank else "topk")


def another_shape(rank: int, world: int) -> None:
    """On one rank: it says which; the other hears of it at once; both keep it."""
    exchange = pair(method="none")
    step = tf.function(lambda x: exchange.mean([x, x]), input_signature=[tf.TensorSpec([None])])
    step(tf.ones(4))
    start = time.monotonic()
    kind, text = (InputError, "is float32 (5,), and was float32 (4,)") if rank else (Failed, "worker has died")
    with raises(OF_TF, kind.__name__, text):
        step(tf.ones(5 if rank else 4))
    assert time.monotonic() - start < PATIENCE / 2, "it heard only by a time-out"
    assert isinstance(exchange.error, kind)
    with raises(OF_TF, text):
        step(tf.ones(4))
    with raises(kind, text):
        exchange.mean([tf.ones(4)] * 2)


def another_number_in_the_first_step(rank: int, world: int) -> None:
    """On one rank, while it traces: the other, which waits for its first step, hears of it at once."""
    exchange = pair(method="none")
    start = time.monotonic()
    with raises(InputError if rank else Failed, "1 gradients for 2 variables" if rank else "worker has died"):
        tf.function(lambda x: exchange.mean([x] * (2 - rank)))(tf.ones(4))
    assert time.monotonic() - start < PATIENCE / 2, "it heard only by a time-out"


def one_ends_first(rank: int, world: int) -> None:
    exchange = pair()
    step = tf.function(lambda x: exchange.mean([x, x]))
    for _ in range(3):
        step(tf.ones(4))
    if rank:
        exchange.close()
        with raises(GraceError, "closed"):
            exchange.mean([tf.ones(4)] * 2)
    else:
        with raises(tf.errors.UnknownError, "TransportError", "left"):
            step(tf.ones(4))
        assert isinstance(exchange.error, Failed)


def killed(rank: int, world: int) -> None:
    """The last case: it ends rank 1."""
    exchange = pair()
    step = tf.function(lambda x: exchange.mean([x, x]))
    step(tf.ones(4))
    if rank:
        os._exit(17)
    with raises(tf.errors.UnknownError, "TransportError", "A worker has died"):
        step(tf.ones(4))
    assert isinstance(exchange.error, Failed)


CASES = {
    case.__name__: case
    for case in (
        same_bits, same_bits_in_eager_mode, a_mixed_job, training, auto, sparse_ones_are_refused, constants, held,
        storage_is_used_again, mutants, two_in_one_graph, no_gradient_goes_through, xla, made_in_a_graph,
        no_gradient, other_variables, structures, replicas, dtypes, loss_scaling, not_finite, learning_rate,
        states, start, ranks_that_differ, another_shape, another_number_in_the_first_step, one_ends_first,
        killed,
    )
}  # fmt: skip

if __name__ == "__main__":
    if sys.argv[1:]:
        CASES = {name: CASES[name] for name in sys.argv[1:]}
    tf.config.threading.set_intra_op_parallelism_threads(1)
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    serve(CASES)
