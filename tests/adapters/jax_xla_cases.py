"""Checks of `test_jax_xla.py` on four devices, in a process of its own: JAX must be told of them before it starts.

``python -m tests.adapters.jax_xla_cases FILE`` runs all of it and writes what went wrong, by name, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"  # before jax starts
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import grace
import grace.jax as gj
from grace.errors import ConfigurationError, InputError, StateError
from grace.jax.xla import communicators, transform
from grace.jax.xla.place import TracedPeer
from grace.jax.xla.plan import CODECS
from grace.jax.xla.random import lanes, subset
from grace.random import Stream
from tests.golden import golden

W = 4
MESH = jax.make_mesh((W,), ("data",))
SHAPE = (3, 2, 8, 25)  # a convolution's kernel; 1,200 numbers: chunks of 300, blocks that end early
EXACT = {  # the simulator's bits; a leaf for each
    "none": "none",
    "none_residual": "none:memory=residual",
    "bf16": "bf16:communicator=scatterreduce",
    "fp16": "fp16:communicator=scatterreduce,memory=residual",
    "fp8": "fp8:memory=residual",
    "fp8_stochastic": "fp8:fmt=e5m2,stochastic=true,communicator=scatterreduce",
    "qsgd": "qsgd:bits=4,communicator=scatterreduce,memory=residual",
    "qsgd_3bits": "qsgd:bits=3,bucket=50",
    "qsgd_1level": "qsgd:levels=1,memory=residual",
    "topk": "topk:ratio=0.05",
    "topk_narrow": "topk:ratio=0.4,values=bfloat16,communicator=scatterreduce,beta=0.5",
    "topk_raw": "topk:ratio=0.01,index=raw,memory=none",
    "signs": "efsignsgd:block=48",
    "blocks": "blockrandomk:ratio=0.2,block=50",
    "blocks_cyclic": "blockrandomk:ratio=0.2,block=70,mode=cyclic",
    "blocks_many": "blockrandomk:ratio=0.3,block=1,memory=none",
}
CLOSE = {"powersgd": "powersgd:rank=2,min_rate=0.1", "bf16_sum": "bf16"}  # sums in another order, or of other precision
ALL = {**EXACT, **CLOSE}
CHECKS: dict[str, Callable[[], None]] = {}


def check(function: Callable[[], None]) -> Callable[[], None]:
    CHECKS[function.__name__] = function
    return function


def policy(methods: dict[str, str]) -> grace.Policy:
    return grace.Policy(list(methods.items()))


def put(tree: Any, specs: Any) -> Any:
    return jax.tree.map(lambda x, spec: jax.device_put(x, NamedSharding(MESH, spec)), tree, specs)


class Run:
    """Steps of ``compressed_mean`` alone: stacked gradients ``[W, *shape]`` in, everyone's means ``[W, *shape]`` out."""

    def __init__(self, methods: grace.Policy | str, shapes: dict[str, tuple[int, ...]], **options: Any):
        self.optimizer = gj.compressed_mean(methods, **options)
        self.state = self.optimizer.init({name: jnp.zeros(shape) for name, shape in shapes.items()})
        self.specs = gj.state_specs(self.state)
        self.state = put(self.state, self.specs)
        names = dict.fromkeys(shapes, P("data"))

        def step(gradients: Any, state: Any) -> Any:
            means, state = self.optimizer.update(jax.tree.map(lambda x: x[0], gradients), state)
            return jax.tree.map(lambda x: x[None], means), state

        where: Any = {"mesh": MESH, "in_specs": (names, self.specs), "out_specs": (names, self.specs)}
        self.names = names
        given = {name: np.zeros((W, *shape), np.float32) for name, shape in shapes.items()}
        traced = jax.jit(jax.shard_map(step, check_vma=False, **where)).lower(put(given, names), self.state)
        self.step = traced.compile()

    def __call__(self, gradients: dict[str, Any]) -> dict[str, Any]:
        means, self.state = jax.block_until_ready(self.step(put(gradients, self.names), self.state))
        return {name: np.asarray(mean) for name, mean in means.items()}

    def memory(self) -> dict[str, Any]:
        return {name: np.asarray(x) for name, x in self.state.memory.items() if not isinstance(x, optax.MaskedNode)}


def gradients(step: int, names: Any = ALL, shape: tuple[int, ...] = SHAPE) -> dict[str, Any]:
    rng = np.random.default_rng(step)
    return {name: rng.standard_normal((W, *shape)).astype(np.float32) for name in names}


RUN: dict[str, Any] = {}  # the run of all methods, compiled once


def whole() -> Run:
    if not RUN:
        RUN["run"] = Run(policy(ALL), dict.fromkeys(ALL, SHAPE), seed=5)
    run: Run = RUN["run"]
    return run


# ---- bits -----------------------------------------------------------------------------------------------------------
@check
def the_bits_of_the_simulator_and_the_laws() -> None:
    run, simulator = whole(), grace.Simulator(policy(ALL), W, seed=5)
    for step in range(3):
        given, before = gradients(step), run.memory()
        means, after = run(given), run.memory()
        expected = simulator.step(
            {n: [torch.from_numpy(x[r].copy()).reshape(-1, 25) for r in range(W)] for n, x in given.items()}
        )
        for name, mean in means.items():
            assert (mean == mean[0]).all(), f"{name}: agreement"
            reference = expected[name].numpy().reshape(SHAPE)
            if name in EXACT:
                assert np.array_equal(mean[0], reference), f"{name}, step {step}: not the simulator's bits"
            else:
                np.testing.assert_allclose(mean[0], reference, atol=(2e-5 if name == "powersgd" else 2e-2))
        check_conservation(given, before, after, means)


def check_conservation(given: Any, before: Any, after: Any, means: Any) -> None:
    """Law 2, which step by step is law 3: what was put in is in the mean or still in a memory."""
    for name in after:
        beta = 0.5 if name == "topk_narrow" else 1.0
        sent = (given[name] + beta * before[name] - after[name]).mean(axis=0)
        np.testing.assert_allclose(means[name][0], sent, atol=2e-5, err_msg=f"{name}: conservation")


@check
def collectives_are_fused() -> None:
    text = whole().step.as_text()
    counts = {kind: text.count(f" {kind}(") + text.count(f" {kind}-start(") for kind in ("all-gather", "all-to-all")}
    assert counts == {"all-gather": 2, "all-to-all": 1}, counts  # of one round, and of the second of two
    # sums: float32 twice (low rank has two rounds), bfloat16 once; and the flags
    assert text.count(" all-reduce(") + text.count(" all-reduce-start(") <= 4


@check
def what_was_not_placed_is_placed_by_shard() -> None:
    mean = gj.compressed_mean("topk:ratio=0.05")
    params, batch = {"w": jnp.ones((64, 64))}, jnp.ones((16, 64))
    state = mean.init(params)
    specs = gj.state_specs(state)

    @jax.jit
    @partial(jax.shard_map, mesh=MESH, in_specs=(P(), specs, P("data")), out_specs=(P(), specs), check_vma=False)
    def step(params: Any, state: Any, x: Any) -> Any:
        return mean.update(jax.grad(lambda p: ((x @ p["w"]) ** 2).mean())(params), state)

    with pytest.raises(ValueError, match=r"in_specs|incompatible devices"):  # JAX's own, before it comes to Grace
        step(params, jax.device_put(state, jax.devices()[0]), jax.device_put(batch, jax.devices()[0]))
    _, after = step(params, gj.shard(state, MESH, specs), gj.shard(batch, MESH, P("data")))
    assert int(after.count) == 1
    assert after.memory["w"].sharding.spec[0] == "data"
    with pytest.raises(InputError, match=r"'x' is \(3, 64\), and 4 devices .* multiple of 4"):
        gj.shard({"x": batch[:3]}, MESH, P("data"))


@check
def golden_bytes() -> None:
    class Golden(TracedPeer):
        rank = 1  # type: ignore[assignment]

        def private_key(self, method: str, hop: int) -> Any:
            return jnp.array(Stream(12345, method, "fc.weight", 1, 17).key(), jnp.uint32)

    place = Golden("data", W, jnp.int32(17), "fc.weight", 12345)
    codecs = {
        spec: CODECS[type(compressor)](compressor)
        for spec, compressor in golden.COMPRESSORS.items()
        if type(compressor) in CODECS and known(compressor)
    }

    def both(x: Any) -> dict[str, Any]:
        wires = {spec: codec.encode(x, place, 0, False)[0] for spec, codec in codecs.items()}
        return {spec: (wire, codecs[spec].decode(wire, 37, 1.0, place)[0]) for spec, wire in wires.items()}

    for spec, (wire, decoded) in jax.jit(both)(jnp.asarray(golden.numbers().numpy())[None]).items():
        assert np.asarray(wire).tobytes().hex() == golden.GOLDEN[spec]["wire"], spec
        assert np.asarray(decoded).tolist() == golden.GOLDEN[spec]["decoded"], spec
    names = {spec.partition(":")[0] for spec in codecs}
    assert names == {"none", "bf16", "fp16", "fp8", "qsgd", "topk", "efsignsgd"}


def known(compressor: Any) -> bool:
    """True if XLA has these knobs."""
    try:
        CODECS[type(compressor)](compressor).check()
    except ConfigurationError:
        return False
    return True


@check
def golden_conversations() -> None:
    x = jnp.asarray(golden.numbers(48).numpy())
    for spec, shape in (("powersgd:rank=2,min_rate=0.1", (8, 6)), ("blockrandomk:ratio=0.25,block=8", (48,))):
        planned = transform.plan(golden.METHODS[spec])
        place = TracedPeer("data", 1, jnp.int32(17), "fc.weight", 12345)
        inner = planned.init(shape)
        talk = planned.exchange(x.reshape(shape), None if inner is None else jnp.asarray(inner), place)
        conversation: dict[str, Any] = {}
        try:
            op = next(talk)
            while True:
                conversation[f"round {len(conversation)}"] = op.x
                op = talk.send(op.x)
        except StopIteration as stop:
            conversation["mean"] = stop.value[0].reshape(-1)
        for key, numbers in golden.GOLDEN[spec].items():
            np.testing.assert_allclose(conversation[key], numbers, rtol=1e-5, atol=1e-5, err_msg=f"{spec}: {key}")


@check
def random_numbers_are_the_streams() -> None:
    stream = Stream(3, "method", "tensor", None, 12)
    key = jnp.array(stream.key(), jnp.uint32)
    assert np.array_equal(lanes(key, 12, 1001), stream.lanes(1001).numpy())
    for n, k in ((10, 10), (4096, 77), (4097, 4096), (70001, 3000)):
        assert np.array_equal(jax.jit(subset, static_argnums=(2, 3))(key, 12, n, k), stream.subset(n, k).numpy())


# ---- not finite -------------------------------------------------------------------------------------------------------
@check
def one_infinite_number_on_one_device() -> None:
    check_not_finite(whole(), ALL)


def check_not_finite(run: Run, names: Any) -> None:
    """Law 9: that tensor's mean is NaN on all devices, its memory as it was, and so are the others'."""
    given, before = gradients(7, names), run.memory()
    for i, name in enumerate(names):
        if i % 2:
            given[name][2].reshape(-1)[5] = (np.inf, np.nan)[i % 4 // 2]
    means, after = run(given), run.memory()
    for i, name in enumerate(names):
        if i % 2:
            assert np.isnan(means[name]).all(), f"{name}: a number is left"
            if name in after:
                assert np.array_equal(after[name], before[name]), f"{name}: the memory changed"
        else:
            assert np.isfinite(means[name]).all(), f"{name}: its neighbor's trouble"
    assert all(np.isfinite(mean).all() for mean in run(gradients(8, names)).values())


@check
def skip_makes_zeros_and_small_tensors_are_summed() -> None:
    shapes = {"kernel": (40, 40), "bias": (40,)}
    run = Run("topk:ratio=0.1", shapes, nonfinite="skip")
    assert list(run.memory()) == ["kernel"]
    given = {name: np.ones((W, *shape), np.float32) for name, shape in shapes.items()}
    assert (run(given)["bias"] == 1).all()
    given["kernel"][1, 2, 3] = given["bias"][0, 0] = np.inf
    assert all((mean == 0).all() for mean in run(given).values())


# ---- mutants ------------------------------------------------------------------------------------------------------------
SMALL = {"first": "topk:ratio=0.1", "second": "qsgd:bits=4,communicator=scatterreduce,memory=residual"}


def broken(what: Callable[[Run], None], module: Any, name: str, mutant: Any) -> None:
    """The check fails if this function is another one."""
    whole_one = getattr(module, name)
    setattr(module, name, mutant)
    try:
        what(Run(policy(SMALL), dict.fromkeys(SMALL, SHAPE)))
    except AssertionError:
        return
    finally:
        setattr(module, name, whole_one)
    raise AssertionError(f"a mutant of {name} was not noticed")


def conservation(run: Run) -> None:
    given, before = gradients(1, SMALL), run.memory()
    means = run(given)
    check_conservation(given, before, run.memory(), means)


@check
def a_mutant_that_does_not_agree_on_finite_is_caught() -> None:
    broken(lambda run: check_not_finite(run, SMALL), transform, "agree", lambda flags, axis: jnp.stack(flags))


@check
def a_mutant_without_the_second_rounding_is_caught() -> None:
    broken(conservation, communicators, "product", lambda x, y, zero: 0 * x)


# ---- mistakes -----------------------------------------------------------------------------------------------------------
def refused(function: Callable[[], Any], *words: str, error: type[Exception] = ConfigurationError) -> None:
    with pytest.raises(error) as told:
        function()
    assert all(word in str(told.value) for word in words), str(told.value)


@check
def summed_gradients_and_missing_axes_are_refused() -> None:
    optimizer = gj.compressed_mean("topk:ratio=0.1")
    w, x = jnp.ones((40, 40)), jnp.ones((4, 40))
    state = optimizer.init(w)
    specs = gj.state_specs(state)

    def step(cast: bool, w: Any, state: Any, x: Any) -> Any:
        at = lax.pcast(w, "data", to="varying") if cast else w
        return optimizer.update(jax.grad(lambda w: (x @ w).sum())(at), state)

    def lowered(cast: bool, **options: Any) -> Any:
        where: Any = {"mesh": MESH, "in_specs": (P(), specs, P("data")), "out_specs": (P(), specs), **options}
        given = (put(w, P()), put(state, specs), put(x, P("data")))
        return jax.jit(jax.shard_map(partial(step, cast), **where)).lower(*given)

    refused(lambda: lowered(False), "already summed", "check_vma=False", "pcast")
    lowered(True)  # with means that JAX knows to be the same everywhere
    lowered(False, check_vma=False)
    refused(lambda: optimizer.update(w, state), "axis 'data' does not exist", "shard_map")
    other = gj.compressed_mean("topk:ratio=0.1").init(w)._replace(memory=jnp.zeros((8, 40, 40)))

    def wrong(state: Any) -> Any:
        return optimizer.update(w, state)

    options: Any = {"mesh": MESH, "in_specs": (specs,), "out_specs": (P(), specs), "check_vma": False}
    other = put(other, specs)
    refused(lambda: jax.jit(jax.shard_map(wrong, **options)).lower(other), "state_specs", "4 workers", error=StateError)
    low_rank = gj.compressed_mean("powersgd:rank=2")
    state = low_rank.init(w)
    rows = gj.state_specs(state)._replace(inner=P("data"))  # of what is the same on all devices
    where: Any = {**options, "in_specs": (rows,), "out_specs": (P(), rows)}
    lowering = jax.jit(jax.shard_map(lambda state: low_rank.update(w, state), **where)).lower
    refused(lambda: lowering(put(state, rows)), "(10, 2)", "should be (40, 2)", "state_specs", error=StateError)


@check
def several_axes_are_one() -> None:
    mesh = jax.make_mesh((2, 2), ("hosts", "chips"))
    axes = ("hosts", "chips")
    optimizer = gj.compressed_mean("qsgd:bits=8,communicator=scatterreduce,memory=residual", axes)
    with jax.set_mesh(mesh):
        state = optimizer.init(jnp.zeros((40, 40)))
    assert state.memory.shape == (4, 40, 40)
    specs, given = gj.state_specs(state, axes), gradients(0, "x", (40, 40))["x"]
    step = jax.shard_map(
        lambda g, s: optimizer.update(g[0], s), mesh=mesh, in_specs=(P(axes), specs), out_specs=(P(), specs)
    )
    place = [jax.tree.map(lambda s: NamedSharding(mesh, s), spec) for spec in (P(axes), specs)]
    mean, state = jax.jit(step)(jax.device_put(given, place[0]), jax.device_put(state, place[1]))
    np.testing.assert_allclose(mean, (given - np.asarray(state.memory)).mean(axis=0), atol=1e-6)


# ---- state ----------------------------------------------------------------------------------------------------------------
@check
def orbax_saves_and_restores_it() -> None:
    import orbax.checkpoint

    methods = {**SMALL, "third": "powersgd:rank=1,min_rate=0.1"}
    run = Run(policy(methods), dict.fromkeys(methods, SHAPE))
    for step in range(5):
        run(gradients(step, methods))
    folder = Path(sys.argv[1]).resolve().parent / "checkpoint"
    with orbax.checkpoint.StandardCheckpointer() as checkpointer:
        checkpointer.save(folder, run.state)
        checkpointer.wait_until_finished()
        middle = run.state
        ends = [run(gradients(step, methods)) for step in range(5, 10)]
        like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), run.state)
        run.state = checkpointer.restore(folder, like)
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), run.state, middle))
    again = [run(gradients(step, methods)) for step in range(5, 10)]
    assert all(np.array_equal(a[name], b[name]) for a, b in zip(ends, again, strict=True) for name in methods)
    assert int(run.state.count) == 10


# What is compared with other programs' bits is compiled as users have it; all else quickly.
OPTIMIZED = (the_bits_of_the_simulator_and_the_laws, golden_bytes, golden_conversations, random_numbers_are_the_streams)


def main(file: str) -> None:
    told: dict[str, str] = {}
    for name, function in CHECKS.items():
        jax.config.update("jax_disable_most_optimizations", function not in OPTIMIZED)
        try:
            function()
            told[name] = ""
        except Exception:
            told[name] = traceback.format_exc()
    Path(file).write_text(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1])
