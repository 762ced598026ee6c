"""The largest of both sides and their means by Triton kernels, in Triton's interpreter, against the specification."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

triton = pytest.importorskip("triton", reason="needs the package triton")
tl = pytest.importorskip("triton.language")

from grace.compute import backends
from grace.flags.finite import cpu_as_accelerator
from grace.kernels import SideSelection, choose_sides_many, sum_counted_many
from grace.kernels.selection.triton.candidates import on_side
from grace.kernels.sparse_codes import SideMeans
from grace.kernels.tensor_list import TensorList
from grace.kernels.variable_sparse import Chosen, CountedCode
from grace.methods.common.counts import KeptOfEach
from tests.unit.kernels.coded_buckets import compare_damaged
from tests.unit.kernels.test_triton_variable_sparse import bucket, messages
from tests.unit.kernels.triton_checks import CAUGHT, agree, interpreter, night

__all__ = ["interpreter"]

SIZES = (41, 6, 9, 1, 7)
STEP = 2**31 + 5
SIDE = CountedCode("auto", False, SideMeans())


@dataclass(frozen=True)
class Chooser:
    """Chooser for two workers' tensors: one has many equal numbers, one no negative ones, one is all zeros, one not finite."""

    ratio: float
    joint: bool
    sample: int = 0

    def __call__(self, rank: int, many: TensorList, code: CountedCode) -> Chosen:
        for x, memory in zip(many.xs, many.memories or (), strict=True):
            memory.copy_((memory * 4).round())
            x.copy_((x * 2).round())
        xs = [x.view(-1) for x in many.xs]
        xs[0][3 + rank] = (1e-41, 0.7)[rank]
        xs[1].abs_()
        if many.memories is not None:
            many.memories[1].abs_()
            torch.neg(xs[2], out=many.memories[2].view(-1))
        xs[2][5] = (xs[2][5], math.nan)[rank]
        xs[-1][0] = (-7.25, -math.inf)[rank]
        return choose_sides_many(
            many.like, many, code, SideSelection(KeptOfEach(self.ratio), self.joint, self.sample), STEP
        )


def wires_and_sums(index: str, ratio: float, joint: bool, sizes: tuple[int, ...] = SIZES, sample: int = 0) -> None:
    code = CountedCode(index, False, SideMeans())

    def draw() -> list[Tensor]:
        with cpu_as_accelerator():
            buckets, places, rows, finite = messages(sizes, code, Chooser(ratio, joint, sample))
            flags = [flag for flags in finite for flag in flags]
            rests = [rest for many in buckets for rest in many.rests or ()]
            legal = sum_counted_many(rows, buckets[0], code, places, 0.3)
        settled = [rest for flag, rest in zip(flags, rests, strict=True) if flag]
        return [rows, *finite, *settled, legal, *buckets[0].xs]

    agree(draw, (index, ratio, joint, sizes, sample))


@pytest.mark.parametrize(
    ("index", "ratio", "joint"),
    [
        ("auto", 0.3, False),
        *(pytest.param(*case, marks=night) for case in (
            ("raw", 0.3, True), ("bitmap", 1.0, False), ("elias-fano", 0.1, False), ("rice", 0.4, False),
            ("delta", 0.01, True), ("auto", 1.0, True),
        )),
    ],
)  # fmt: skip
def test_wires_and_their_sums(index: str, ratio: float, joint: bool) -> None:
    wires_and_sums(index, ratio, joint)


@night
@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize(("index", "ratio"), [("auto", 0.01), ("raw", 0.2), ("rice", 0.05), ("bitmap", 0.9)])
def test_tensors_of_several_tiles(index: str, ratio: float, joint: bool) -> None:
    wires_and_sums(index, ratio, joint, (4097, 300, 9001, 4096, 12_289))


@pytest.mark.parametrize(
    ("index", "ratio", "joint", "sample"),
    [
        ("raw", 0.5, False, 4),
        *(pytest.param(*case, marks=night) for case in (
            ("auto", 0.3, True, 3), ("rice", 0.4, False, 1), ("delta", 1.0, True, 5), ("bitmap", 0.1, False, 300),
        )),
    ],
)  # fmt: skip
def test_thresholds_of_samples(index: str, ratio: float, joint: bool, sample: int) -> None:
    wires_and_sums(index, ratio, joint, sample=sample)


@night
@pytest.mark.parametrize("joint", [False, True])
def test_samples_of_all_small_sizes_and_of_several_tiles(joint: bool) -> None:
    """Samples of up to 4,096 numbers rank all of them, of more a network draws."""
    wires_and_sums("auto", 0.4, joint, tuple(range(6, 70)), 4)
    wires_and_sums("raw", 0.1, joint, (4095, 1025, 30, 1024, 9000, 20_000), 100)


def damaged(index: str, steps: range) -> set[bool]:
    code = CountedCode(index, False, SideMeans())
    with cpu_as_accelerator(), backends.using("reference"):
        _, places, rows, _ = messages(SIZES, code, Chooser(0.3, False))
    add_up = functools.partial(sum_counted_many, code=code, places=places, weight=1.0)
    return compare_damaged(rows, places.begins[0] + 4, steps, lambda: bucket(SIZES, 0), add_up)


@night
@pytest.mark.parametrize("index", ["auto", "raw", "rice"])
def test_damaged_wires_are_told(index: str) -> None:
    assert damaged(index, range(2, 140, 9)) == {True, False}


def fronts_alone() -> None:
    """Both means are checked where nothing follows them: neither may be negative or a NaN."""
    with backends.using("triton"), cpu_as_accelerator():
        buckets, places, rows, _ = messages(SIZES, SIDE, Chooser(0.3, False))
        rows[1, places.begins[2] + 8 + 3] = 0xFF
        rows[1, places.begins[4] + 12 + 3] = 0xC0
        legal = sum_counted_many(rows, buckets[0], SIDE, places, 1.0)
    assert legal.tolist() == [True, True, False, True, False]


@night
def test_means_are_told_where_nothing_follows_them() -> None:
    fronts_alone()


def uneven() -> Tensor:
    """``[256]``: 1, half of its last bit as a float32, and what is lost in the specified order, but in others decides."""
    x = torch.full((256,), 2.0**-100)
    x[::16] = 2.0**-54
    x[0], x[1] = 1.0, 2.0**-24
    return x


@pytest.mark.parametrize("backend", ["reference", "native"])
def test_means_are_sums_in_the_order_that_is_specified(backend: str) -> None:
    if backend not in {name.split("-")[0] for name in backends.available()}:
        pytest.skip("no native kernels")
    with backends.using(backend):
        assert SideMeans().front_of(uneven()).tolist() == [1 / 256, 0]
        assert SideMeans().front_of(-uneven()).tolist() == [0, 1 / 256]
        assert SideMeans().front_of(uneven().flip(0)).tolist() == [(1 + 2**-23) / 256, 0], "another order, another mean"


def in_order() -> None:
    """The order of sums, of both sides."""

    def draw() -> list[Tensor]:
        with cpu_as_accelerator():
            _, _, rows, _ = messages((256, 256), SIDE, spread)
        return [rows]

    agree(draw, "order")


def spread(rank: int, many: TensorList, code: CountedCode) -> Chosen:
    """Spread of tensors whose sums depend on the order."""
    for sign, x, memory in zip((1, -1), many.xs, many.memories or (), strict=True):
        memory.zero_()
        x.copy_(sign * uneven())
    return choose_sides_many(many.like, many, code, SideSelection(KeptOfEach(1.0), bool(rank)), STEP)


@night
def test_means_have_the_order_of_the_cpu() -> None:
    in_order()


def test_there_is_room_for_what_two_sides_keep() -> None:
    for ratio in (1.0, 0.5, 1 / 3, 0.01, 1e-9):
        sides = SideSelection(KeptOfEach(ratio), False)
        for n in (1, 2, 3, 7, 100, 301):
            positive = torch.arange(n + 1)
            total = sides.kept(positive) + sides.kept(n - positive)
            assert int(total.max()) <= sides.room(n), (ratio, n)


# ---- mutants --------------------------------------------------------------------------------------------------------
@triton.jit
def _the_other_side(inside, p, side, SIDES: tl.constexpr):  # type: ignore[no-untyped-def]
    return on_side(inside, p, 1 - side, SIDES)


@triton.jit
def _one_mean(code, word, KIND: tl.constexpr):  # type: ignore[no-untyped-def]
    return word.to(tl.int32).to(tl.float32, bitcast=True) * (2 * code - 1)


@triton.jit
def _always_good(at, KIND: tl.constexpr):  # type: ignore[no-untyped-def]
    return tl.load(at).to(tl.int64) * 0, tl.load(at) >= 0


@triton.jit
def _half_a_front(KIND: tl.constexpr):  # type: ignore[no-untyped-def]
    return 4


def _backwards(many: TensorList, block: int, kind: int, tau: float = 0.0) -> Tensor:
    rows = [x.double().flip(1) for x in many.xs]
    parts = [(row.clamp(min=0), row.clamp(max=0), (row >= 0).double()) for row in rows]
    return torch.stack([torch.stack([part.cumsum(1)[0, -1] for part in three]) for three in parts], dim=1)


@triton.jit
def _in_order(first, n, key0, key1, step, CHUNK: tl.constexpr, RANKED: tl.constexpr):  # type: ignore[no-untyped-def]
    return first + tl.arange(0, RANKED)


MUTANTS: list[tuple[str, Any, Any]] = [
    ("selection.triton.on_side", _the_other_side, lambda: wires_and_sums("raw", 0.3, False)),
    ("selection.triton.sides.on_side", _the_other_side, lambda: wires_and_sums("raw", 0.3, False)),
    ("variable_sparse.triton.sided.number_of_code", _one_mean, lambda: wires_and_sums("raw", 0.3, False)),
    ("sparse_codes.triton.number_of_code", _one_mean, lambda: wires_and_sums("raw", 0.3, True)),
    ("sparse.triton.front_bytes_of", _half_a_front, lambda: wires_and_sums("raw", 0.3, True)),
    ("variable_sparse.triton.front_at", _always_good, fronts_alone),
    ("variable_sparse.triton.sided.ordered_sums_of_many", _backwards, in_order),
    ("random_masks.triton.rank_of", _in_order, lambda: wires_and_sums("raw", 0.5, False, sample=4)),
    (
        "variable_sparse.triton.sided.count_sampled",
        lambda kept, *_: kept,
        lambda: wires_and_sums("raw", 0.5, False, sample=4),
    ),
]


@pytest.mark.parametrize(
    ("place", "mutant", "test"),
    [
        case if case[0] == "variable_sparse.triton.sided.number_of_code" else pytest.param(*case, marks=night)
        for case in MUTANTS
    ],
)
def test_mutants_are_caught(place: str, mutant: Any, test: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"grace.kernels.{place}", mutant)
    with pytest.raises(CAUGHT):
        test()
