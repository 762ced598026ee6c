"""compressed_mean inside XLA, on four emulated devices: one process runs all checks of ``jax_xla_cases.py``."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import grace.jax as gj
from grace import Policy, Rule
from grace.errors import ConfigurationError, InputError
from tests.distributed.processes import fork, free_port
from tests.docs.pages import script

pytestmark = [pytest.mark.xdist_group("toolkits")]
ROOT = Path(__file__).parents[2]
CASES = Path(__file__).with_name("jax_xla_cases.py")
PAGE = Path(__file__).parents[2] / "docs/concepts/jax.md"
NAMES = [
    node.name
    for node in ast.parse(CASES.read_text()).body
    if isinstance(node, ast.FunctionDef)
    and any(isinstance(decorator, ast.Name) and decorator.id == "check" for decorator in node.decorator_list)
]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Faults that each check reports; empty if all is well."""
    file = tmp_path_factory.mktemp("xla") / "told.json"
    ((status, output),) = fork(CASES, str(file), workers=1, cwd=ROOT)
    assert status == 0, output[-4000:]
    faults: dict[str, str] = json.loads(file.read_text())
    return faults


@pytest.mark.parametrize("name", NAMES)
def test_on_four_devices(told: dict[str, str], name: str) -> None:
    assert told[name] == "", told[name]


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("sidco:ratio=0.1", "compressed_mean_on_host"),
        ("signum", "powersgd"),
        ("topk:index=rice", "elias-fano"),
        ("qsgd:norm=l2", "linf"),
        ("qsgd:bits=12", "127 levels"),
        ("topk:ratio=0.1,memory=ef21", "memory=residual"),
        ("topk:follow_lr=true", "follow_lr"),
        ("topk:ratio=0.1,communicator=parameterserver", "scatterreduce"),
        ("qsgd:communicator=scatterreduce,server_memory=true", "server memory"),
        ("topk:ratio=0.1,start=100", "do not change with the step"),
        ("powersgd:start_step=5", "start_step=0"),
        ("blockrandomk:mode=clt", "cyclic"),
        (Policy([Rule("*", "none", until_step=5), Rule("*", "topk")]), "changes with the step"),
    ],
)
def test_what_xla_does_not_have_is_refused_at_once(method: str | Policy, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        gj.compressed_mean(method)


def test_no_error_can_be_raised_inside_xla() -> None:
    with pytest.raises(ConfigurationError, match="propagate"):
        gj.compressed_mean("topk", nonfinite="error")  # type: ignore[arg-type]


LEAVES = {"kernel": jax.ShapeDtypeStruct((64, 64), "float32"), "bias": jax.ShapeDtypeStruct((64,), "bfloat16")}
FLAG, BIAS = 4, 128  # bytes of the one flag, and of the bias, which goes as it is


@pytest.mark.parametrize(
    ("method", "bytes_by_hand"),
    [
        ("none", [(1.5, 64 * 64 * 4), (1.5, BIAS)]),  # sums: a ring of 4 sends 2 * 3/4 of their bytes
        ("bf16", [(1.5, 64 * 64 * 2), (1.5, BIAS), (1.5, 2 * FLAG)]),
        ("fp8:block=128", [(3, 64 * 64 + 32 * 4), (1.5, BIAS), (1.5, FLAG)]),  # a gather: to three others
        ("qsgd:bits=4,bucket=512,communicator=scatterreduce", [(3, 2 * (1024 // 2 + 2 * 4)), (1.5, BIAS), (1.5, FLAG)]),
        ("powersgd:rank=2", [(1.5, 2 * 64 * 4), (1.5, 2 * 64 * 4), (1.5, BIAS), (1.5, FLAG)]),
    ],
)
def test_the_bytes_of_a_step_are_those_counted_by_hand(method: str, bytes_by_hand: list[tuple[float, int]]) -> None:
    counted = gj.step_bytes(method, LEAVES, 4)
    assert counted.sent == sum(times * size for times, size in bytes_by_hand)
    assert counted.dense == 1.5 * (64 * 64 * 4 + BIAS)
    assert counted.ratio == counted.dense / counted.sent


def test_one_worker_sends_nothing() -> None:
    assert gj.step_bytes("topk", LEAVES, 1) == (0, 0)
    assert gj.step_bytes("topk", LEAVES, 1).ratio == float("inf")


def test_bytes_are_counted_of_workers_and_gradients_only() -> None:
    with pytest.raises(ConfigurationError, match="workers"):
        gj.step_bytes("topk", LEAVES, 0)
    with pytest.raises(InputError, match="int32"):
        gj.step_bytes("topk", {"count": jax.ShapeDtypeStruct((3,), "int32")}, 4)


def test_what_a_mesh_cannot_take_is_refused_by_name() -> None:
    mesh = jax.make_mesh((1,), ("data",))
    with pytest.raises(ConfigurationError, match="no axis 'rows'; legal: 'data'"):
        gj.shard({"x": np.zeros(4)}, mesh, PartitionSpec("rows"))
    with pytest.raises(ConfigurationError, match="specs are of another tree"):
        gj.shard({"x": np.zeros(4)}, mesh, {"y": PartitionSpec()})


START = """
import os, sys
import jax
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(f"127.0.0.1:{sys.argv[1]}", num_processes=2, process_id=int(os.environ["RANK"]))
"""
END = """
whole = jax.tree.leaves(state.params)
print("bits", [np.asarray(x.addressable_shards[0].data).tobytes().hex()[:64] for x in whole])
jax.distributed.shutdown()
"""


def test_the_page_runs_in_two_processes_of_two_devices_each(tmp_path: Path) -> None:
    (tmp_path / "page.py").write_text(START + script(PAGE, "\n## Inside XLA\n") + END)
    quick = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1", "JAX_NUM_CPU_DEVICES": "2"}
    ended = fork(tmp_path / "page.py", str(free_port()), workers=2, env=(quick, quick))
    assert [status for status, _ in ended] == [0, 0], ended
    bits = [next(line for line in output.splitlines() if line.startswith("bits")) for _, output in ended]
    assert bits[0] == bits[1]
