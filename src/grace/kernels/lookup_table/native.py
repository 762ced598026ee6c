"""The bindings of the native kernels for rounding to tables."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from grace.compute import native
from grace.compute.native import D, I, N, P, U
from grace.errors import PayloadError
from grace.kernels import check
from grace.kernels.blocks import block_count
from grace.kernels.lookup_table import code_bits
from grace.kernels.packing import packed_bytes

if TYPE_CHECKING:
    from grace.random import Stream

native.declare("encode_entries", P, P, N, N, P, I, N, P, N, U, U, U, P, P, P, U, U, U, I)
native.declare("sum_entries", P, N, N, N, P, I, I, P, I)
native.declare("decode_entries", P, N, N, I, N, P, P, N, N, D, U, U, U, I)
_SIZES, _MOST = (2, 4, 8, 16), 31  # of tables, and their largest entry
_EXACT = 1 << 24  # below, float32 holds all integers


def encode_entries(
    y: Tensor,
    bounds: Tensor,
    block: int,
    table: tuple[int, ...],
    world: int,
    rng: Stream,
    shared: Stream,
    rows: Tensor | None = None,
    memory: Tensor | None = None,
    rest: Tensor | None = None,
) -> Any:
    n = y.shape[1]
    if len(table) not in _SIZES or table[-1] > _MOST or n == 0:
        return NotImplemented
    given: tuple[int | None, ...] = (None, None, None)
    if rows is not None and rest is not None:
        check.numbers("rows", rows, (1, n))
        given = check.same_shape(rows, memory, rest)
    bits = code_bits(table)
    codes = torch.empty(world, packed_bytes(math.ceil(n / world), bits), dtype=torch.uint8, device="cpu")
    native.c.encode_entries(
        check.numbers("y", y, (1, n)), check.numbers("bounds", bounds, (1, block_count(n, block))), n, block,
        _entries(table), len(table), world,
        native.address("codes", codes, torch.uint8, codes.numel()), codes.shape[1],
        *rng.native_key(), *given, *shared.native_key(), native.threads(),
    )  # fmt: skip
    return codes


def sum_entries(received: Tensor, table: tuple[int, ...], count: int, bits: int) -> Any:
    world = received.shape[0]
    if len(table) not in _SIZES or table[-1] > _MOST or table[-1] * world >= _EXACT or bits > 32 or count == 0:
        return NotImplemented
    width = packed_bytes(count, code_bits(table))
    received = _side_by_side(received, width)
    sums = torch.empty(1, packed_bytes(count, bits), dtype=torch.uint8, device="cpu")
    native.c.sum_entries(
        native.address_of_rows("received", received, width), world, width, count, _entries(table), len(table), bits,
        native.address("sums", sums, torch.uint8, packed_bytes(count, bits)), native.threads(),
    )  # fmt: skip
    return sums


def decode_entries(sums: Tensor, bits: int, g: int, bounds: Tensor, out: Tensor, block: int, shared: Stream) -> Any:
    n, world = out.shape[1], sums.shape[0]
    most = g * world
    if most >= _EXACT or bits > 32 or n == 0:
        return NotImplemented
    width = packed_bytes(math.ceil(n / world), bits)
    sums = _side_by_side(sums, width)  # a copy lives as long as its address is used
    refused = native.c.decode_entries(
        native.address_of_rows("sums", sums, width), world, width, bits, most,
        check.numbers("bounds", bounds, (1, block_count(n, block))), check.numbers("out", out, (1, n)), n, block,
        2 / most, *shared.native_key(), native.threads(),
    )  # fmt: skip
    if refused:
        raise PayloadError(f"field 'sums' must be in [0, {most + 1})")
    return None


def _side_by_side(received: Tensor, width: int) -> Tensor:
    """A wire of ``width`` bytes from each worker, one behind the other."""
    check.wire_rows([received], received.shape[0], width)
    return received.contiguous()


def _entries(table: tuple[int, ...]) -> int:
    """The address of T as float32."""
    return native.address("table", _table(table), torch.float32, len(table))


@functools.cache
def _table(table: tuple[int, ...]) -> Tensor:
    """T as float32, kept for as long as its address is used."""
    return torch.tensor(table, dtype=torch.float32, device="cpu")
