"""Cases of JAX's host door, which each of two workers runs.

Run by :mod:`test_jax_host`, as ``python jax_cases.py KIND FOLDER [CASE ...]``;
prints ``ok NAME`` for each case that passed, and what went wrong in others.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
import torch
import torch.distributed as dist

import grace
import grace.jax as gj
from grace.errors import ConfigurationError, FingerprintMismatch, InputError, NonFiniteError, StateError, TransportError
from grace.state import flat
from grace.transports.torch_distributed import TorchDistributed
from tests.patience import PATIENCE

torch.set_num_threads(1)
SHAPES = {"bias": (64,), "conv": (3, 3, 16, 32), "dense": (96, 64)}
LIKE = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in SHAPES.items()}
KIND, FOLDER, ONLY = sys.argv[1], Path(sys.argv[2]), sys.argv[3:]


def gradients(rank: int, step: int) -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng([rank, step])
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}


def simulated(method: str, steps: int, lr: list[float] | None = None) -> list[dict[str, torch.Tensor]]:
    """The simulator's means of the same gradients, as the matrices that are exchanged."""
    sim = grace.Simulator(method, world=2)
    means = []
    for step in range(steps):
        ranks = [gradients(rank, step) for rank in range(2)]
        xs = {
            name: [torch.from_numpy(g[name]).reshape(s if len(s) < 3 else (-1, s[-1])) for g in ranks]
            for name, s in SHAPES.items()
        }
        means.append(sim.step(xs, lr=None if lr is None else lr[step]))
    return means


def same_bits(got: Any, want: dict[str, torch.Tensor]) -> None:
    for name, x in want.items():
        np.testing.assert_array_equal(
            np.asarray(got[name]).reshape(x.shape).view(np.uint32), x.numpy().view(np.uint32), name
        )


def method_gives_the_simulators_bits(method: str) -> Callable[[int], None]:
    def case(rank: int) -> None:
        mean, handle = gj.compressed_mean_on_host(method, LIKE)
        state, update = mean.init(LIKE), jax.jit(mean.update)
        for step, want in enumerate(simulated(method, 10)):
            got, state = update(gradients(rank, step), state)
            same_bits(got, want)
        assert int(state.count) == handle.count == handle.stats.steps == 10
        assert handle.rank == rank
        handle.close()

    return case


def scan_while_and_cond(rank: int) -> None:
    mean, handle = gj.compressed_mean_on_host("topk:ratio=0.05", LIKE)
    stacked = jax.tree.map(lambda *xs: jnp.stack(xs), *[gradients(rank, step) for step in range(4)])

    @jax.jit
    def run(state: Any, stacked: Any) -> Any:
        def body(state: Any, g: Any) -> Any:
            out, state = mean.update(g, state)
            return state, out

        state, outs = jax.lax.scan(body, state, stacked)
        take = lambda i: jax.tree.map(lambda x: x[i], stacked)  # noqa: E731

        def loop(carry: Any) -> Any:
            i, state, _ = carry
            out, state = jax.lax.cond(i >= 0, lambda: mean.update(take(i), state), lambda: (take(0), state))
            return i + 1, state, out

        _, state, last = jax.lax.while_loop(lambda c: c[0] < 3, loop, (1, state, take(0)))
        return state, outs, last

    state, outs, last = run(mean.init(LIKE), stacked)
    sim = simulated("topk:ratio=0.05", 4)
    for step in range(4):
        same_bits(jax.tree.map(lambda x, step=step: x[step], outs), sim[step])
    assert int(state.count) == handle.stats.steps == 6
    assert np.isfinite(np.asarray(last["dense"])).all()
    handle.close()


def a_learning_rate_that_memories_follow(rank: int) -> None:
    method = "topk:ratio=0.05,follow_lr=true"
    schedule = optax.linear_schedule(1.0, 0.25, 4)
    mean, handle = gj.compressed_mean_on_host(method, LIKE, learning_rate=schedule)
    state, update = mean.init(LIKE), jax.jit(mean.update)
    lr = [float(schedule(step)) for step in range(4)]
    for step, want in enumerate(simulated(method, 4, lr)):
        got, state = update(gradients(rank, step), state)
        same_bits(got, want)
    handle.close()


def training_with_donated_arguments_reaches_what_none_reaches(rank: int) -> None:
    def train(method: str) -> tuple[float, Any]:
        keys = jax.random.split(jax.random.key(7), 3)
        params = {
            "a": jax.random.normal(keys[0], (32, 128)) * 0.2 + rank,
            "out": jax.random.normal(keys[1], (128, 4)) * 0.1,
        }
        params = gj.broadcast_params(params)
        x = jax.random.normal(jax.random.key(rank), (512, 32))
        y = (x @ jax.random.normal(keys[2], (32, 4))).argmax(1)
        mean, handle = gj.compressed_mean_on_host(grace.Policy([("*", method)]), params)
        optimizer = optax.chain(mean, optax.clip_by_global_norm(1.0), optax.sgd(0.2, momentum=0.9))

        def loss(p: Any, x: Any, y: Any) -> Any:
            return optax.softmax_cross_entropy_with_integer_labels(jax.nn.relu(x @ p["a"]) @ p["out"], y).mean()

        def step(carry: Any, i: Any) -> Any:
            p, s = carry
            at = (i * 64) % 512
            g = jax.grad(loss)(p, jax.lax.dynamic_slice_in_dim(x, at, 64), jax.lax.dynamic_slice_in_dim(y, at, 64))
            u, s = optimizer.update(g, s, p)
            return (optax.apply_updates(p, u), s), None

        @jax.jit
        def accuracy(p: Any) -> Any:
            return ((jax.nn.relu(x @ p["a"]) @ p["out"]).argmax(1) == y).mean()

        steps = jax.jit(lambda p, s, n: jax.lax.scan(step, (p, s), n * 40 + jnp.arange(40))[0], donate_argnums=(0, 1))
        state = optimizer.init(params)
        for n in range(5):
            params, state = steps(params, state, n)
        reached = float(accuracy(params))
        assert handle.stats.steps == 200
        everyone = gj.broadcast_params(params)
        assert all(jax.tree.leaves(jax.tree.map(lambda a, b: bool((a == b).all()), params, everyone)))
        handle.close()
        return reached, handle

    plain, _ = train("none")
    compressed, handle = train("topk:ratio=0.01")
    assert plain > 0.9, plain
    assert compressed > plain - 0.02, (compressed, plain)
    assert handle.stats.ratio > 20, handle.stats.ratio


def auto_chooses_under_jit(rank: int) -> None:
    params = {name: jnp.zeros(shape) for name, shape in SHAPES.items()}
    mean, handle = gj.compressed_mean_on_host("auto:methods=(qsgd:bits=4)", params)
    step, state = jax.jit(mean.update), mean.init(params)
    for i in range(10):
        means, state = step(gradients(rank, i), state)
    jax.block_until_ready(means)
    assert handle.count == 10
    assert "a step takes" in str(handle.explain())
    told = handle._session.network.all_gather_text(str({k: float(x.sum()) for k, x in means.items()}), seconds=PATIENCE)
    assert len(set(told)) == 1, told
    handle.load_state_dict(handle.state_dict())
    assert handle.count == 10
    handle.close()


def dtypes_and_shapes(rank: int) -> None:
    mixed = {
        "half": jnp.full((40, 40), 1.0 + rank, jnp.float16),
        "brain": [jnp.full((40, 40), 1.0 + rank, jnp.bfloat16), None],
        "number": jnp.float32(rank),
        "empty": None,
    }
    mean, handle = gj.compressed_mean_on_host("none", mixed)
    got, _ = jax.jit(mean.update)(mixed, mean.init(mixed))
    assert jax.tree.structure(got) == jax.tree.structure(mixed)
    assert [str(x.dtype) for x in jax.tree.leaves(got)] == ["bfloat16", "float16", "float32"]
    assert (got["brain"][0] == 1.5).all()
    assert (got["half"] == 1.5).all()
    assert float(got["number"]) == 0.5
    handle.close()
    with jax.enable_x64(True):
        wide = {"w": jnp.full((4, 4), 1.0 + rank, jnp.float64)}
        mean, handle = gj.compressed_mean_on_host("none", wide)
        got, _ = jax.jit(mean.update)(wide, mean.init(wide))
        assert got["w"].dtype == jnp.float64
        assert (got["w"] == 1.5).all()
        handle.close()
    with pytest.raises(InputError, match=r"'steps' is int32.*None in their place"):
        gj.compressed_mean_on_host("none", {"w": jnp.ones(2), "steps": jnp.int32(3)})


def memories(handle: gj.Handle) -> dict[str, bytes]:
    return {name: x.tobytes() for name, x in flat(handle.state_dict()).items() if name.startswith("states/")}


def inf_on_one_rank_is_seen_by_all_and_changes_no_memory(rank: int) -> None:
    params = {"w": jnp.ones((64, 64))}
    mean, handle = gj.compressed_mean_on_host("topk:ratio=0.05", params)
    optimizer = optax.chain(mean, optax.apply_if_finite(optax.sgd(0.1, momentum=0.9), 5))
    state, update = optimizer.init(params), jax.jit(optimizer.update)
    for step in range(4):
        g = {"w": jnp.asarray(np.random.default_rng([rank, step]).normal(size=(64, 64)).astype(np.float32))}
        if step == 2:
            g = {"w": g["w"].at[3, 3].set(jnp.where(rank == 1, jnp.inf, 1.0))}
        before = memories(handle)
        u, state = update(g, state)
        jax.block_until_ready(u)
        assert bool(u["w"].any()) == (step != 2), step
        assert (memories(handle) == before) == (step == 2), step
    assert int(state[1].total_notfinite) == 1
    assert handle.stats.steps == 4
    assert handle.stats.nonfinite == 1
    wrong = optax.apply_if_finite(optimizer, 5)
    with pytest.raises(ConfigurationError, match="apply_if_finite is around the exchange"):
        jax.jit(wrong.update)(params, wrong.init(params), params)


def an_error_for_numbers_that_are_not_finite_lets_the_next_step_go_on(rank: int) -> None:
    params = {"w": jnp.ones((8, 8))}
    mean, handle = gj.compressed_mean_on_host("none", params, nonfinite="error")
    state, update = mean.init(params), jax.jit(mean.update)
    with pytest.raises(jax.errors.JaxRuntimeError, match="NonFiniteError"):
        jax.block_until_ready(update({"w": params["w"] * (jnp.nan if rank else 1.0)}, state))
    assert handle.error is None
    got, state = update(params, state)
    assert (got["w"] == 1).all()
    assert int(state.count) == handle.count == 1
    assert isinstance(NonFiniteError("", []), ArithmeticError)
    handle.close()


def multi_steps_around_the_exchange_is_an_error_on_all(rank: int) -> None:
    params = {"w": jnp.ones((8, 8))}
    mean, handle = gj.compressed_mean_on_host("none", params)
    wrong = optax.MultiSteps(optax.chain(mean, optax.sgd(0.1)), 2)
    state, update = wrong.init(params), jax.jit(wrong.update)
    _, state = update(params, state, params)
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"optax\.MultiSteps goes around what follows"):
        jax.block_until_ready(update(params, state, params))
    assert isinstance(handle.error, StateError)
    with pytest.raises(StateError):
        mean.update(params, mean.init(params))  # every later step says so, too


def another_structure_is_an_error_on_all(rank: int) -> None:
    params = {"w": jnp.ones((8, 8)), "b": jnp.ones(8)}
    mean, handle = gj.compressed_mean_on_host("none", params)
    update = jax.jit(mean.update)
    _, state = update(params, mean.init(params))
    jax.block_until_ready(state)
    start = time.monotonic()
    if rank == 1:
        with pytest.raises(InputError, match="'b' is missing; 'w' is float32 \\(8, 4\\), and was float32 \\(8, 8\\)"):
            update({"w": jnp.ones((8, 4)), "b": None}, state)
    else:
        with pytest.raises(jax.errors.JaxRuntimeError, match="TransportError"):
            jax.block_until_ready(update(params, state))
        assert isinstance(handle.error, TransportError)
    assert time.monotonic() - start < PATIENCE / 2


def ranks_that_differ_say_so(rank: int) -> None:
    params = {"w": jnp.ones((64, 64))}
    with pytest.raises(FingerprintMismatch, match="topk"):
        gj.compressed_mean_on_host("topk:ratio=0.01" if rank else "qsgd:bits=4", params)
    with pytest.raises(FingerprintMismatch, match="parameter w"):
        gj.compressed_mean_on_host("none", {"w": jnp.ones((64, 64 + rank))})
    with pytest.raises(FingerprintMismatch, match="leaf w"):
        gj.broadcast_params({"w": jnp.ones(4 + rank)})


def parameters_are_broadcast(rank: int) -> None:
    own = {"w": jnp.full((3, 2), rank, jnp.bfloat16), "n": jnp.int32(rank), "on": jnp.array(rank == 1), "none": None}
    got = gj.broadcast_params(own, root=1)
    assert (got["w"] == 1).all()
    assert got["w"].dtype == jnp.bfloat16
    assert int(got["n"]) == 1
    assert bool(got["on"])
    with pytest.raises(InputError, match="random key"):
        gj.broadcast_params({"key": jax.random.key(0)})


# ---- states -----------------------------------------------------------------------------------------------------------
METHOD = "qsgd:bits=4,memory=residual"


def five_steps(params: Any, state: Any, optimizer: Any, rank: int, start: int) -> Any:
    @jax.jit
    def step(p: Any, s: Any, g: Any) -> Any:
        u, s = optimizer.update(g, s, p)
        return optax.apply_updates(p, u), s

    for i in range(start, start + 5):
        params, state = step(params, state, gradients(rank, i))
    return params, state


def begin() -> Any:
    params = {name: jnp.zeros(shape) for name, shape in SHAPES.items()}
    mean, handle = gj.compressed_mean_on_host(METHOD, params)
    optimizer = optax.chain(mean, optax.adam(1e-2))
    return params, optimizer.init(params), optimizer, handle


def a_checkpoint_is_saved_after_five_of_ten_steps(rank: int) -> None:
    params, state, optimizer, handle = begin()
    params, state = five_steps(params, state, optimizer, rank, 0)
    gj.save_memories(FOLDER / "memories", handle)
    if rank == 0:
        with ocp.PyTreeCheckpointer() as checkpointer:
            checkpointer.save(FOLDER / "model", {"params": params, "state": state})
    params, state = five_steps(params, state, optimizer, rank, 5)
    np.savez(FOLDER / f"ten-{rank}.npz", *jax.tree.leaves(params))
    handle.close()


def new_processes_go_on_with_the_same_bits(rank: int) -> None:
    params, state, optimizer, handle = begin()
    like = jax.tree.map(lambda x: ocp.RestoreArgs(restore_type=np.ndarray), {"params": params, "state": state})
    with ocp.PyTreeCheckpointer() as checkpointer:
        there = checkpointer.restore(FOLDER / "model", item={"params": params, "state": state}, restore_args=like)
    params, state = jax.tree.map(jnp.asarray, (there["params"], there["state"]))
    gj.restore_memories(FOLDER / "memories", handle)
    assert handle.count == 5
    params, _ = five_steps(params, state, optimizer, rank, 5)
    with np.load(FOLDER / f"ten-{rank}.npz") as ten:
        for own, want in zip(jax.tree.leaves(params), ten.values(), strict=True):
            np.testing.assert_array_equal(np.asarray(own).view(np.uint32), want.view(np.uint32))
    handle.close()


def half_a_checkpoint_is_refused(rank: int) -> None:
    params, state, optimizer, handle = begin()
    with pytest.raises(StateError, match="is not a checkpoint of memories" if rank == 0 else "rank 0 cannot load"):
        gj.restore_memories(FOLDER / ("nowhere" if rank == 0 else "memories"), handle)
    forgotten = (gj.CompressedMeanState(jnp.int32(5)), *state[1:])
    with pytest.raises(jax.errors.JaxRuntimeError, match="restored without them"):
        jax.block_until_ready(jax.jit(optimizer.update)(gradients(rank, 5), forgotten, params))


# ---- jax.distributed -----------------------------------------------------------------------------------------------------
def mesh() -> Any:
    return jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))


def whole(x: Any, spec: Any) -> Any:
    sharding = jax.sharding.NamedSharding(mesh(), spec)
    return jax.make_array_from_process_local_data(sharding, np.asarray(x))


def shard_map_with_one_device_of_each_process(rank: int) -> None:
    spec = jax.sharding.PartitionSpec
    params = {"w": whole(np.ones((8, 8), np.float32), spec())}
    x = whole(np.full((1, 8), 1.0 + rank, np.float32), spec("data"))

    def loss(p: Any, x: Any) -> Any:
        return (x @ p["w"]).sum()

    def run(takes: Callable[[Any], Any], **options: Any) -> tuple[Any, Any]:
        mean, handle = gj.compressed_mean_on_host("none", params)
        optimizer = optax.chain(mean, optax.scale(1.0))

        def step(p: Any, s: Any, x: Any) -> Any:
            return optimizer.update(jax.grad(loss)(takes(p), x), s, p)[0]

        specs = {"in_specs": (spec(), spec(), spec("data")), "out_specs": spec()}
        out = jax.jit(jax.shard_map(step, mesh=mesh(), **specs, **options))(params, optimizer.init(params), x)
        return np.asarray(out["w"].addressable_shards[0].data), handle

    got, _ = run(lambda p: p, check_vma=False)
    assert (got == 1.5).all(), got
    got, _ = run(lambda p: jax.lax.pcast(p, "data", to="varying"))
    assert (got == 1.5).all(), got
    with pytest.raises(ConfigurationError, match="has summed them over it already"):
        run(lambda p: p)
    mean, _ = gj.compressed_mean_on_host("none", params)
    with pytest.raises(ConfigurationError, match="global arrays, and update is not in a shard_map"):
        jax.jit(mean.update)(params, mean.init(params))


def global_arrays_in_plain_jit_end_with_the_cause(rank: int) -> None:
    network = TorchDistributed(dist.new_group(timeout=datetime.timedelta(seconds=4)))
    mean, handle = gj.compressed_mean_on_host("none", {"w": jax.ShapeDtypeStruct((4,), jnp.float32)}, transport=network)
    x = whole(np.ones(4, np.float32), jax.sharding.PartitionSpec())
    count = whole(np.int32(0), jax.sharding.PartitionSpec())
    update = functools.partial(jax.jit(mean.update), {"w": x}, gj.CompressedMeanState(count))
    seen = FOLDER / "seen"
    # In a thread, since XLA's own all-reduce of the result may wait for ever: JAX's error comes no earlier than that one ends.
    threading.Thread(target=quietly, args=(update,), daemon=True).start()
    if rank == 0:
        # the exchange ends with an error first, which the handle then explains, in the callback's thread
        wait_until(lambda: "runs on process 0 only" in str(handle.error), "an error of the handle that says why")
        assert isinstance(handle.error, TransportError)
        seen.touch()
    else:
        wait_until(seen.exists, "rank 0's error")
        assert handle.count == 0
        assert handle.error is None  # it was never called


def quietly(call: Callable[[], object]) -> None:
    with contextlib.suppress(jax.errors.JaxRuntimeError):
        call()


def wait_until(holds: Callable[[], object], what: str) -> None:
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        if holds():
            return
        time.sleep(0.1)
    raise TimeoutError(what)


# ---- a worker that dies ------------------------------------------------------------------------------------------------
def a_worker_that_is_killed(rank: int) -> None:
    params = {"w": jnp.ones((64, 64))}
    mean, handle = gj.compressed_mean_on_host("topk", params)
    update = jax.jit(mean.update)
    _, state = update(params, mean.init(params))
    jax.block_until_ready(state)
    if rank == 1:
        sys.stdout.write("ok a_worker_that_is_killed\n")
        sys.stdout.flush()
        os._exit(9)
    with pytest.raises(jax.errors.JaxRuntimeError, match="A worker has died"):
        jax.block_until_ready(update(params, state))
    assert isinstance(handle.error, TransportError)


METHODS = ("topk:ratio=0.05", "qsgd:bits=4", "powersgd:rank=2", "thc", "sidco:ratio=0.05")
BITS = {f"bits of {method}": method_gives_the_simulators_bits(method) for method in METHODS}
CASES: dict[str, dict[str, Callable[[int], None]]] = {
    "gloo": {
        **BITS,
        **{
            case.__name__: case
            for case in (
                scan_while_and_cond,
                a_learning_rate_that_memories_follow,
                training_with_donated_arguments_reaches_what_none_reaches,
                auto_chooses_under_jit,
                dtypes_and_shapes,
                inf_on_one_rank_is_seen_by_all_and_changes_no_memory,
                an_error_for_numbers_that_are_not_finite_lets_the_next_step_go_on,
                multi_steps_around_the_exchange_is_an_error_on_all,
                another_structure_is_an_error_on_all,
                ranks_that_differ_say_so,
                parameters_are_broadcast,
                a_checkpoint_is_saved_after_five_of_ten_steps,
                half_a_checkpoint_is_refused,
                a_worker_that_is_killed,
            )
        },
    },
    "jax.distributed": {
        **{name: BITS[name] for name in ("bits of topk:ratio=0.05",)},
        **{
            case.__name__: case
            for case in (
                new_processes_go_on_with_the_same_bits,
                shard_map_with_one_device_of_each_process,
                global_arrays_in_plain_jit_end_with_the_cause,
            )
        },
    },
}


def main() -> None:
    if KIND == "jax.distributed":
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        rank, address = int(os.environ["PLACE"]), os.environ["ADDRESS"]
        jax.distributed.initialize(address, num_processes=2, process_id=rank)
    network = grace.transport("auto")
    rank = network.rank
    assert network.world == 2, network
    for name, case in CASES[KIND].items():
        if ONLY and name not in ONLY:
            continue
        network.all_gather_text(name, seconds=PATIENCE)  # a case that fails on one worker leaves the other behind
        try:
            case(rank)
        except BaseException:
            sys.stdout.write(f"FAILED {name} on rank {rank}\n{traceback.format_exc()}\n")
            sys.stdout.flush()
            os._exit(1)
        sys.stdout.write(f"ok {name}\n")
        sys.stdout.flush()
    os._exit(0)  # what ends badly at exit, a lost worker's tokens, is no part of this


if __name__ == "__main__":
    main()
