"""The wires of sparse methods, written once: fields of any kind, then a list of indices in one of the codes.

Three layers; use the highest that fits:

- :func:`write_at_least_` or :func:`write_counted_`, and :func:`sum_counted`: as many as there are in each row
  (threshold, sidco, dgc);
- :func:`write_topk_` and :func:`sum_pairs`: k numbers per row, k known to both sides (top-k);
- :func:`join` and :func:`split`: other fields than values, such as signs and a scale.

Letters: b rows of n numbers, of which k are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from grace import wire as wires
from grace.errors import PayloadError
from grace.kernels.index_codes import codes as index_codes
from grace.kernels.selection import round_to_bfloat16, take_at_least, take_topk
from grace.kernels.sparse import (
    DENSE,
    LIST,
    Pairs,
    TopKPairs,
    WirePart,
    encode_pairs,
    encode_topk,
    sum_sparse,
    sum_topk,
)

ValueType: TypeAlias = Literal["float32", "bfloat16"]
Field: TypeAlias = tuple[str, torch.dtype, int]  # as in wire.split

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_DENSE = -1  # in place of the count: all n values follow, without indices
_COUNT: Field = ("count", torch.int32, 1)
_COUNT_BYTES = 4


# ---- any fields -----------------------------------------------------------------------------------------------------
def join(fields: Sequence[Tensor], index: Tensor, n: int, code: str) -> Tensor:
    """Fields ``[b, f_i]``, wide ones in front, then the lists ``[b, k]``: one wire uint8 ``[b, w]``."""
    return wires.join(*fields, index_codes.encode(index, n, code))


def split(wire: Tensor, fields: Sequence[Field], n: int, k: int, code: str, *, slack: bool = False) -> list[Tensor]:
    """The inverse of :func:`join`: each field ``[b, count]``, then the lists ``[b, k]``.

    Raises:
        PayloadError: a wire that is too short or too long, a number that is not finite, or an illegal list.
    """
    out = wires.split(wire, fields, slack=True)
    for (name, dtype, _), field in zip(fields, out, strict=True):
        if dtype.is_floating_point and not bool(field.isfinite().all()):
            raise PayloadError(f"field {name!r} must be finite")
    at = sum(count * dtype.itemsize for _, dtype, count in fields)
    return [*out, index_codes.decode(wire[:, at:], n, k, code, slack=slack)]


# ---- k pairs in each row --------------------------------------------------------------------------------------------
def pairs_bytes(n: int, pairs: TopKPairs) -> int | None:
    """Bytes of a wire of k pairs, in any code; None if they depend on the list."""
    size = index_codes.size(n, pairs.k, pairs.code)
    return None if size is None else pairs.before + size


def pairs_of(sizes: Sequence[int], kept: Callable[[int], int], code: str, values: str) -> Pairs:
    """The pairs in the wires of :func:`write_topk_` for rows of so many numbers n, of which ``kept(n)`` are sent. ``code``
    is not one whose size varies.
    """
    counts = tuple(kept(n) for n in sizes)
    codes = tuple(index_codes.fixed_code(n, k, code) for n, k in zip(sizes, counts, strict=True))
    return Pairs(counts, codes, values == "bfloat16")


def write_topk_(rows: Tensor, pairs: TopKPairs, memory: Tensor | None, rest: Tensor | None) -> tuple[Tensor, bool]:
    """The k largest of ``rows [b, n] + memory``, in any code -> (wire, whether that was finite); ``rest`` keeps what it
    leaves out, as :meth:`grace.Compressor.encode_` has them.
    """
    n, (k, code, narrow) = rows.shape[1], pairs
    if not index_codes.varies(code):
        return encode_topk(rows, TopKPairs(k, index_codes.fixed_code(n, k, code), narrow), memory, rest)
    index, sent, finite = take_topk(rows, k, memory, rest, narrow=narrow)
    return join([round_to_bfloat16(sent) if narrow else sent], index.long(), n, code), finite


def sum_pairs(received: Sequence[Tensor], out: Tensor, pairs: TopKPairs, scale: float, *, add: bool) -> None:
    """``out [b, n]`` = (or, with ``add``, +=) scale times the sum of what wires of :func:`write_topk_` decode to.

    Raises:
        PayloadError: a wire that is too short or too long, a number that is not finite, or an illegal list.
    """
    (b, n), (k, code, narrow), size = out.shape, pairs, pairs_bytes(out.shape[1], pairs)
    for wire in received:
        width = wire.shape[1]
        if len(wire) != b or (size is not None and width != size):
            cut = "truncated " if size is not None and width < size else ""
            raise PayloadError(
                f"{cut}payload of {len(wire)} times {width} bytes, but its fields end at {b} times {size}"
            )
    if k and size is not None:
        sum_topk(received, out, TopKPairs(k, index_codes.fixed_code(n, k, code), narrow), scale, add=add)
        return
    for j, row in enumerate(out):
        parts = [_part(wire[j], 0, pairs.before, n, k, code) for wire in received]
        sum_sparse(parts, row, scale, narrow=narrow, add=add)


def _part(wire: Tensor, values: int, codes: int, n: int, k: int, code: str) -> WirePart:
    """A row's wire ``[w]`` as a part: where its values and the codes of its k indices begin."""
    if k and index_codes.varies(code):
        return WirePart(wire, values, codes, k, LIST, index_codes.take(wire[None, codes:], n, k, code)[0][0])
    return WirePart(wire, values, codes, k, index_codes.fixed_code(n, k, code) if k else "raw")


# ---- as many as there are -------------------------------------------------------------------------------------------
def write_at_least_(
    rows: Tensor,
    bounds: Sequence[float],
    code: str,
    values: str,
    memory: Tensor | None,
    rest: Tensor | None,
    *,
    strict: bool = False,
) -> tuple[Tensor, bool]:
    """Writes the numbers that reach (strict: exceed) their row's bound -> (wire of :func:`write_counted_`, whether
    ``rows + memory`` was finite), with memory and rest as :meth:`grace.Compressor.encode_` has them.
    """
    narrow, out, all_finite = values == "bfloat16", [], True
    for j, (row, bound) in enumerate(zip(rows, bounds, strict=True)):
        e, left = None if memory is None else memory[j], None if rest is None else rest[j]
        index, sent, finite = take_at_least(row, bound, e, left, strict=strict, narrow=narrow)
        out.append(_join_counted(row, left, index, sent, code, values))
        all_finite = all_finite and finite
    return index_codes.pad(out), all_finite


def write_counted_(
    rows: Tensor, selected: Sequence[tuple[Tensor, Tensor]], code: str, values: str, keep_rest: bool
) -> Tensor:
    """``selected[j]``: places ``[k_j]`` of row j, ascending, and the numbers there -> wire ``[b, w]``, with zeros after
    shorter rows; with ``keep_rest``, rows keep what it leaves out.

    A row is a count (int32), its values, its indices; or -1 and all its values, where that is not larger.
    """
    out = []
    for row, (index, kept) in zip(rows, selected, strict=True):  # [n], [k], [k]
        sent = round_to_bfloat16(kept).float() if values == "bfloat16" else kept
        if keep_rest:
            row[index.long()] = kept - sent
        out.append(_join_counted(row, row if keep_rest else None, index, sent, code, values))
    return index_codes.pad(out)


def _join_counted(row: Tensor, rest: Tensor | None, index: Tensor, sent: Tensor, code: str, values: str) -> Tensor:
    """The wire ``[w]`` of ``sent [k]`` at ``index [k]``. ``rest`` is what is left of the row; None: it is whole."""
    n, k, dtype = row.numel(), index.numel(), _DTYPES[values]
    if k * dtype.itemsize + index_codes.most(n, k, code) >= n * dtype.itemsize:
        k, body = _DENSE, _dense(row, rest, index.long(), sent, dtype)
    elif index_codes.varies(code):
        body = join([sent[None].to(dtype)], index[None].long(), n, code)
    else:
        body = encode_pairs(index[None], sent[None], n, index_codes.fixed_code(n, k, code), narrow=values == "bfloat16")
    return wires.join(torch.tensor([[k]], dtype=torch.int32, device=row.device), body)[0]


def _dense(row: Tensor, rest: Tensor | None, index: Tensor, sent: Tensor, dtype: torch.dtype) -> Tensor:
    """All values ``[1, n]``, ``sent`` among them; ``rest`` keeps what they leave out."""
    whole = row if rest is None else rest
    body = round_to_bfloat16(whole) if dtype == torch.bfloat16 else whole.clone()
    if rest is not None:
        lost = rest[index]
        rest.sub_(body)
        rest[index] = lost
        body[index] = sent.to(dtype)
    return body[None]


def sum_counted(received: Sequence[Tensor], out: Tensor, scale: float, code: str, values: str, *, add: bool) -> None:
    """``out [b, n]`` = (or, with ``add``, +=) scale times the sum of what wires of :func:`write_counted_` decode to.

    Raises:
        PayloadError: as :func:`sum_pairs`; or a count that no sender writes.
    """
    n, width = out.shape[1], _DTYPES[values].itemsize
    for wire in received:
        if len(wire) != len(out):
            raise PayloadError(f"payload of {len(wire)} rows, but there are {len(out)}")
    for j, row in enumerate(out):
        parts = []
        for wire in received:
            k = int(wires.split(wire[j : j + 1], [_COUNT], slack=True)[0])
            if not _DENSE <= k <= n:
                raise PayloadError(f"field 'count' must be in [0, {n + 1}), or {_DENSE}, got {k}")
            if k == _DENSE:
                parts.append(WirePart(wire[j], _COUNT_BYTES, 0, 0, DENSE))
                continue
            at = _COUNT_BYTES + k * width
            if at > wire.shape[1]:
                raise PayloadError(f"truncated payload: field 'values' needs {at} bytes of {wire.shape[1]}")
            parts.append(_part(wire[j], _COUNT_BYTES, at, n, k, code))
        sum_sparse(parts, row, scale, narrow=values == "bfloat16", add=add)
