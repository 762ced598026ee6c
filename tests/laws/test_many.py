"""Tensors of a bucket by few launches: the bytes, means and memories of exchanges one by one, and nobody asks the host.

Triton's interpreter, and tensors on the CPU, stand in for an accelerator.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from typing import Any

import pytest
import torch
from torch import Tensor

triton = pytest.importorskip("triton", reason="needs the package triton")
tl = pytest.importorskip("triton.language")

from grace.communicators.many import agree
from grace.compute import backends
from grace.compute.dispatch import NoTable
from grace.contract.compressor import Compressor
from grace.errors import ConfigurationError
from grace.flags.capturing import pretend_capturing
from grace.flags.finite import cpu_as_accelerator
from grace.kernels.tensor_list import SIDES, TensorList
from grace.kernels.tensor_list.triton import encoder_at, key_of, numbers_of
from grace.methods.drive import DRIVE
from grace.methods.fp8 import FP8
from grace.methods.lpc import LPC
from grace.methods.natural import Natural
from grace.methods.onebit import OneBit
from grace.methods.qsgd import QSGD
from grace.methods.signsgd import SignSGD
from grace.methods.sketch import Sketch
from grace.methods.topk import TopK
from grace.methods.u8bit import U8bit
from grace.random import Stream
from grace.registry.policy import Policy
from grace.run.simulate import answers
from grace.run.worker import Worker
from grace.verify.no_sync import Unread, WithoutSync
from tests.laws.bucket_runs import Run, Shapes, gradients, in_dtype
from tests.laws.launches import LAUNCHES, read_hops
from tests.unit.kernels.triton_checks import CAUGHT, interpreter, let_agree, night
from tests.unit.kernels.triton_mutants import memory_left_out, never, words_as_numbers

__all__ = ["interpreter"]

SMALL: Shapes = ((2, 3), (41,), (1,))
SHAPES: Shapes = ((1,), (2,), (15, 17), (3, 41), (7,), (8, 8), (1025,))
LARGE: Shapes = ((4095,), (3, 401), (4097,), (5001,), (255,))
FAST = (
    "efsignsgd:block=32", "fp8:block=32", "natural", "u8bit:block=16", "onebit:group=8,tau=0.1",
    "lpc:block=16,memory=residual", "minmax:block=16", "terngrad:clip=1.2,bucket=16,memory=residual",
    "randomk:ratio=0.3,memory=dgc,clip=0.5",
)  # fmt: skip
NARROW = (
    ("efsignsgd:block=32", torch.float16), ("qsgd:bits=4,bucket=32,memory=residual", torch.bfloat16),
    ("natural", torch.bfloat16),
)  # fmt: skip

TWO_HOPS = (
    ("efsignsgd:block=32,communicator=scatterreduce", 2, torch.float32),
    ("qsgd:bits=4,bucket=8,communicator=scatterreduce,memory=residual", 3, torch.float16),
    ("natural:communicator=scatterreduce", 2, torch.float32),
)

SERVED = (
    ("efsignsgd:block=32,communicator=parameterserver", 2, torch.float32),
    ("qsgd:bits=4,bucket=8,communicator=parameterserver,memory=residual,server=1", 3, torch.float16),
    ("natural:communicator=parameterserver", 2, torch.bfloat16),
)

# Methods whose launches are counted of one small tensor, too.
COUNTED = (
    "efsignsgd", "signsgd", "qsgd", "terngrad", "natural", "fp8", "u8bit", "onebit", "lpc", "minmax", "randomk",
    "blockrandomk", "blockrandomk:mode=cyclic", "topk", "drive", "eden", "eden:rotation=shared", "rht", "thc", "qsparse",
    "blockrandomk:mode=clt", "topk:memory=dgc", "bf16", "fp16",
)  # fmt: skip
LONG = (
    "topk",
    "topk:memory=dgc",
    "qsparse",
    "thc",
    "blockrandomk:mode=clt",
)  # of which one bucket is counted that has many tensors
REMEMBER = ("efsignsgd", "u8bit", "onebit", "randomk", "blockrandomk", "topk", "thc", "qsparse", "powersgd")


@functools.cache
def outcome(spec: str, together: bool, dtype: torch.dtype = torch.float32, world: int = 2) -> Any:
    """Bytes, means and states of three steps; the third is not finite."""
    with backends.using("triton"), cpu_as_accelerator():
        run = Run(Policy([("*", spec)]), world, SMALL, lambda _: together, dtype)
        return [run.step() for _ in range(3)], run.seen


@pytest.mark.parametrize("spec", FAST)
def test_many_have_the_bytes_of_single_exchanges(spec: str) -> None:
    assert outcome(spec, True) == outcome(spec, False)


@pytest.mark.parametrize(("spec", "dtype"), NARROW)
def test_narrow_gradients_are_read_as_they_are(spec: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    right = outcome(spec, False, dtype)
    many, seen = importlib.import_module("grace.communicators.one_hop"), list[bool]()
    monkeypatch.setattr(many, "prepare", functools.partial(_look, many.prepare, seen))
    assert outcome(spec, True, dtype) == right
    assert seen == [True] * 6, "of two ranks, three steps"


def _look(prepare: Any, seen: list[bool], *args: Any, **more: Any) -> Any:
    """Notes whether a bucket's kernels read its gradients where they are."""
    bucket = prepare(*args, **more)
    own = [x.data_ptr() for x in args[3]]
    seen.append([x.data_ptr() for x in bucket.many.xs] == own)
    return bucket


@pytest.mark.parametrize(("spec", "world", "dtype"), TWO_HOPS)
def test_two_hops_have_the_bytes_of_single_exchanges(
    spec: str, world: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = outcome(spec, False, dtype, world)
    module, seen = importlib.import_module("grace.communicators.scatter_reduce"), list[bool]()
    monkeypatch.setattr(module, "prepare_scattered", functools.partial(_note, module.prepare_scattered, seen))
    assert outcome(spec, True, dtype, world) == right
    assert seen == [True] * 3 * world


@pytest.mark.parametrize(("spec", "world", "dtype"), SERVED)
def test_what_a_server_averages_has_the_bytes_of_single_exchanges(spec: str, world: int, dtype: torch.dtype) -> None:
    assert outcome(spec, True, dtype, world) == outcome(spec, False, dtype, world)


def _note(prepare: Any, seen: list[bool], *args: Any, **how: Any) -> Any:
    """Notes whether a bucket goes by few launches."""
    bucket = prepare(*args, **how)
    seen.append(bucket is not None)
    return bucket


SUMMED = (
    "randomk:ratio=0.3", "blockrandomk:ratio=0.4,block=8", "blockrandomk:ratio=0.4,block=8,mode=cyclic",
    "blockrandomk:ratio=0.4,mode=clt",
)  # fmt: skip


@pytest.mark.parametrize(
    ("spec", "dtype"),
    [
        (SUMMED[0], torch.float32),
        (SUMMED[1], torch.float32),
        (SUMMED[0], torch.bfloat16),
        (SUMMED[3], torch.float32),
        (SUMMED[3], torch.bfloat16),
        ("bf16", torch.float32),
        ("fp16", torch.float32),
    ],
)
def test_what_the_network_sums_has_the_bytes_of_the_cpu(spec: str, dtype: torch.dtype) -> None:
    """Sums have the bytes of the specification: one tensor may go by the same launches."""
    with backends.using("reference"), cpu_as_accelerator():
        run = Run(Policy([("*", spec)]), 2, SMALL, lambda _: False, dtype)
        want = [run.step() for _ in range(3)], run.seen
    assert outcome(spec, True, dtype) == want
    if spec == SUMMED[1]:
        assert outcome(spec, False, dtype) == want


def count_launches(
    spec: str,
    shapes: Shapes,
    monkeypatch: pytest.MonkeyPatch,
    dtype: torch.dtype = torch.float32,
    world: int = 1,
    *,
    scatters: bool = False,
) -> int:
    """Launches of the second step, or with a memory the fifth, in which the host is not asked. Nothing runs. ``scatters``:
    shapes are those of rows, of which each worker gets the mean of its own.
    """
    count = [0]

    def only_count(executor: Any, *args: Any, **_: Any) -> None:
        count[0] += 1
        let_agree(executor, args)

    monkeypatch.setattr("triton.runtime.interpreter.GridExecutor.__call__", only_count)
    with backends.using("triton"), cpu_as_accelerator():
        worker, given = Worker(Policy([("*", spec)]), 0, world), in_dtype(gradients(0, 0, shapes), dtype)
        last = 4 if spec.startswith(REMEMBER) else 1  # memories of one shape go round in four steps
        for step in range(last + 1):
            worker._read_pending()  # what has been under way since the last step
            count[0] = 0
            if step < last:
                _run(worker, given, scatters)
            else:
                with Unread(), WithoutSync():  # type: ignore[no-untyped-call]
                    _run(worker, given, scatters)
            worker.workspace.reset()
            worker.advance()
    monkeypatch.undo()
    return count[0]


def _run(worker: Worker, given: dict[str, Tensor], scatters: bool) -> None:
    exchange = worker.scatter(given) if scatters else worker.exchange(given)
    op = next(exchange)
    with contextlib.suppress(StopIteration):
        while True:
            op = exchange.send(answers([op] * worker.world)[0])


@pytest.mark.parametrize("spec", COUNTED)
def test_launches_do_not_grow_with_the_bucket(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = [count_launches(spec, SMALL[1:2] * number, monkeypatch) for number in (1, 3, 40 if spec in LONG else 4)]
    launches, asked = LAUNCHES[spec]
    assert counts == [launches] * 3
    assert asked == 0, "who asks could not be counted here"
    if spec in ("efsignsgd", "natural"):  # and one that rounds the means
        assert count_launches(spec, SMALL, monkeypatch, torch.bfloat16) == launches + 1


@pytest.mark.parametrize(("spec", "even", "odd"), read_hops())
def test_launches_of_two_hops(spec: str, even: int, odd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches for tensors that W divides, and for others."""
    full = f"{spec}:communicator=scatterreduce"
    for shapes, want in ((((6,), (2, 4)), even), (((6,), (2, 4), (10,)), even), (((5,), (2, 4), (7,)), odd)):
        assert count_launches(full, shapes, monkeypatch, world=2) == want


def some(device: str = "cpu", sizes: tuple[int, ...] = (5, 70)) -> tuple[TensorList, list[Tensor]]:
    streams = [Stream(0, "m", str(n), 0, 0) for n in sizes]
    return TensorList(sizes, [4, 204], streams, torch.device(device)), [torch.ones(1, n) for n in sizes]


def test_tables_are_not_made_while_work_is_captured() -> None:
    many, xs = some()
    with backends.using("triton"):
        with pretend_capturing():
            assert not many.point(xs)
        assert many.point(xs)
        with pretend_capturing():
            assert many.point(xs)
            moved = [x.clone() for x in xs]
            assert not many.point(moved)
            with pytest.raises(NoTable):
                many.table  # noqa: B018
        assert [x.data_ptr() for x in many.xs] == [x.data_ptr() for x in moved], "the reference finds them"
        kept = [[x.clone() for x in xs] for _ in range(SIDES + 1)]  # each has a place of its own
        for moved in kept:
            many.point(moved)
    assert len(many._tables) <= SIDES, "gradients that move at every step fill no memory"


def test_a_capture_that_needs_tables_of_the_host_is_refused() -> None:
    """Tables that a capture has used stay with its graph: the next one would copy its own from memory that is free by then."""
    with backends.using("triton"), cpu_as_accelerator():
        run = Run(Policy([("*", "efsignsgd:block=32")]), 1, ((6,), (3,)), lambda _: True)
        run.step()
        with pretend_capturing():
            run.step()
            with pytest.raises(ConfigurationError, match="one step as usual before each capture, also between two"):
                run.step()
        run.step()
        with pretend_capturing():
            run.step()


@pytest.mark.parametrize(
    ("codec", "at", "value"),
    [
        (FP8(block=64), 207, 0xFF),
        (QSGD(bits=4), 207, 0xFF),
        (SignSGD(zero="abstain"), 207, 250),
        (Natural(), 204, 0x80),
        (U8bit(), 207, 0xFF),
        (OneBit(), 211, 0x7F),
        (LPC(bits=8), 208, 0),
        (DRIVE(block=64, rotation="shared"), 207, 0xFF),
        (DRIVE(block=64), 215, 0xFF),
        (TopK(ratio=0.1), 207, 0xFF),
        (Sketch(quantiles=5), 224, 0xFF),
    ],
)
@pytest.mark.parametrize("backend", ["reference", "triton"])
def test_a_wire_that_no_sender_writes_spoils_its_own_tensor(
    codec: Compressor, at: int, value: int, backend: str
) -> None:
    with backends.using(backend), cpu_as_accelerator():
        many, xs = some()
        many.point(xs)
        many.lend([x.clone() for x in xs])
        rows = torch.zeros(2, 600, dtype=torch.uint8)
        for row in rows:
            assert codec.encode_many_(row, many, many.streams[0]).tolist() == [True, True]
        assert codec.aggregate_many_(rows, many, 0.5, many.streams[0]).tolist() == [True, True]
        rows[1, at] = value
        assert codec.aggregate_many_(rows, many, 0.5, many.streams[0]).tolist() == [True, False]


# ---- mutants --------------------------------------------------------------------------------------------------------
@triton.jit
def _key_of_the_first(table, task):  # type: ignore[no-untyped-def]
    return key_of(table, 0)


@triton.jit
def _first_block(table, programs, heads, x, e, rest, wire, bad, n, w, key0, key1, block, MANY, EVEN):  # type: ignore[no-untyped-def]
    task, tile, x, e, rest, start, n, base, bad, head, nb, key0, key1 = encoder_at(
        table, programs, heads, x, e, rest, wire, bad, n, w, key0, key1, block, MANY, EVEN
    )
    return task, tile, x, e, rest, start, n, base, bad, head - head, nb, key0, key1


@triton.jit
def _half_of_each(lanes, ROWS: tl.constexpr):  # type: ignore[no-untyped-def]
    return tl.sum(lanes, 1) * 0.5


def _no_cast(flags: Tensor, means: TensorList, many: TensorList) -> Tensor:
    """Nothing is rounded."""
    return flags


@triton.jit
def _first_row(table, task, like, EVEN):  # type: ignore[no-untyped-def]
    at, start = numbers_of(table, task, like, EVEN)
    return at, start - start


def _nothing(*_: Any, **__: Any) -> None:
    """Nothing is done."""


def _poisoned(*args: Any, **_: Any) -> Tensor:
    """Nothing is cleared."""
    return agree(*args)


def _as_they_are(norms: Tensor, *_: Any) -> Tensor:
    """Nothing is cut."""
    return norms


def _never(flags: Tensor, many: TensorList) -> None:
    """Nothing is restored."""


@pytest.mark.parametrize(
    ("where", "mutant", "spec", "dtype"),
    [
        ("grace.kernels.triton.load_number", words_as_numbers, *NARROW[2]),
        ("grace.communicators.many.narrow_many", _no_cast, *NARROW[0]),
        ("grace.kernels.tensor_list.triton.key_of", _key_of_the_first, "natural", torch.float32),
        ("grace.kernels.triton.tiles.mark_if", never, "natural", torch.float32),
        ("grace.kernels.triton.tiles.load_sum", memory_left_out, "onebit:group=8,tau=0.1", torch.float32),
        ("grace.kernels.triton.halves", _half_of_each, "onebit:group=8,tau=0.1", torch.float32),
        ("grace.kernels.signs.triton.encoder_at", _first_block, "onebit:group=7,tau=0.1", torch.float32),
        (
            "grace.kernels.stochastic_levels.triton._cut",
            _as_they_are,
            "terngrad:clip=1.2,bucket=16,memory=residual",
            torch.float32,
        ),
        ("grace.memories.many.scale_many", _never, "randomk:ratio=0.3,memory=dgc,clip=0.5", torch.float32),
        ("grace.memories.many.settle_many", _never, "efsignsgd:block=32", torch.float32),
        ("grace.communicators.many.poison_many", _never, SUMMED[0], torch.float32),
        ("grace.communicators.rounded.poison_many", _never, "bf16", torch.float32),
    ],
)
def test_mutants_are_caught(
    where: str, mutant: Any, spec: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = outcome(spec, False, dtype)  # which goes through the same kernels
    monkeypatch.setattr(where, mutant)
    assert outcome.__wrapped__(spec, True, dtype) != right


@pytest.mark.parametrize(
    ("where", "mutant"),
    [
        ("grace.kernels.tensor_list.triton.numbers_of", _first_row),
        ("grace.communicators.rows.agree", _poisoned),
        ("grace.communicators.scattered_many.pad_many", _nothing),
        ("grace.communicators.scattered_many.fetch_many", _nothing),
        ("torch._foreach_add_", _nothing),
    ],
)
def test_mutants_of_two_hops_are_caught(where: str, mutant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, world, dtype = TWO_HOPS[0]
    right = outcome(spec, False, dtype, world)
    monkeypatch.setattr(where, mutant)
    assert outcome.__wrapped__(spec, True, dtype, world) != right


@pytest.mark.parametrize(
    ("where", "mutant"),
    [("grace.communicators.served_many.agree", _poisoned), ("torch._foreach_add_", _nothing)],
)
def test_mutants_of_servers_are_caught(where: str, mutant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, world, dtype = SERVED[0]
    right = outcome(spec, False, dtype, world)
    monkeypatch.setattr(where, mutant)
    assert outcome.__wrapped__(spec, True, dtype, world) != right


@pytest.mark.parametrize(
    ("name", "mutant", "dtype"),
    [
        ("methods.common.led_bucket.take_listed_many", _nothing, torch.float32),
        pytest.param("methods.common.led_bucket.encode_indices_many", _nothing, torch.float32, marks=night),
        pytest.param("communicators.many.poison_many", _nothing, torch.float32, marks=night),
        pytest.param("communicators.many.narrow_many", _no_cast, torch.bfloat16, marks=night),
    ],
)
def test_mutants_of_led_buckets_are_caught(
    name: str, mutant: Any, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    with backends.using("reference"), cpu_as_accelerator():
        run = Run(Policy([("*", SUMMED[3])]), 2, SMALL, lambda _: False, dtype)
        right = [run.step() for _ in range(3)], run.seen
    monkeypatch.setattr(f"grace.{name}", mutant)
    with pytest.raises(CAUGHT):
        assert outcome.__wrapped__(SUMMED[3], True, dtype) == right
