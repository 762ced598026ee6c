"""The bindings of the native kernels for codebooks."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from grace.compute import native
from grace.compute.native import F, I, N, P
from grace.errors import PayloadError
from grace.kernels.calling import LAYOUTS, Layout, decode, encode
from grace.kernels.calling_many import encode_many, sum_many
from grace.kernels.dynamic_8bit import BAD_CODE, BAD_SCALE, Codebook, codebook_bytes
from grace.kernels.dynamic_8bit.book import CELLS, SIZE
from grace.kernels.tensor_list import TensorList

native.declare("codebook", P, P, P, N, N, N, P, N, P, P, P, I)
native.declare("codebook_sum", P, N, P, N, N, P, F, I, I)


def encode_codebook(
    rows: Tensor, book: Codebook, block: int, memory: Tensor | None = None, rest: Tensor | None = None
) -> tuple[Tensor, bool]:
    return encode(native.c.codebook, _encode_layout(rows.shape[1], book, block), rows, memory, rest)


def sum_codebook(
    received: Sequence[Tensor], out: Tensor, book: Codebook, block: int, weight: float, *, add: bool = False
) -> None:
    fault = decode(native.c.codebook_sum, _decode_layout(out.shape[1], book, block), received, out, weight, add)
    if fault:
        raise PayloadError(BAD_SCALE if fault == native.BAD_HEAD else BAD_CODE)


def encode_codebook_many(message: Tensor, many: TensorList, book: Codebook, block: int) -> Any:
    layout = functools.partial(_encode_layout, book=book, block=block)
    return encode_many(native.c.codebook, message, many, layout, (book, block))


def sum_codebook_many(rows: Tensor, many: TensorList, book: Codebook, block: int, weight: float) -> Any:
    layout = functools.partial(_decode_layout, book=book, block=block)
    return sum_many(native.c.codebook_sum, rows, many, layout, (book, block), (weight, False))


@functools.lru_cache(LAYOUTS)
def _encode_layout(n: int, book: Codebook, block: int) -> Layout:
    middle = native.address("middle", book.middle, torch.float32, SIZE)
    tables = _entries(book), P(middle), P(native.address("floor", book.floor, torch.uint8, CELLS))
    return Layout(codebook_bytes(n, block), n, block, *tables)


@functools.lru_cache(LAYOUTS)
def _decode_layout(n: int, book: Codebook, block: int) -> Layout:
    return Layout(codebook_bytes(n, block), n, block, _entries(book))


def _entries(book: Codebook) -> Any:
    return P(native.address("entries", book.entries, torch.float32, SIZE))
