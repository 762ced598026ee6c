"""Every binding checks dtype, device and length of what it hands to C."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import grace.kernels
from grace.compute import backends, native
from grace.errors import InputError, PayloadError
from grace.kernels import check
from grace.kernels.affine import native as affine
from grace.kernels.dynamic_8bit import Codebook
from grace.kernels.dynamic_8bit import native as dynamic_8bit
from grace.kernels.finite import native as finite
from grace.kernels.fp8 import E4M3
from grace.kernels.fp8 import native as fp8
from grace.kernels.index_codes.fixed import native as fixed_codes
from grace.kernels.linear_quantization import FixedPoint
from grace.kernels.linear_quantization import native as linear_quantization
from grace.kernels.log2_quantization import native as log2_quantization
from grace.kernels.lookup_table import native as lookup_table
from grace.kernels.low_rank import native as low_rank
from grace.kernels.momentum import native as momentum
from grace.kernels.packing import native as packing
from grace.kernels.quantiles import native as quantiles
from grace.kernels.random_masks import native as random_masks
from grace.kernels.rotation import CentroidCode
from grace.kernels.rotation import native as rotation
from grace.kernels.selection import native as selection
from grace.kernels.signs import native as signs
from grace.kernels.sparse import TopKPairs, WirePart
from grace.kernels.sparse import native as sparse
from grace.kernels.statistics import native as statistics
from grace.kernels.stochastic_levels import Levels
from grace.kernels.stochastic_levels import native as stochastic_levels
from grace.kernels.sums import native as sums
from grace.methods.u8bit import table
from grace.random import Stream
from tests.unit.kernels.native_checks import needs_native

random = importlib.import_module("grace.random.native")  # in grace.random, `native` is another module
N, B, K = 64, 16, 8
RNG = Stream(0, "test", "w", 0, 0)
BOOK = Codebook.of(table("tree"))
TABLE = (0, 1, 2, 4)
CALLED_OTHERWISE = {"call_many"}  # tables of calls: tests/unit/kernels/test_call_table.py
ANY_DTYPE = {"pack.values"}  # integers of any width; others are copied
Call = tuple[Callable[..., Any], dict[str, Any]]


def row(n: int = N) -> Tensor:
    return torch.randn(1, n, generator=torch.Generator().manual_seed(n))


def calls() -> Iterator[Call]:
    """Legal calls of all bindings, by their arguments' names. The first tensor says how long the others have to be."""
    lent: dict[str, Any] = {"memory": row(), "rest": row()}
    pairs: list[tuple[Callable[..., Any], dict[str, Any], Callable[..., Any], dict[str, Any]]] = [
        (dynamic_8bit.encode_codebook, {"book": BOOK, "block": B}, dynamic_8bit.sum_codebook, {"book": BOOK, "block": B}),
        (
            stochastic_levels.quantize, {"levels": Levels(7, B), "rng": RNG},
            stochastic_levels.dequantize_sum, {"levels": Levels(7, B)},
        ),
        (signs.encode_signs, {"block": B, "phase": 0}, signs.sum_signs, {"block": B}),
        (signs.encode_two_means, {"tau": 0.0, "block": B}, signs.sum_two_means, {"block": B}),
        (signs.encode_votes, {"zero": "abstain", "phase": 0}, signs.sum_votes, {"zero": "abstain"}),
        (signs.encode_votes, {"zero": "parity", "phase": 0}, signs.take_majority, {"zero": "parity"}),
        (
            linear_quantization.encode_fixed, {"code": FixedPoint(4, B, nearest=True), "rng": RNG},
            linear_quantization.sum_fixed, {"code": FixedPoint(4, B)},
        ),
        (affine.encode_affine, {"bits": 4, "block": B, "rng": RNG}, affine.sum_affine, {"bits": 4, "block": B}),
        (
            fp8.encode_floats, {"kind": E4M3, "block": B, "rng": None},
            fp8.sum_floats, {"kind": E4M3, "block": B},
        ),
        (
            log2_quantization.encode_powers, {"bits": 8, "block": B, "rng": RNG},
            log2_quantization.sum_powers, {"bits": 8, "block": B},
        ),
        (
            quantiles.encode_quantiles, {"q": 8, "zero_edge": False, "seen": N, "rng": RNG},
            quantiles.sum_quantiles, {"q": 8},
        ),
        (
            rotation.encode_rotated, {"code": CentroidCode(2, B, unbiased=False), "rng": RNG},
            rotation.sum_rotated, {"code": CentroidCode(2, B, unbiased=False), "rng": RNG},
        ),
        (
            sparse.encode_topk, {"pairs": TopKPairs(K, "raw")},
            sparse.sum_topk, {"pairs": TopKPairs(K, "raw")},
        ),
    ]  # fmt: skip
    for encode, knobs, decode, decoding in pairs:
        yield encode, {"rows": row(), **knobs, **lent}
        wire, _ = encode(**{"rows": row(), **knobs, "memory": None, "rest": None})
        yield decode, {"out": row(), "received": [wire, wire], **decoding, "weight": 0.5}

    index = torch.arange(K, dtype=torch.int32)[None]
    yield sparse.encode_pairs, {"index": index, "sent": row(K), "n": N, "code": "raw", "narrow": False}
    wire = sparse.encode_pairs(index, row(K), N, "raw", narrow=False)
    part = WirePart(wire[0], 0, 4 * K, K, "raw")
    yield sparse.sum_sparse, {"out": torch.zeros(N), "parts": [part], "weight": 0.5, "narrow": False}
    yield fixed_codes.encode_indices, {"index": index.long(), "n": N, "code": "raw"}
    packed = fixed_codes.encode_indices(index.long(), N, "raw")
    yield fixed_codes.decode_indices, {"packed": packed, "n": N, "k": K, "code": "raw"}
    yield packing.pack, {"values": torch.ones(1, N, dtype=torch.int32), "bits": 3}
    yield packing.unpack, {"packed": packing.pack(torch.ones(1, N, dtype=torch.int32), 3), "bits": 3, "n": N}
    yield selection.select_topk, {"rows": row(), "k": K}
    yield selection.take_topk, {"rows": row(), "k": K, **lent}
    yield selection.select_at_least, {"row": row(), "bound": 0.5}
    yield selection.take_at_least, {"row": row(), "bound": 0.5, **lent}
    yield random_masks.take_subset, {"rows": row(), "k": K, "rng": RNG}
    yield random_masks.add_subset, {"out": row(), "received": [row(K), row(K)], "weight": 0.5, "rng": RNG}
    yield sums.add_scaled_, {"out": row(), "x": row(), "scale": 0.5}
    yield statistics.block_abs_mean, {"rows": row(), "block": B}
    yield statistics.block_norm, {"rows": row(), "block": B}
    yield statistics.block_sum, {"rows": row(), "block": B}
    yield statistics.square_sum, {"row": row(), "memory": row()}
    yield finite.all_finite, {"x": row()}
    yield finite.sum_finite, {"x": row(), "memory": row(), "out": row()}
    both = torch.zeros(2, N)
    yield (
        momentum.accelerate,
        {"x": torch.zeros(N), "memory": both, "momentum": 0.9, "nesterov": False, "out": both.clone()},
    )
    yield momentum.forget_sent, {"u": row(), "v": row(), "x": row(), "rest": row()}
    matrix, q, p = torch.ones(8, 6), torch.ones(2, 6), torch.ones(2, 8)
    yield low_rank.project_rows, {"matrix": matrix, "q": q}
    yield low_rank.project_columns, {"matrix": matrix, "p": p}
    yield low_rank.split_low_rank, {"p": p, "x": matrix, "own": q, "q": q, "out": matrix.clone()}
    yield low_rank.add_low_rank_, {"out": matrix.clone(), "p": p, "q": q, "scale": 0.5}
    yield low_rank.orthonormalize, {"p": torch.eye(2, 8)}
    yield low_rank.solve_ridge, {"p": torch.eye(2, 8), "lam": 0.1}
    yield rotation.hadamard, {"rows": row(), "block": B}
    yield rotation.rotate_blocks, {"rows": row(), "block": B, "rng": RNG}
    yield rotation.rotate_norms, {"rows": row(), "block": B, "rng": RNG, "out": row(), "memory": row()}
    bounds = torch.ones(1, N // B)
    entries = {"bounds": bounds, "block": B, "table": TABLE, "world": 2, "rng": RNG, "shared": RNG}
    yield lookup_table.encode_entries, {"y": row(), **entries, "rows": row(), "memory": row(), "rest": row()}
    codes = lookup_table.encode_entries(row(), **entries)
    yield lookup_table.sum_entries, {"received": codes, "table": TABLE, "count": N // 2, "bits": 4}
    summed = torch.cat([lookup_table.sum_entries(codes, TABLE, N // 2, 4)] * 2)
    yield lookup_table.decode_entries, {
        "out": row(), "sums": summed, "bits": 4, "g": 4, "bounds": bounds, "block": B, "shared": RNG
    }  # fmt: skip
    yield random.fill_words, {"out": torch.zeros(4, 2, dtype=torch.int32), "rng": RNG, "first": 0}
    yield random.fill_uniform, {"out": torch.zeros(9), "rng": RNG, "first": 0}
    yield random.fill_subset, {"out": torch.zeros(K, dtype=torch.int64), "rng": RNG, "n": N}


class Recorder:
    """The C functions, of which it is noted which were called."""

    def __init__(self, functions: native.Functions):
        self._functions, self.called = functions, set[str]()

    def __getattr__(self, name: str) -> Any:
        self.called.add(name)
        return getattr(self._functions, name)


class Forbidden:
    """C functions that nobody may call."""

    def __getattr__(self, name: str) -> Any:
        def call(*_: Any) -> int:
            raise AssertionError(f"{name} was called")

        return call


def spoil(kind: str, x: Tensor) -> Tensor:
    if kind == "dtype":
        return x.double() if x.is_floating_point() else x.to(torch.int16)
    if kind == "device":
        return x.to("meta")
    return x.narrow(-1, 0, x.shape[-1] - 1).contiguous()


def spoiled(kind: str, given: dict[str, Any], name: str) -> dict[str, Any]:
    value = given[name]
    if isinstance(value, Tensor):
        return {**given, name: spoil(kind, value)}
    first = value[0]
    bad = first._replace(wire=spoil(kind, first.wire)) if isinstance(first, WirePart) else spoil(kind, first)
    return {**given, name: [bad, *value[1:]]}


def tensors_of(given: dict[str, Any]) -> list[str]:
    return [
        name for name, x in given.items()
        if isinstance(x, Tensor) or (isinstance(x, list) and isinstance(x[0], Tensor | WirePart))
    ]  # fmt: skip


def find_unchecked(kind: str, monkeypatch: pytest.MonkeyPatch, of: Sequence[Call]) -> list[str]:
    """The arguments that reach C although they are wrong in this."""
    reached = []
    monkeypatch.setattr(native, "c", Forbidden())
    for binding, given in of:
        names = tensors_of(given)
        for name in names[1:] if kind == "length" else names:
            where = f"{binding.__name__}.{name}"
            if kind == "dtype" and where in ANY_DTYPE:
                continue
            try:
                if binding(**spoiled(kind, given, name)) is not NotImplemented:
                    reached.append(f"{where}: no error")
            except (InputError, PayloadError) as error:
                if not any(word in str(error) for word in (*given, "payload", "wire")):
                    reached.append(f"{where}: an error that names no argument: {error}")
            except AssertionError as error:
                reached.append(f"{where}: {error}")
    return reached


@pytest.fixture
def legal() -> list[Call]:
    grace.kernels.all_finite(torch.zeros(3))  # a backend is chosen
    with backends.using("native"):
        return list(calls())


@needs_native
def test_all_bindings_are_here(legal: list[Call], monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(native.c)
    monkeypatch.setattr(native, "c", recorder)
    for binding, given in legal:
        assert binding(**given) is not NotImplemented, binding.__name__
    declared = {name for name, types in native._signatures.items() if types}
    assert recorder.called - {"number_of"} == declared - CALLED_OTHERWISE


@needs_native
@pytest.mark.parametrize("kind", ["dtype", "device", "length"])
def test_what_is_wrong_does_not_reach_c(kind: str, legal: list[Call], monkeypatch: pytest.MonkeyPatch) -> None:
    unchecked = find_unchecked(kind, monkeypatch, legal)
    assert unchecked == []


@needs_native
@pytest.mark.parametrize(
    ("where", "name", "kind"),
    [
        (native, "address", "dtype"), (native, "address", "length"), (native, "address_of_rows", "device"),
        (check, "numbers", "dtype"), (check, "numbers", "device"), (check, "numbers", "length"),
    ],
)  # fmt: skip
def test_a_check_that_is_left_out_is_caught(
    where: Any, name: str, kind: str, legal: list[Call], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, name, lambda name, x, *_: 0)
    unchecked = find_unchecked(kind, monkeypatch, legal)
    assert len(unchecked) > 0


def test_an_error_says_what_was_given_and_what_is_legal() -> None:
    with pytest.raises(
        InputError, match=r"wire must be contiguous float32 3 numbers, got torch.bfloat16 \[3\]; use .to"
    ):
        native.address("wire", torch.zeros(3, dtype=torch.bfloat16), torch.float32, 3)
    with pytest.raises(InputError, match=r"contiguous int32 4 numbers, got torch.int32 \[3\], on meta"):
        native.address("index", torch.zeros(3, dtype=torch.int32, device="meta"), torch.int32, 4)
    with pytest.raises(InputError, match=r"not contiguous"):
        native.address("x", torch.zeros(3, 2).t(), torch.float32, 6)
    with pytest.raises(InputError, match=r"uint8 rows of at least 5 bytes, got torch.uint8 \[1, 4\]"):
        native.address_of_rows("packed", torch.zeros(1, 4, dtype=torch.uint8), 5)


def test_no_binding_asks_for_an_address_unchecked() -> None:
    rooms = Path(inspect.getfile(grace.kernels)).parent, Path(inspect.getfile(grace.random)).parent
    files = [file for room in rooms for file in room.rglob("native.py")]
    assert len(files) > 15
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            assert not (isinstance(node, ast.Attribute) and node.attr == "data_ptr"), f"{file}:{node.lineno}"
