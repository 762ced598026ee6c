"""The Triton kernels in Triton's interpreter, against the torch functions that specify them, to the bit.

The interpreter runs one program after another in numpy: sizes are small, and lie around the borders of tiles.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

triton = pytest.importorskip("triton", reason="needs the package triton")
tl = pytest.importorskip("triton.language")

from grace import kernels
from grace.compute import backends
from grace.compute.launching import launch
from grace.contract.compressor import Fused
from grace.errors import PayloadError
from grace.flags.capturing import CapturedStep
from grace.flags.finite import cpu_as_accelerator
from grace.kernels.triton import round_half_even, round_wide_half_even, store_codes
from grace.kernels.triton.tiles import spread
from grace.methods.eden import EDEN
from grace.methods.fp8 import FP8
from grace.methods.natural import Natural
from grace.methods.qsgd import QSGD
from grace.methods.u8bit import U8bit
from grace.random import Stream
from grace.random.triton import lanes_at, lanes_of_tile
from tests.golden.golden import COMPRESSORS, GOLDEN, METHODS, conversation, decoded, encoded
from tests.golden.test_golden import BY_LAPACK
from tests.patience import PATIENCE
from tests.unit.kernels import block_codecs as check
from tests.unit.kernels.native_checks import offset
from tests.unit.kernels.test_signs import CODECS, everything
from tests.unit.kernels.test_signs import numbers as signed_numbers
from tests.unit.kernels.triton_checks import CAUGHT, agree, interpreter, night
from tests.unit.kernels.triton_mutants import memory_left_out, never

__all__ = ["interpreter"]

STREAM = Stream(3, "randomk", "w", None, 2**31 + 7)  # a step beyond int32


CODES: dict[str, Fused] = {
    "trits": QSGD(levels=1, bucket=24),
    "3 levels": QSGD(levels=3, bucket=5),
    "4 bits": QSGD(bits=4, bucket=64),
    "4 bits, l2": QSGD(bits=4, bucket=48, norm="l2", shrink=True),
    "5 bits": QSGD(levels=9, bucket=16),
    "16 bits": QSGD(bits=16, bucket=16, norm="l2"),
    "7 bits": QSGD(levels=40, bucket=333),
    "8 bits": QSGD(bits=8, bucket=100),
    "trees": U8bit(block=7),
    "bnb": U8bit(map="bnb"),
    "powers": Natural(bits=8, block=64),
    "powers, 4 bits": Natural(bits=4, block=7),
    "powers, 9 bits": Natural(bits=9),
}


@pytest.mark.parametrize("codec", CODES)
@pytest.mark.parametrize("n", [0, 1, 65, 300])
def test_codes_of_small_rows(codec: str, n: int) -> None:
    x, memory = check.numbers(2, n), check.numbers(2, n, 1) / 4
    agree(lambda: check.results(CODES[codec], x, memory, shift=n % 4), n)


@pytest.mark.parametrize("codec", CODES)
@pytest.mark.parametrize("n", [641, 1025])
def test_codes_around_the_borders_of_tiles(codec: str, n: int) -> None:
    x, memory = check.numbers(1, n), check.numbers(1, n, 1) / 4
    agree(lambda: check.results(CODES[codec], x, memory), n)


@pytest.mark.parametrize(
    "codec", [QSGD(bits=4, bucket=5001, norm="l2"), QSGD(levels=1, bucket=4097), U8bit(block=5000)]
)
def test_blocks_of_several_pieces(codec: Fused) -> None:
    x, memory = check.numbers(1, 9001), check.numbers(1, 9001, 1) / 4
    agree(lambda: check.results(codec, x, memory), codec)


@pytest.mark.parametrize("codec", CODECS)
def test_bits_of_small_rows(codec: str) -> None:
    for n in (1, 5, 8, 17, 33, 70, 300):
        bits(codec, n)


def bits(codec: str, n: int) -> None:
    block = (1, 3, 8, 16, 48, 4096, 10**12)[n % 7]
    x, memory = signed_numbers(2, n, n % 5, n), signed_numbers(2, n, (n + 1) % 5, n + 1)
    agree(lambda: everything(codec, x, memory, block, 3), (n, block))


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(("n", "block"), [(1025, 1025), (641, 48), (9001, 5001)])
def test_bits_around_the_borders_of_tiles_and_pieces(codec: str, n: int, block: int) -> None:
    x, memory = signed_numbers(1, n, 1, 1), signed_numbers(1, n, 0, 2)
    agree(lambda: everything(codec, x, memory, block, 2), (n, block))


@pytest.mark.parametrize("n", [0, 1, 5, 64, 300, 1025, 4097])
def test_statistics(n: int) -> None:
    for block in (16, 100, 5000) if n > 300 else (1, 7, 16, 100):
        statistics(n, block)


def statistics(n: int, block: int, rows: int = 3) -> None:
    x = check.numbers(rows, n)
    agree(
        lambda: [kernels.block_abs_max(x, block), kernels.block_abs_mean(x, block), kernels.block_norm(x, block)],
        (n, block),
    )


@pytest.mark.parametrize("n", [0, 1, 7, 300, 1023, 1025, 4097, 5001])
def test_random_numbers_and_subsets(n: int) -> None:
    agree(
        lambda: (
            [STREAM.words(n), STREAM.words(n, first=5), STREAM.uniform(n, first=3)]
            + [STREAM.subset(n, k) for k in {0, n // 100, n // 3, max(0, n - 1), n}]
        ),
        n,
    )


@pytest.mark.parametrize("n", [(1 << 20) + 1, (1 << 32) - 1, (1 << 40) + 3])
def test_subsets_of_many(n: int) -> None:
    drawn(n, 3000)


def drawn(n: int, k: int) -> None:
    agree(lambda: [STREAM.subset(n, k)], n)


@pytest.mark.parametrize("backend", ["reference", "triton"])
def test_a_step_may_lie_on_the_device(backend: str) -> None:
    """As a captured step finds it, whatever the step of the capture was."""
    there = replace(STREAM, step=CapturedStep.at(0, torch.tensor([STREAM.step - 2**32], dtype=torch.int32)))
    x = check.numbers(1, 70)
    with backends.using(backend), cpu_as_accelerator():
        for draw in (
            lambda rng: rng.words(70), lambda rng: rng.uniform(9, first=3), lambda rng: rng.subset(5001, 30),
            lambda rng: rng.subset(70, 9), lambda rng: QSGD(bits=4).encode_(x.clone(), rng)[0],
            lambda rng: FP8(stochastic=True).encode_(x.clone(), rng)[0], lambda rng: Natural().encode_(x.clone(), rng)[0],
            lambda rng: EDEN(block=16).encode_(x.clone(), rng)[0],
        ):  # fmt: skip
            assert torch.equal(draw(there), draw(STREAM))
            assert not torch.equal(draw(there), draw(replace(STREAM, step=0)))


@pytest.mark.parametrize("n", [1, 64, 1025, 5001])
def test_taking_and_adding_subsets(n: int) -> None:
    source = torch.Generator().manual_seed(n)
    x, y = torch.randn(3 * n + 1, generator=source)[1:].view(3, n), torch.randn(3, n, generator=source)
    for k in {0, 1, n // 3, n}:

        def draw(k: int = k) -> list[Tensor]:
            rows, out = x.clone(), y.clone()
            wires = [kernels.take_subset(rows, k, STREAM), kernels.take_subset(rows, k, STREAM, -0.37)]
            kernels.add_subset([*wires, wires[0]], out, 0.3, STREAM)
            return [*wires, rows, out]

        agree(draw, (n, k))


@pytest.mark.parametrize("n", [0, 1, 70, 300, 1023, 1025])
@pytest.mark.parametrize("nesterov", [False, True])
def test_velocities(n: int, nesterov: bool) -> None:
    made = torch.Generator().manual_seed(n)
    x, memory = torch.randn(n, generator=made), torch.randn(2, n, generator=made)

    def draw() -> list[Tensor]:
        out = torch.empty(2, n)
        kernels.accelerate(x, memory, 0.9, nesterov, out)
        rest, u = out[1].clone(), out[0].clone()
        rest[::3] = 0
        kernels.forget_sent(u, memory[1].contiguous(), x if nesterov else None, rest)
        return [out, u]

    agree(draw, n)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("n", [0, 1, 70, 1025])
def test_sums_with_a_factor(n: int, dtype: torch.dtype) -> None:
    made = torch.Generator().manual_seed(n)
    out, x = torch.randn(n, generator=made), torch.randn(n, generator=made).to(dtype)
    for scale in (1.0, -1.0, 1 / 3):
        agree(lambda scale=scale: [kernels.add_scaled_(offset(out, 1), x, scale)], (n, scale))  # type: ignore[misc]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("bad", [None, torch.nan, torch.inf, -torch.inf])
def test_finiteness(bad: float | None, dtype: torch.dtype) -> None:
    for n in (1, 300, 4097):
        x = torch.full((n,), 6e4, dtype=dtype)
        if bad is not None:
            x[-1] = bad
        with backends.using("triton"):
            assert kernels.all_finite(x) is (bad is None)
            out = torch.empty(n)
            assert kernels.sum_finite(x.float(), torch.ones(n), out) is (bad is None)
            if bad is None:
                assert torch.equal(out, x.float() + 1)


@pytest.mark.parametrize(("m", "l", "r"), [(1, 1, 1), (17, 65, 2), (40, 130, 4)])
def test_thin_factors(m: int, l: int, r: int) -> None:
    made = torch.Generator().manual_seed(m)
    x, p = torch.randn(m, l, generator=made), torch.randn(r, m, generator=made)
    left, q = torch.randn(r, l, generator=made), torch.randn(r, l, generator=made)

    def draw() -> list[Tensor]:
        rest, out, more, alone = x.clone(), torch.empty(m, l), x.clone(), torch.empty(m, l)
        kernels.split_low_rank(rest, p, left, q, out)
        kernels.split_low_rank(None, p, left, q, alone)
        kernels.add_low_rank_(more, p, q, 0.3)
        return [rest, out, more, alone]

    agree(draw, (m, l, r))


@pytest.mark.parametrize("codec", ["trits", "4 bits", "8 bits", "bnb", "powers"])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_what_is_not_finite_is_noticed(codec: str, bad: float) -> None:
    x, memory = torch.ones(1, 1100), torch.zeros(1, 1100)
    memory[0, 1099] = bad
    with backends.using("triton"):
        assert CODES[codec].encode_(x.clone(), check.RNG)[1] is True
        assert CODES[codec].encode_(x.clone(), check.RNG, memory, torch.empty_like(x))[1] is False


@pytest.mark.parametrize(
    ("codec", "at", "value", "match"),
    [
        (QSGD(bits=8, bucket=100), 12 + 249, 255, r"'codes' must be in \[0, 254\]"),
        (QSGD(levels=1, bucket=100), 12, 243, r"\[0, 242\]"),
        (QSGD(bits=4, bucket=100), 11, 0xFF, "'norms' must be finite"),
        (U8bit(), 200, 0x80, "minus zero"),
        (U8bit(), 3, 0xFF, "'scales' must be finite"),
        (Natural(), 250, 255, "'codes'"),
        (Natural(), 0, 0x80, "'exponents'"),
    ],
)  # fmt: skip
def test_corrupted_wires_are_refused(codec: Fused, at: int, value: int, match: str) -> None:
    good = codec.encode_(check.numbers(1, 250), check.RNG)[0]
    wire = good.clone()
    wire[0, at] = value
    for damaged in (wire, good[:, :-1]):
        with backends.using("triton"), pytest.raises(PayloadError, match=match if damaged is wire else "truncated"):
            codec.aggregate_([good, damaged, good], torch.empty(1, 250), 1.0, check.RNG)


@triton.jit
def _round_all(x, out, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    i = tl.arange(0, SIZE)
    tl.store(out + i, round_half_even(tl.load(x + i)))


@triton.jit
def _round_all_wide(x, out, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    i = tl.arange(0, SIZE)
    tl.store(out + i, round_wide_half_even(tl.load(x + i)).to(tl.int32))


def test_of_two_integers_equally_near_the_even_one_is_taken() -> None:
    """Too rare in random numbers: a tie shows only where a lane of 16 bits decides."""
    x = torch.tensor([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 8388607.5, -0.0])
    out = torch.empty(8, dtype=torch.int32)
    launch(_round_all, (1,), x, out, SIZE=8)
    assert out.tolist() == x.round().tolist()
    launch(_round_all_wide, (1,), x.double(), out, SIZE=8)
    assert out.tolist() == x.round().tolist()


# ---- more of them, at night -----------------------------------------------------------------------------------------
@night
@pytest.mark.parametrize("codec", CODES)
def test_codes_of_every_size(codec: str) -> None:
    for n in range(1, 301):
        test_codes_of_small_rows(codec, n)
    for n in (639, 1023, 1024, 2049):
        test_codes_around_the_borders_of_tiles(codec, n)


@night
@pytest.mark.parametrize("codec", CODECS)
def test_bits_of_every_size(codec: str) -> None:
    for n in range(1, 301):
        bits(codec, n)
    for n, block in ((1023, 64), (4097, 4096)):
        test_bits_around_the_borders_of_tiles_and_pieces(codec, n, block)


@night
def test_others_of_every_size() -> None:
    for n in range(1, 301):
        test_statistics(n)
        test_velocities(n, n % 2 == 0)
        test_sums_with_a_factor(n, torch.bfloat16)
        test_taking_and_adding_subsets(n)


# ---- through whole methods ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", COMPRESSORS)
def test_golden_bytes(name: str) -> None:
    with backends.using("triton"):
        assert bytes(encoded(COMPRESSORS[name]).tolist()).hex() == GOLDEN[name]["wire"]
        assert decoded(COMPRESSORS[name], bytes.fromhex(GOLDEN[name]["wire"])) == GOLDEN[name]["decoded"]


@pytest.mark.parametrize("name", [name for name in METHODS if name.partition(":")[0] not in BY_LAPACK])
def test_golden_conversations(name: str) -> None:
    with backends.using("triton"):
        assert conversation(METHODS[name]) == GOLDEN[name]


# ---- mutants --------------------------------------------------------------------------------------------------------
@triton.jit
def _from_zero(x):  # type: ignore[no-untyped-def]
    return -x


@triton.jit
def _lanes_of_the_next(key0, key1, step, first, G: tl.constexpr):  # type: ignore[no-untyped-def]
    return lanes_of_tile(key0, key1, step, first + 4, G)


@triton.jit
def _lanes_of_the_next_one(key0, key1, step, position):  # type: ignore[no-untyped-def]
    return lanes_at(key0, key1, step, position + 1)


@triton.jit
def _hash_of_one_round(x):  # type: ignore[no-untyped-def]
    return (x ^ (x >> 16)) * 0x7FEB352D


@triton.jit
def _without_the_last_byte(at, code, first, n, width, BITS: tl.constexpr, G: tl.constexpr):  # type: ignore[no-untyped-def]
    store_codes(at, code, first, n, width - 1, BITS, G)


@triton.jit
def _across_blocks(word, BLOCK: tl.constexpr, SPAN: tl.constexpr):  # type: ignore[no-untyped-def]
    return tl.max(tl.reshape(word, (BLOCK, SPAN // BLOCK)), 0)


@triton.jit
def _border_too_early(value, first, lane, BLOCK: tl.constexpr, SPAN: tl.constexpr):  # type: ignore[no-untyped-def]
    return spread(value, first + 1, lane, BLOCK, SPAN)


@triton.jit
def _blocks_in_turns(value, first, lane, BLOCK: tl.constexpr, SPAN: tl.constexpr):  # type: ignore[no-untyped-def]
    return tl.reshape(tl.broadcast_to(value[None, :], (BLOCK, SPAN // BLOCK)), lane.shape)


def codes(codec: Fused, n: int = 300) -> Callable[[], None]:
    return lambda: agree(lambda: check.results(codec, check.numbers(2, n), check.numbers(2, n, 1)), codec)


def _signs() -> None:
    test_bits_of_small_rows("signs")


# module, what is replaced in it, by what, and the test above that fails then
MUTANTS: list[tuple[str, str, Any, Callable[[], None]]] = [
    ("triton.tiles", "load_sum", memory_left_out, codes(QSGD(bits=4))),
    ("stochastic_levels.triton", "lanes_of_tile", _lanes_of_the_next, codes(QSGD(bits=4))),
    ("stochastic_levels.triton", "lanes_at", _lanes_of_the_next_one, codes(QSGD(levels=1))),
    ("triton.tiles", "mark_if", never, lambda: test_what_is_not_finite_is_noticed("4 bits", torch.nan)),
    ("stochastic_levels.triton", "store_codes", _without_the_last_byte, codes(QSGD(bits=16))),
    ("stochastic_levels.triton", "tops_of_blocks", _across_blocks, codes(QSGD(bits=4, bucket=64))),
    ("stochastic_levels.triton", "spread", _blocks_in_turns, codes(QSGD(bits=4, bucket=64))),
    ("stochastic_levels.triton", "spread", _border_too_early, codes(QSGD(bits=4, bucket=1025), 1100)),
    ("dynamic_8bit.triton", "tops_of_blocks", _across_blocks, codes(U8bit(block=64))),
    ("log2_quantization.triton", "store_codes", _without_the_last_byte, codes(Natural(bits=9))),
    ("log2_quantization.triton", "lanes_of_tile", _lanes_of_the_next, codes(Natural())),
    (
        "log2_quantization.triton",
        "mark_if",
        never,
        lambda: test_corrupted_wires_are_refused(Natural(), 250, 255, "'codes'"),
    ),
    ("signs.triton", "negated", _from_zero, _signs),
    ("finite.triton", "mark_if", never, lambda: test_finiteness(torch.inf, torch.float32)),
]


@pytest.mark.parametrize(("module", "name", "mutant", "test"), MUTANTS)
def test_mutants_are_caught(
    module: str, name: str, mutant: Any, test: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"grace.kernels.{module}.{name}", mutant)
    with pytest.raises(CAUGHT):
        test()


def test_another_permutation_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grace.random.triton._hash32", _hash_of_one_round)
    with pytest.raises(AssertionError):
        test_subsets_of_many((1 << 20) + 1)


def compile_all(folder: Path, *how: str, seconds: float = PATIENCE) -> None:
    """For a GPU that need not be there: nothing is fused, flushed, lost or rounded otherwise, where fusing and a loss would
    show.
    """
    env = {**os.environ, "TRITON_CACHE_DIR": str(folder)}
    env.pop(backends.INTERPRETER)
    command = [sys.executable, "-m", "tests.unit.kernels.compiled_triton", *how]
    run = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=seconds)
    assert run.returncode == 0, run.stderr[-3000:]
    assert json.loads(run.stdout) == {"wrong": {}, "missing": [], "fused": ["fma.rn.f32"], "lost": True}


def test_the_compiler_takes_every_kernel_and_changes_no_bits(tmp_path: Path) -> None:
    """Its "fused products" are those of a kernel that is compiled with fusing, to see that they would be found. Each kernel
    is compiled for one architecture, and some for others.
    """
    compile_all(tmp_path, "first")


@pytest.mark.night("fused products")
@pytest.mark.timeout(3600)  # a thousand compilations
def test_the_compiler_takes_every_kernel_in_all_ways(tmp_path: Path) -> None:
    compile_all(tmp_path, seconds=3600)


@pytest.mark.night("fused products")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("architecture", ["80", "89", "100"])
def test_bits_do_not_depend_on_the_architecture(architecture: str, tmp_path: Path) -> None:
    """Every kernel, in ways that have all that any argument is."""
    compile_all(tmp_path, architecture, seconds=3600)


@pytest.mark.night("fused products")
@pytest.mark.timeout(3600)  # more than two thousand
def test_the_compiler_may_know_that_an_integer_is_one(tmp_path: Path) -> None:
    """As it does of each integer of a launch that is 1, one at a time and all together; the interpreter cannot show it."""
    compile_all(tmp_path, "ones", seconds=3600)
