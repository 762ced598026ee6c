"""Every Triton kernel has a test that fails without it: a mutant per kernel, in Triton's interpreter.

A launch that is left out writes nothing, and fresh memory is zero here: nobody finds in it what was computed before. Where
that leads another kernel out of memory, its launch runs, and one of its outputs is overwritten.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="needs the package triton")

from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime.interpreter import GridExecutor

from grace.kernels.sampling import Chances
from grace.methods.drive import DRIVE
from grace.methods.fp8 import FP8
from grace.methods.lpc import LPC
from grace.methods.minmax import MinMax
from grace.methods.natural import Natural
from grace.methods.qsgd import QSGD
from grace.methods.qsparse import Qsparse
from grace.methods.u8bit import U8bit
from tests.unit.kernels import (
    test_triton,
    test_triton_affine,
    test_triton_casts,
    test_triton_count_sketches,
    test_triton_exceedances,
    test_triton_fp8,
    test_triton_gaps,
    test_triton_linear_quantization,
    test_triton_listed,
    test_triton_lists,
    test_triton_lookup_table,
    test_triton_low_rank,
    test_triton_minmax_sketch,
    test_triton_multi_tensor,
    test_triton_pairs,
    test_triton_quantiles,
    test_triton_random_masks,
    test_triton_rotation,
    test_triton_sampling,
    test_triton_sides,
    test_triton_tagged_fixed_point,
    test_triton_tensor_list,
    test_triton_ternary,
    test_triton_variable_sparse,
    test_triton_velocities,
)
from tests.unit.kernels.launched import read
from tests.unit.kernels.triton_checks import CAUGHT, interpreter
from tests.unit.kernels.triton_sanitizer import sanitize

__all__ = ["interpreter"]

FRESH = {
    torch.ops.aten.empty.memory_format, torch.ops.aten.empty_like.default, torch.ops.aten.empty_strided.default,
    torch.ops.aten.new_empty.default, torch.ops.aten.new_empty_strided.default,
}  # fmt: skip
# Of one launch of a kernel that the others trust: what overwrites its output.
INSTEAD: dict[str, tuple[str, int]] = {
    "kernels.selection._refine": ("finer", 1 << 10),
    "kernels.selection._tally": ("both", 0),
    "kernels.sampling._weigh": ("counts", 20),
    "kernels.tagged_fixed_point._tally": ("counts", 20),
    "kernels.minmax_sketch._hash": ("least", 0),
}


def factors(name: str) -> Callable[[], None]:
    return partial(test_triton_low_rank.test_those_of_a_bucket, name)


sides = partial(test_triton_sides.wires_and_sums, "raw", 0.3, False)
pairs = partial(test_triton_pairs.exchange, (3, 41), 0.2, "memory")
reaching = partial(test_triton_lists.reaching, 300, "few values", 1.0, False)
listed = partial(test_triton_listed.listed, True)
tails = partial(test_triton_exceedances.tails, torch.float32)
sampled = partial(
    test_triton_variable_sparse.wires_and_sums,
    test_triton_variable_sparse.AUTO,
    choose=test_triton_variable_sparse.sampled,
)
# A check, and what it fails without: a module, and kernels in it; behind the bar those that
# are left to the night: functions that they call have mutants where the checks are.
TABLE: list[tuple[Callable[[], None], str, str]] = [
    # ---- codes of blocks, and what they are made of
    (test_triton.codes(QSGD(bits=4), 30), "kernels.stochastic_levels", "_quantize _dequantize_sum"),
    (test_triton.codes(U8bit(block=7), 30), "kernels.dynamic_8bit", "_encode _sum"),
    (test_triton.codes(Natural(), 30), "kernels.log2_quantization", "_encode _sum"),
    (partial(test_triton_casts.test_rows_and_rests_in_place, torch.bfloat16), "kernels.casts", "_encode _sum"),
    (partial(test_triton_linear_quantization.codes, LPC(bits=4, block=7), 30), "kernels.linear_quantization", "_encode _sum"),
    (partial(test_triton_affine.codes, MinMax(block=8), 30), "kernels.affine", "_encode _sum"),
    (partial(test_triton_fp8.codes, FP8(), 30), "kernels.fp8", "_encode _sum"),
    (partial(test_triton_rotation.codes, DRIVE(block=16, rotation="shared"), 30), "kernels.rotation", "_sum | _sums _write"),
    (partial(test_triton_rotation.codes, DRIVE(block=16), 30), "kernels.rotation", "_sum_back"),
    (partial(test_triton_rotation.rotations, 50, 8), "kernels.rotation.transforms", "_rotate"),
    (partial(test_triton.bits, "signs", 33), "kernels.signs", "_encode _sum"),
    (partial(test_triton.statistics, 70, 16, 1), "kernels", "block_max_kernel piece_sum_kernel"),
    (partial(test_triton.statistics, 4097, 5000, 1), "kernels", "join_pieces_kernel"),
    (tails, "kernels.statistics", "_largest"),
    (tails, "kernels.exceedances", "_tail_sums"),
    (test_triton_listed.test_a_mean_that_is_tiny_is_no_mean, "kernels.statistics", "_piece_sums"),
    (partial(test_triton_lookup_table.test_tensors_of_a_bucket, *test_triton_lookup_table.CASES[0]), "kernels.lookup_table",
     "_sum | _encode _decode"),
    (test_triton_ternary.fixed, "kernels.ternary", "_quantize _sum"),
    # ---- random numbers and subsets
    (partial(test_triton.test_random_numbers_and_subsets, 7), "random", "_words _uniform"),
    (partial(test_triton.drawn, (1 << 20) + 1, 30), "random", "_walk"),
    (partial(test_triton.test_taking_and_adding_subsets, 64), "kernels.random_masks", "_take _add"),
    (partial(test_triton_random_masks.subsets, (70,), 0.3, None), "kernels.random_masks", "_draw _take_drawn _put_drawn"),
    (partial(test_triton_random_masks.subsets, (300,), 0.3, 1), "kernels.random_masks", "_count"),
    # ---- sums, flags, and copies
    (partial(test_triton.test_velocities, 70, False), "kernels.momentum", "_accelerate _forget"),
    (partial(test_triton_velocities.velocities, torch.float32, False), "kernels.momentum",
     "_accelerate_many _forget_many"),
    (partial(test_triton.test_sums_with_a_factor, 70, torch.float32), "kernels.sums", "_add_scaled"),
    (partial(test_triton.test_finiteness, torch.inf, torch.float32), "kernels.finite", "_look _add"),
    (partial(test_triton_tensor_list.test_what_all_ranks_say, test_triton_tensor_list.WAYS[0]),
     "kernels.tensor_list", "_agree"),
    (partial(test_triton_tensor_list.test_tensors_that_are_poisoned, torch.float32), "kernels.tensor_list", "_poison"),
    (partial(test_triton_tensor_list.test_memories_that_stay, True), "kernels.tensor_list", "_settle"),
    (partial(test_triton_multi_tensor.test_staging, torch.float32),
     "kernels.multi_tensor", "_pad _fetch _look _narrow _clear"),
    (partial(test_triton_multi_tensor.test_narrow_tensors_become_float32, torch.bfloat16), "kernels.multi_tensor", "_sum"),
    (partial(test_triton_multi_tensor.test_tensors_are_scaled, torch.float32), "kernels.multi_tensor", "_scale"),
    (partial(test_triton_multi_tensor.test_what_is_summed_in_sixteen_bits, torch.bfloat16),
     "kernels.multi_tensor", "_round _widen"),
    (test_triton_multi_tensor.test_weighed_sums_of_rounded_products, "kernels.multi_tensor", "_weigh"),
    # ---- thin factors
    (factors("draw"), "kernels.low_rank.grouped", "draw_kernel"),
    (factors("rows"), "kernels.low_rank", "rows_kernel join_kernel"),
    (factors("columns"), "kernels.low_rank", "columns_kernel"),
    (factors("split"), "kernels.low_rank", "split_kernel"),
    (factors("add"), "kernels.low_rank", "add_kernel"),
    (factors("bases"), "kernels.low_rank.bases", "_orthonormalize"),
    (factors("units"), "kernels.low_rank.bases", "unit_rows_kernel"),
    (factors("fit"), "kernels.low_rank.bases", "fit_kernel"),
    (factors("succeed"), "kernels.low_rank.bases", "succeed_kernel"),
    (factors("turn"), "kernels.low_rank.bases", "turn_kernel"),
    (factors("ridges"), "kernels.low_rank.ridge", "solve_kernel"),
    (factors("unit_columns"), "kernels.low_rank.ridge", "unit_columns_kernel"),
    # ---- lists
    (partial(test_triton_lists.fields, 11, 300), "kernels.packing", "_pack _unpack"),
    (partial(test_triton_lists.test_digits, 6), "kernels.packing", "_pack_trits _unpack_trits"),
    (reaching, "kernels.bit_streams", "scan_kernel"),
    (reaching, "kernels.selection", "_emit"),
    (reaching, "kernels.selection.candidates", "_measure"),
    (partial(test_triton_lists.selections, 300, ["heavy tails"], {1}), "kernels.selection.candidates", "_estimate"),
    (partial(test_triton_lists.selections, 300, ["few values"], {100}), "kernels.selection", "_refine"),
    (partial(test_triton_lists.selections, 4097, ["few values"], {3000}), "kernels.selection", "_tally"),
    (sides, "kernels.selection.sides", "| _list"),
    (sides, "kernels.variable_sparse.sided", "| _encode"),
    (partial(test_triton_lists.pairs, 300, 7, "raw", False), "kernels.sparse", "_add_part"),
    (pairs, "kernels.sparse", "| _write _sum_lists"),
    (pairs, "kernels.index_codes.fixed", "| _count _read"),
    (partial(test_triton_listed.compressed, Qsparse(ratio=0.3), True, sizes=(5, 9)), "kernels.sparse", "| _clear"),
    (listed, "kernels.sparse", "| _put _take"),
    (listed, "kernels.index_codes.fixed", "| _write"),
    (partial(test_triton_lists.test_lists_that_do_not_increase_in_range_are_refused, 1),
     "kernels.index_codes.fixed", "_check"),
    (partial(test_triton_gaps.small, "rice"), "kernels.index_codes.variable", "_measure _lay _write _count _place _finish"),
    # ---- codes as long as the data want
    (partial(test_triton_variable_sparse.wires_and_sums, test_triton_variable_sparse.AUTO),
     "kernels.variable_sparse", "| _plan _open"),
    (sampled, "kernels.variable_sparse", "| _sample _levels"),
    (sampled, "kernels.selection", "| _pick"),
    (partial(test_triton_sampling.units, Chances(0.3, None, 2, False), (64,)), "kernels.sampling.search", "_look _end"),
    (partial(test_triton_sampling.wires_and_sums, "auto", sizes=(40,), world=1), "kernels.sampling",
     "_write _open | _weigh _plan _emit"),
    (partial(test_triton_sampling.wires_and_sums, "delta", test_triton_sampling.MOST_OF_THEM, (12,), 1),
     "kernels.sampling", "_expect"),
    (partial(test_triton_ternary.exchange, (20,), 0.1, 1), "kernels.ternary", "_write | _count _measure _lengthen"),
    (partial(test_triton_tagged_fixed_point.exchange, 6, False, (20,), 1.0, 1),
     "kernels.tagged_fixed_point", "_count | _tally _write _sum"),
    # ---- sketches
    (partial(test_triton_count_sketches.test_sketches_of_a_bucket, test_triton_count_sketches.CASES[1]),
     "kernels.count_sketches", "_assign | _add _read"),
    (partial(test_triton_quantiles.test_wires_of_a_bucket, test_triton_quantiles.CASES[2]), "kernels.quantiles",
     "_drop _sum | _look _sample _cut _encode _add"),
    (test_triton_minmax_sketch.exchange, "kernels.minmax_sketch", "| _write _look _encode _lay _hash _drop"),
    (test_triton_minmax_sketch.exchange, "kernels.minmax_sketch.read", "_decode | _open _tally _bound"),
]  # fmt: skip
CASES: list[tuple[str, Callable[[], None], Any]] = [
    (f"{module}.{name}", check, marks)
    for check, module, names in TABLE
    for part, marks in zip(
        names.split("|"),
        (pytest.mark.tier("test"), pytest.mark.night("a Triton kernel that does not run")),
        strict=False,
    )
    for name in part.split()
]


class Zeroed(TorchDispatchMode):
    """Fresh memory is zero."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        answer = func(*args, **(kwargs or {}))
        return answer.zero_() if func in FRESH else answer


@contextmanager
def launches(without: str | None = None) -> Iterator[Counter[str]]:
    """Counts the launches of each kernel here. Those of one are left out, or spoiled."""
    seen, launch = Counter[str](), GridExecutor.__call__
    name, value = INSTEAD.get(without or "", ("", 0))

    def run(executor: Any, *args: Any, **kwargs: Any) -> None:
        module = executor.fn.__module__.removeprefix("grace.").replace(".triton", "")
        seen[kernel := f"{module}.{executor.fn.__name__}"] += 1
        if kernel != without or name:
            launch(executor, *args, **kwargs)
        if kernel == without and name:
            args[executor.arg_names.index(name)].fill_(value)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(GridExecutor, "__call__", run)
        yield seen


@cache
def launched_by(check: Callable[[], None]) -> Counter[str]:
    """Counts of the kernels that a check launches, and passes."""
    with launches() as seen:
        check()
    return seen


def test_of_no_kernel_it_is_unknown_who_misses_it() -> None:
    """A new kernel needs a statement of what fails without it."""
    assert sorted(kernel for kernel, _, _ in CASES) == sorted(read().ways)


@pytest.mark.parametrize(
    ("kernel", "check"), [pytest.param(kernel, check, marks=marks, id=kernel) for kernel, check, marks in CASES]
)
def test_a_kernel_that_does_not_run_is_missed(kernel: str, check: Callable[[], None]) -> None:
    """Catches "a Triton kernel that does not run"."""
    assert launched_by(check)[kernel]
    with launches(without=kernel) as seen, sanitize(races=False), Zeroed(), pytest.raises(CAUGHT):
        check()
    assert seen[kernel]
