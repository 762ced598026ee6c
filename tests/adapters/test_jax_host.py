"""JAX's host door in real processes: two launches of two workers make all cases of :mod:`jax_cases`; each is a test here."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import grace.jax as gj
import grace.jax.buffers
import grace.jax.calls
from grace.errors import ConfigurationError, InputError
from grace.transports.alone import Alone
from tests.distributed.processes import fork, free_port, run_script

pytestmark = pytest.mark.xdist_group("toolkits")
SCRIPT = Path(__file__).with_name("jax_cases.py")
GLOO = [
    *(
        f"bits of {method}"
        for method in ("topk:ratio=0.05", "qsgd:bits=4", "powersgd:rank=2", "thc", "sidco:ratio=0.05")
    ),
    "scan_while_and_cond",
    "a_learning_rate_that_memories_follow",
    "training_with_donated_arguments_reaches_what_none_reaches",
    "auto_chooses_under_jit",
    "dtypes_and_shapes",
    "inf_on_one_rank_is_seen_by_all_and_changes_no_memory",
    "an_error_for_numbers_that_are_not_finite_lets_the_next_step_go_on",
    "multi_steps_around_the_exchange_is_an_error_on_all",
    "another_structure_is_an_error_on_all",
    "ranks_that_differ_say_so",
    "parameters_are_broadcast",
    "a_checkpoint_is_saved_after_five_of_ten_steps",
    "half_a_checkpoint_is_refused",
    "a_worker_that_is_killed",
]
JAX_DISTRIBUTED = [
    "bits of topk:ratio=0.05",
    "new_processes_go_on_with_the_same_bits",
    "shard_map_with_one_device_of_each_process",
    "global_arrays_in_plain_jit_end_with_the_cause",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("jax")


@pytest.fixture(scope="module")
def over_gloo(folder: Path) -> list[str]:
    return run("gloo", folder)


@pytest.fixture(scope="module")
def over_jax_distributed(folder: Path, over_gloo: list[str]) -> list[str]:
    address = f"127.0.0.1:{free_port()}"  # only JAX knows of these two
    return run("jax.distributed", folder, *({"PLACE": str(rank), "ADDRESS": address} for rank in range(2)))


def run(kind: str, folder: Path, *places: dict[str, str]) -> list[str]:
    """Output of two workers, each in a process with a place of its own, or under torchrun's variables."""
    quick = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}  # the sums are torch's, and to compile takes longest
    env = tuple({**place, **quick} for place in places or ({}, {}))
    ended = fork(SCRIPT, kind, str(folder), workers=2, env=env, torchrun=not places)
    return [output for _, output in ended]


def check(outputs: list[str], case: str) -> None:
    for rank, output in enumerate(outputs):
        assert f"ok {case}\n" in output, f"rank {rank}:\n{output}"


@pytest.mark.parametrize("case", GLOO)
def test_over_gloo(over_gloo: list[str], case: str) -> None:
    check(over_gloo, case)


@pytest.mark.parametrize("case", JAX_DISTRIBUTED)
def test_over_jax_distributed(over_jax_distributed: list[str], case: str) -> None:
    check(over_jax_distributed, case)


# ---- in this process ------------------------------------------------------------------------------------------------------
def is_ordered() -> bool:
    """True if jit neither moves nor repeats the callback: JAX refuses to vmap such a callback only."""
    params = {"w": jnp.ones((2, 2))}
    mean, handle = gj.compressed_mean_on_host("none", params, transport=Alone())
    effects = {str(effect) for effect in jax.make_jaxpr(mean.update)(params, mean.init(params)).effects}
    refused = False
    try:
        jax.eval_shape(jax.vmap(lambda w: mean.update({"w": w}, mean.init(params))), jnp.ones((3, 2, 2)))
    except ValueError:  # Cannot `vmap` ordered IO callback
        refused = True
    handle.close()
    return refused and any("Ordered" in effect for effect in effects)


def test_callbacks_are_ordered_and_a_mutant_without_it_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_ordered()
    real: Any = grace.jax.calls.io_callback
    monkeypatch.setattr(grace.jax.calls, "can_lend", lambda: False)
    assert is_ordered()
    monkeypatch.setattr(grace.jax.calls, "io_callback", lambda *args, ordered: real(*args, ordered=False))
    assert not is_ordered()


def test_a_gradient_that_the_program_no_longer_needs_is_averaged_where_it_is() -> None:
    seen = []

    def double(tensors: Any) -> Any:
        seen.append(tensors[0].data_ptr())
        return [x.mul_(2) for x in tensors]

    x = jnp.arange(1000.0)
    place = x.unsafe_buffer_pointer()
    means = jax.jit(lambda x: gj.call_host(double, [x])[0], donate_argnums=0)(x)
    assert seen == [place] == [means.unsafe_buffer_pointer()]
    assert np.array_equal(means, 2 * np.arange(1000.0))


@pytest.mark.parametrize("lends", [True, False])
def test_what_the_program_still_needs_is_not_written(lends: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grace.jax.calls, "can_lend", lambda: lends)

    def swap(tensors: Any) -> Any:
        return [tensors[1], tensors[0], *tensors[2:]]

    @jax.jit
    def program(x: Any, y: Any) -> Any:
        others = [jnp.zeros((0, 3)), (x > 1), jnp.bfloat16(3) * x.astype(jnp.bfloat16)]
        return gj.call_host(swap, [x, y, *others]), x, y

    x, y = jnp.arange(6.0).reshape(2, 3), jnp.ones((2, 3))
    (b, a, empty, mask, low), x_after, y_after = program(x, y)
    for got, want in ((a, x), (b, y), (x_after, x), (y_after, y), (mask, x > 1), (low, 3 * x)):
        assert np.array_equal(got, want)
    assert empty.shape == (0, 3)


def test_a_lent_tensor_that_is_kept_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grace.jax.buffers, "_RELEASE_SECONDS", 0.05)
    kept: list[Any] = []
    keep: Any = lambda tensors: kept.append(tensors[0][:1]) or tensors  # noqa: E731
    for exchange, problem in (
        (keep, "has kept a tensor"),
        (lambda xs: [xs[0][:1]], r"\(1,\), and the array .* \(3,\)"),
    ):
        with pytest.raises(jax.errors.JaxRuntimeError, match=problem):
            jax.block_until_ready(jax.jit(lambda x, e=exchange: gj.call_host(e, [x]))(jnp.ones(3)))
    call = jax.ffi.ffi_call(grace.jax.buffers.TARGET, grace.jax.calls._TICKET, input_output_aliases={0: 0})
    with pytest.raises(jax.errors.JaxRuntimeError, match="was not announced"):
        jax.block_until_ready(jax.jit(call)(jnp.int32(0)))


def test_a_step_on_broadcast_parameters_is_compiled_once() -> None:
    params = gj.broadcast_params({"w": jnp.ones((4, 4))}, transport=Alone())
    mean, handle = gj.compressed_mean_on_host("none", params, transport=Alone())
    optimizer = optax.chain(mean, optax.sgd(0.1, momentum=0.9))

    @jax.jit
    def step(params: Any, state: Any) -> Any:
        updates, state = optimizer.update(params, state, params)
        return optax.apply_updates(params, updates), state

    state = optimizer.init(params)
    for _ in range(3):
        params, state = step(params, state)
    assert step._cache_size() == 1  # for parameters that are committed, beside a state that is not, it is 2
    handle.close()


def test_broadcast_parameters_stay_on_the_device_that_they_are_committed_to() -> None:
    device = jax.devices()[0]
    params = {"here": jax.device_put(jnp.ones(2), device), "anywhere": jnp.ones(2)}
    got = gj.broadcast_params(params, transport=Alone())
    assert got["here"].committed
    assert got["here"].sharding == params["here"].sharding
    assert not got["anywhere"].committed


def test_names_are_key_paths_and_a_policy_picks_by_them() -> None:
    params = {"layers": [{"kernel": jnp.ones((64, 64))}, {"kernel": jnp.ones((64, 64))}], "head": (jnp.ones(3),)}
    _, handle = gj.compressed_mean_on_host("topk:ratio=0.1", params, transport=Alone())
    assert handle.names == ["head/0", "layers/0/kernel", "layers/1/kernel"]
    handle.close()


def test_bad_trees_are_refused_by_name() -> None:
    with pytest.raises(InputError, match="'n' is int32; 'z' is complex64"):
        gj.compressed_mean_on_host("none", {"n": jnp.int32(1), "z": jnp.complex64(1)}, transport=Alone())
    with pytest.raises(InputError, match="two leaves of the tree are called 'a/b'"):
        gj.compressed_mean_on_host("none", {"a": {"b": jnp.ones(1)}, "a/b": jnp.ones(1)}, transport=Alone())
    with pytest.raises(ConfigurationError, match="nothing to exchange"):
        gj.compressed_mean_on_host("none", {"a": None}, transport=Alone())


def test_shard_map_over_more_devices_than_processes_is_refused() -> None:
    params = {"w": jax.ShapeDtypeStruct((2, 2), jnp.float32)}
    mean, _ = gj.compressed_mean_on_host("none", params, transport=Alone())
    spec = jax.sharding.PartitionSpec
    mesh = jax.sharding.AbstractMesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    state = gj.CompressedMeanState(jnp.int32(0))
    step = jax.shard_map(functools.partial(mean.update, state=state), mesh=mesh, in_specs=spec(), out_specs=spec())
    with pytest.raises(ConfigurationError, match="over 2 devices, and 1 processes exchange"):
        jax.eval_shape(step, params)


def test_a_missing_package_says_how_to_install_it(tmp_path: Path) -> None:
    code = """
import sys
import grace
for name in ("jax", "optax"):
    sys.modules[name] = None
    try:
        import grace.jax
    except grace.errors.ConfigurationError as error:
        print(error)
    del sys.modules[name]
"""
    (tmp_path / "missing.py").write_text(code)
    output = run_script(tmp_path / "missing.py")
    for name in ("jax", "optax"):
        assert f"grace.jax needs {name}, which is not installed: pip install 'grace-dl[jax]'" in output
