"""Wires of values and indices: written from a selection, and summed straight into a dense vector.

A wire holds k values (float32 or bfloat16), then the code of their indices (``grace.kernels.indices``). The torch functions
below specify what the native kernels do, to the bit.

Letters: b rows of n numbers, of which k are kept; W wires.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Final, NamedTuple

import torch
from torch import Tensor

from grace import backends, native
from grace import wire as wires
from grace.errors import InputError, PayloadError
from grace.kernels import check
from grace.kernels.indices import checked_list, decode_indices, encode_indices, layout, refused
from grace.kernels.select import addresses, narrowed, take_topk

LIST: Final = "list"  # in place of a code: the indices are there
DENSE: Final = "dense"  # in place of a code: all n values, without indices
_NUMBERS = {"raw": 0, "bitmap": 1, "elias-fano": 2, LIST: 3, DENSE: 4}
_NOT_FINITE = -1
_WIRE = native.declare(
    "topk_wire",
    *(native.P, native.P, native.P, native.N, native.N, native.N, native.I),
    *(native.I, native.I, native.P, native.N, native.I),
)
_PAIRS = native.declare("write_pairs", native.P, native.P, native.N, native.N, native.I, native.I, native.I, native.P)
_SUM = native.declare(
    "sparse_sum",
    *(native.P, native.P, native.P, native.P, native.P, native.N, native.P, native.N),
    *(native.I, native.F, native.I, native.I),
)


class Part(NamedTuple):
    """What one wire says about one row.

    wire: uint8 ``[w]``, bytes side by side; its values begin at byte ``values``, the code of its k indices at ``codes``.
    code: of :data:`grace.kernels.indices.FIXED`; or LIST, with ``places [k]`` (int32 or int64) instead of
        codes; or DENSE.
    """

    wire: Tensor
    values: int
    codes: int
    k: int
    code: str
    places: Tensor | None = None


def topk_wire(
    rows: Tensor, k: int, code: str, memory: Tensor | None, rest: Tensor | None, *, narrow: bool
) -> tuple[Tensor, bool]:
    """The wires uint8 ``[b, w]`` of the k largest of ``rows + memory``, and whether that was finite: :func:`take_topk`."""
    b, n = rows.shape
    fast = backends.function(_WIRE) if rows.device.type == "cpu" else None
    if fast is None:
        index, sent, finite = take_topk(rows, k, memory, rest, narrow=narrow)
        return pairs(index, sent, n, code, narrow=narrow), finite
    number, low, size = layout(n, k, code)
    width = k * (2 if narrow else 4) + size
    wire = torch.empty(b, width, dtype=torch.uint8)
    done = fast(
        *(*addresses(rows, memory, rest), b, n, k, narrow, number, low, wire.data_ptr(), width, native.threads())
    )
    if done < 0:
        refused(done, n, k)
    return wire, bool(done)


def pairs(index: Tensor, sent: Tensor, n: int, code: str, *, narrow: bool) -> Tensor:
    """The wires ``[b, w]`` of values ``[b, k]`` at the places ``[b, k]``: ascending, below n, int32 or int64."""
    b, k = index.shape
    fast = backends.function(_PAIRS) if index.dtype is torch.int32 and sent.is_contiguous() else None
    if fast is None or b != 1:
        values = narrowed(sent) if narrow else sent
        return wires.join(values, encode_indices(index.long(), n, code)) if k else wires.join(values)
    number, low, size = layout(n, k, code)
    wire = torch.empty(b, k * (2 if narrow else 4) + size, dtype=torch.uint8)
    fast(index.data_ptr(), sent.data_ptr(), k, n, narrow, number, low, wire.data_ptr())
    return wire


def sparse_sum(parts: Sequence[Part], out: Tensor, weight: float, *, narrow: bool, add: bool = False) -> None:
    """Out ``[n]`` = (or, with ``add``, +=) weight times the sum of what the parts say, added in their order.

    Raises:
        PayloadError: too short a wire, values that are not finite, or an illegal list; ``out`` is then undefined.
    """
    n, width = out.numel(), 2 if narrow else 4
    layouts = []
    for part in parts:
        known = part.code in ("raw", "bitmap", "elias-fano")
        number, low, size = layout(n, part.k, part.code) if known else (_NUMBERS[part.code], 0, 0)
        _inside("values", part, part.values, (n if part.code == DENSE else part.k) * width)
        _inside("indices", part, part.codes, size)
        layouts.append((number, low))
    fast = backends.function(_SUM) if out.device.type == "cpu" else None
    if fast is None:
        if not add:
            out.zero_()
        for part in parts:
            _add(part, out, weight, narrow)
        return
    W = len(parts)
    lists = [None if part.places is None else part.places.to(torch.int32).contiguous() for part in parts]
    codes = [p.wire.data_ptr() + p.codes if i is None else i.data_ptr() for p, i in zip(parts, lists, strict=True)]
    why = fast(
        check.pointers([part.wire.data_ptr() + part.values for part in parts]),
        check.pointers(codes),
        (ctypes.c_int64 * W)(*[part.k for part in parts]),
        (ctypes.c_int32 * W)(*[number for number, _ in layouts]),
        (ctypes.c_int32 * W)(*[low for _, low in layouts]),
        *(W, check.numbers("out", out), n, narrow, weight, add, native.threads()),
    )
    if why == _NOT_FINITE:
        raise PayloadError(_BAD_VALUES)
    refused(why, n, parts[0].k if parts else 0)


_BAD_VALUES = "field 'values' must be finite"


def _inside(name: str, part: Part, at: int, size: int) -> None:
    wire = part.wire
    if wire.dtype is not torch.uint8 or wire.ndim != 1 or (wire.numel() > 1 and wire.stride(0) != 1):
        raise InputError(f"kernels: a wire must be uint8 [w] with bytes side by side, got {wire.dtype} {wire.shape}")
    if at + size > wire.numel():
        raise PayloadError(f"truncated payload: field {name!r} needs bytes {at} to {at + size} of {wire.numel()}")


# ---- the specification ----------------------------------------------------------------------------------------------
def _add(part: Part, out: Tensor, weight: float, narrow: bool) -> None:
    n, dtype = out.numel(), torch.bfloat16 if narrow else torch.float32
    count = n if part.code == DENSE else part.k
    (values,) = wires.split(part.wire[None, part.values :], [("values", dtype, count)], slack=True)
    if not bool(values.isfinite().all()):
        raise PayloadError(_BAD_VALUES)
    said = values[0].float() * weight
    if part.code == DENSE:
        out.add_(said)
    elif part.k:
        if part.places is not None:
            index = checked_list(part.places[None].long(), n)
        else:
            end = part.codes + layout(n, part.k, part.code).size
            index = decode_indices(part.wire[None, part.codes : end], n, part.k, part.code)
        out.scatter_add_(0, index[0], said)
