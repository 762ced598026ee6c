"""TensorFlow, Keras and JAX as the overhead benchmark needs them: a compiled function that calls the host, and gradients."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from grace.errors import ConfigurationError, unknown

BEGUN = time.time()  # JAX's float32 can tell microseconds only of small numbers
TOOLKITS = ("tensorflow", "keras", "jax")


@dataclass(frozen=True, slots=True)
class ToolkitAllReduce:
    """A toolkit's own all-reduce between processes.

    Args:
        name: what it is called.
        give, compile: as :class:`Host` has them, for a step in which ``mean`` is called.
        mean: gradients -> their means over all processes.
    """

    name: str
    give: Callable[[Any], Any]
    compile: Callable[[Callable[..., Any]], Callable[..., Any]]
    mean: Callable[[Sequence[Any]], Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Host:
    """A toolkit.

    Args:
        give: a numpy array -> a tensor of the toolkit.
        compile: a function of one list of tensors, which are not used again -> the same function, as a training step is
            compiled.
        call: ``call(exchange, tensors)``: the toolkit's call to the host, from within.
        differentiate: ``differentiate(loss, params)``: the gradients of ``loss(params)``, from within.
        relu: of the toolkit.
        wait: blocks until these tensors are computed.
        now: seconds since ``BEGUN``, read when a compiled function comes to this call, from within.
        own: the toolkit's own all-reduce.
    """

    name: str
    give: Callable[[Any], Any]
    compile: Callable[[Callable[..., Any]], Callable[..., Any]]
    call: Callable[..., list[Any]]
    differentiate: Callable[[Callable[[Sequence[Any]], Any], Sequence[Any]], Sequence[Any]]
    relu: Callable[[Any], Any]
    wait: Callable[[Any], Any]
    now: Callable[[], Any]
    own: ToolkitAllReduce


def open_host(toolkit: str) -> Host:
    """The toolkit of this name; Keras on its backend. Each process of torch's process group calls it, before it uses the
    toolkit otherwise: their own collectives are set up at the beginning.

    Raises:
        ConfigurationError: an unknown one, or one that is not installed.
    """
    if toolkit not in TOOLKITS:
        raise unknown("toolkit", toolkit, TOOLKITS)
    if toolkit == "tensorflow":
        return _open_tensorflow()
    if toolkit == "jax":
        return _open_jax()
    import keras

    import grace.keras.host

    backend = keras.backend.backend()
    below = {"tensorflow": _open_tensorflow, "jax": _open_jax, "torch": _open_torch}.get(backend)
    if below is None:
        raise ConfigurationError(f"KERAS_BACKEND={backend!r}; legal: tensorflow, jax, torch")
    return dataclasses.replace(below(), name=f"Keras on {backend}", call=grace.keras.host.call_host)


def _open_tensorflow() -> Host:
    addresses = _find_addresses(dist.get_world_size())
    cluster = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": dist.get_rank()}}
    os.environ["TF_CONFIG"] = json.dumps(cluster)
    import tensorflow as tf

    import grace.tensorflow

    def differentiate(loss: Callable[[Sequence[Any]], Any], params: Sequence[Any]) -> Sequence[Any]:
        with tf.GradientTape() as tape:
            tape.watch(params)
            value = loss(params)
        gradients: Sequence[Any] = tape.gradient(value, params)
        return gradients

    def compile_replica(step: Callable[..., Any]) -> Callable[..., Any]:
        replica = tf.function(step, reduce_retracing=True)
        compiled: Callable[..., Any] = tf.function(lambda xs: strategy.run(replica, args=(xs,)), reduce_retracing=True)
        return compiled

    def mean(gradients: Sequence[Any]) -> Sequence[Any]:
        means: Sequence[Any] = tf.distribute.get_replica_context().all_reduce("mean", list(gradients))
        return means

    tf.config.threading.set_intra_op_parallelism_threads(1)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    compiler = functools.partial(tf.function, reduce_retracing=True)
    own = ToolkitAllReduce("MultiWorkerMirroredStrategy", tf.constant, compile_replica, mean)
    call = grace.tensorflow.call_host
    return Host(
        "TensorFlow", tf.constant, compiler, call, differentiate, tf.nn.relu, lambda xs: xs[-1][:1].numpy(),
        lambda: tf.timestamp() - BEGUN, own,
    )  # fmt: skip


def _open_jax() -> Host:
    import jax
    from jax.experimental import io_callback

    import grace.jax

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    world = dist.get_world_size()
    jax.distributed.initialize(_find_addresses(1)[0], num_processes=world, process_id=dist.get_rank())
    mesh = jax.make_mesh((world,), ("ranks",), axis_types=(jax.sharding.AxisType.Auto,))
    rows = jax.sharding.PartitionSpec("ranks")

    def spread(x: Any) -> Any:
        """Each process's array is its row of a global one."""
        return jax.make_array_from_process_local_data(jax.sharding.NamedSharding(mesh, rows), x[None])

    def compile_rows(step: Callable[..., Any]) -> Callable[..., Any]:
        def on_rows(xs: Sequence[Any]) -> list[Any]:
            return [x[None] for x in step([x[0] for x in xs])]

        shards = jax.shard_map(on_rows, mesh=mesh, in_specs=(rows,), out_specs=rows, check_vma=False)
        compiled: Callable[..., Any] = jax.jit(shards, donate_argnums=0)
        return compiled

    def now() -> Any:
        return io_callback(lambda: np.float32(time.time() - BEGUN), jax.ShapeDtypeStruct((), np.float32), ordered=True)

    own = ToolkitAllReduce(
        "psum over gloo", spread, compile_rows, lambda xs: [x / world for x in jax.lax.psum(list(xs), "ranks")]
    )
    return Host(
        "JAX", jax.numpy.asarray, functools.partial(jax.jit, donate_argnums=0), grace.jax.call_host,
        lambda loss, params: jax.grad(loss)(list(params)), jax.nn.relu, jax.block_until_ready, now, own,
    )  # fmt: skip


def _open_torch() -> Host:
    def differentiate(loss: Callable[[Sequence[Any]], Any], params: Sequence[Any]) -> Sequence[Any]:
        given = [p.detach().requires_grad_() for p in params]
        return torch.autograd.grad(loss(given), given)

    def mean(gradients: Sequence[Tensor]) -> list[Tensor]:
        for x in gradients:
            dist.all_reduce(x)
        return [x.div_(dist.get_world_size()) for x in gradients]

    own = ToolkitAllReduce("torch's all_reduce", torch.from_numpy, _as_it_is, mean)
    return Host(
        "torch", torch.from_numpy, _as_it_is, lambda exchange, xs: list(exchange(xs)), differentiate, torch.relu,
        lambda xs: xs, lambda: time.time() - BEGUN, own,
    )  # fmt: skip


def _as_it_is(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


def _find_addresses(count: int) -> list[str]:
    """``count`` addresses on this machine, as rank 0 chooses them for all ranks."""
    chosen: list[Any] = [[f"127.0.0.1:{port}" for port in _find_ports(count)]]
    dist.broadcast_object_list(chosen)
    addresses: list[str] = chosen[0]
    return addresses


def _find_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for listener in sockets:
            listener.bind(("127.0.0.1", 0))
        return [listener.getsockname()[1] for listener in sockets]
