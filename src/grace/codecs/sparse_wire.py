"""The wires of sparse methods, written once: fields of any kind, then a list of indices in one of the codes.

Three layers; use the highest that fits:

- :func:`counted_` and :func:`add_counted_`: whatever was selected in each row, as many as there are (threshold, sidco);
- :func:`pairs_` and :func:`add_pairs_`: k selected numbers per row, k known to both sides (top-k);
- :func:`join` and :func:`split`: other fields than values, such as signs and a scale.

Letters: b rows of n numbers, of which k are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from grace import wire as wires
from grace.codecs import indices
from grace.errors import PayloadError, out_of_range

ValueType: TypeAlias = Literal["float32", "bfloat16"]
Field: TypeAlias = tuple[str, torch.dtype, int]  # as in wire.split

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
BF16_CONTRACTION = 1 - 2.0**-18  # of rounding to 8 significant bits: an error of 2**-9 at most
_DENSE = -1  # in place of the count: all n values follow, without indices
_COUNT: Field = ("count", torch.int32, 1)


def check_knobs(owner: str, index: str, values: str = "float32") -> None:
    """The knobs ``index`` and ``values`` of a method.

    Raises:
        ConfigurationError: an unknown code or type.
    """
    indices.check_code(owner, index)
    if values not in _DTYPES:
        raise out_of_range(owner, "values", values, ", ".join(map(repr, _DTYPES)))


# ---- any fields -----------------------------------------------------------------------------------------------------
def join(fields: Sequence[Tensor], index: Tensor, n: int, code: str) -> Tensor:
    """Fields ``[b, f_i]``, wide ones in front, then the lists ``[b, k]``: one wire uint8 ``[b, w]``."""
    return wires.join(*fields, indices.encode(index, n, code))


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
    return [*out, indices.decode(wire[:, at:], n, k, code, slack=slack)]


# ---- k pairs in each row --------------------------------------------------------------------------------------------
def pairs_bytes(n: int, k: int, code: str, values: str) -> int | None:
    """Bytes of a wire of k pairs; None if they depend on the list."""
    size = indices.size(n, k, code)
    return None if size is None else k * _DTYPES[values].itemsize + size


def pairs_(rows: Tensor, index: Tensor, code: str, values: str, keep_rest: bool) -> Tensor:
    """The numbers at ``index [b, k]`` of ``rows [b, n]`` -> wire; with ``keep_rest``, rows keep what it does not say."""
    kept = rows.gather(1, index)
    sent = narrowed(kept, values)
    wire = join([sent], index, rows.shape[1], code)
    if keep_rest:
        rows.scatter_(1, index, kept.sub_(sent))
    return wire


def add_pairs_(wire: Tensor, out: Tensor, scale: float, k: int, code: str, values: str) -> None:
    """``out [b, n]`` += scale times what a wire of :func:`pairs_` says."""
    n = out.shape[1]
    slack = indices.varies(code)  # rows of several lengths are padded
    sent, index = split(wire, [("values", _DTYPES[values], k)], n, k, code, slack=slack)
    out.scatter_add_(1, index, sent.float() * scale)


def narrowed(values: Tensor, dtype: str) -> Tensor:
    """Finite numbers in the type that travels, finite still: bfloat16 rounds to nearest, and never up to infinity."""
    if dtype == "float32":
        return values
    largest = torch.finfo(torch.bfloat16).max
    return values.clamp(-largest, largest).to(torch.bfloat16)


# ---- as many as there are -------------------------------------------------------------------------------------------
def counted_(rows: Tensor, selected: Sequence[Tensor], code: str, values: str, keep_rest: bool) -> Tensor:
    """The numbers at ``selected[j] [k_j]``, ascending, of row j -> wire ``[b, w]``, with zeros behind shorter rows.

    A row is a count (int32), its values, its indices; or -1 and all its values, where that is not larger.
    """
    n, width = rows.shape[1], _DTYPES[values].itemsize
    out = []
    for row, index in zip(rows[:, None], selected, strict=True):  # [1, n], [k]
        k = index.numel()
        if k * width + indices.most(n, k, code) < n * width:
            body = pairs_(row, index[None], code, values, keep_rest)
        else:
            k, body = _DENSE, narrowed(row, values).clone()
            if keep_rest:
                row.sub_(body)
        out.append(wires.join(torch.tensor([[k]], dtype=torch.int32, device=row.device), body)[0])
    return indices.pad(out)


def add_counted_(wire: Tensor, out: Tensor, scale: float, code: str, values: str) -> None:
    """``out [b, n]`` += scale times what a wire of :func:`counted_` says."""
    n = out.shape[1]
    for one, row in zip(wire[:, None], out[:, None], strict=True):  # [1, w], [1, n]
        k = int(wires.split(one, [_COUNT], slack=True)[0])
        if k == _DENSE:
            _, sent, _ = split(one, [_COUNT, ("values", _DTYPES[values], n)], n, 0, code, slack=True)
            row.add_(sent.float(), alpha=scale)
            continue
        wires.checked_index("count", torch.tensor(k), n + 1)
        _, sent, index = split(one, [_COUNT, ("values", _DTYPES[values], k)], n, k, code, slack=True)
        row.scatter_add_(1, index, sent.float() * scale)
