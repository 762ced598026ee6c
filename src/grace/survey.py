"""The survey's helper functions, for authors of methods: ``quantize``, ``sparsify``, ``pack`` and their inverses.

They work on one tensor of any shape, on any device, and never touch the global random generator. Compressors of rows
use the same kernels directly (``grace.kernels``, ``grace.methods.common``).

In a function that ``torch.compile`` compiles they are operators, ``torch.ops.grace.quantize`` and so on: the compiler knows
the shapes and types of what they return, and neither looks into them nor breaks its graph. They have no gradients there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from grace import kernels
from grace import wire as wires
from grace.errors import ConfigurationError, PayloadError, out_of_range
from grace.random import Stream

_TINY = torch.finfo(torch.float32).tiny


def quantize(x: Tensor, bits: int, rng: Stream | None = None) -> tuple[Tensor, Tensor]:
    """Numbers to codes of a uniform grid, and its scale, the largest magnitude.

    ``code = round(s x / scale) + s``, in [0, 2s], with ``s = 2**(bits-1) - 1`` levels on each side of zero

    Args:
        x: finite numbers, of any floating type and shape.
        bits: bits of a code, 2 to 16.
        rng: rounds up or down at random, without bias; by default to the nearest.

    Returns:
        codes, int32 in the shape of x; scale, float32 without dimensions. All codes are s, and the scale is 0, where
        all magnitudes are below 2**-126.

    Example:
        >>> codes, scale = quantize(torch.tensor([1.0, -0.5, 0.0]), bits=3)
        >>> codes.tolist(), scale.item()
        ([6, 1, 3], 1.0)
    """
    _levels(bits)
    if torch.compiler.is_compiling():
        made: tuple[Tensor, Tensor] = _quantize_op(x, bits, *_ids_of(rng))
        return made
    return _quantize(x, bits, rng)


def _quantize(x: Tensor, bits: int, rng: Stream | None) -> tuple[Tensor, Tensor]:
    s = _levels(bits)
    numbers = x.reshape(-1).float()
    scale = numbers.abs().max() if numbers.numel() else numbers.new_zeros(())
    if float(scale) < _TINY:
        return torch.full(x.shape, s, dtype=torch.int32, device=x.device), torch.zeros_like(scale)
    share = numbers.abs().div_(scale).mul_(s)
    if rng is None:
        level = share.round_()
    else:
        level = kernels.stochastic_round(share, rng.uniform(share.numel(), x.device)).clamp_max_(s)
    return level.copysign_(numbers).add_(s).to(torch.int32).view(x.shape), scale


def dequantize(codes: Tensor, scale: Tensor, bits: int) -> Tensor:
    """The numbers that codes of :func:`quantize` stand for: ``(code - s) scale / s``, float32 in the shape of the codes.

    Raises:
        PayloadError: a code above 2s, or a scale that is negative or not finite.

    Example:
        >>> dequantize(torch.tensor([6, 1, 3]), torch.tensor(1.5), bits=3)
        tensor([ 1.5000, -1.0000,  0.0000])
    """
    _levels(bits)
    return _dequantize_op(codes, scale, bits) if torch.compiler.is_compiling() else _dequantize(codes, scale, bits)


def _dequantize(codes: Tensor, scale: Tensor, bits: int) -> Tensor:
    s = _levels(bits)
    wires.check_index("codes", codes, 2 * s + 1)
    return (codes.to(torch.float32) - s) * (wires.check_scale("scale", scale) / s)


def sparsify(x: Tensor, ratio: float | None = None, threshold: float | None = None) -> tuple[Tensor, Tensor]:
    """The numbers to keep, and their positions in the flat x, ascending.

    Args:
        x: numbers, of any floating type and shape.
        ratio: keeps the ``max(1, ceil(ratio n))`` of largest magnitude, in (0, 1]; the first of equal ones.
        threshold: keeps those of larger magnitude instead, >= 0.

    Returns:
        values ``[k]`` in the type of x, and positions ``[k]`` int64.

    Raises:
        ConfigurationError: both are given, or none, or one that is out of range.

    Example:
        >>> sparsify(torch.tensor([[0.1, -5.0], [3.0, -0.2]]), ratio=0.5)
        (tensor([-5.,  3.]), tensor([1, 2]))
    """
    if (ratio is None) == (threshold is None):
        raise ConfigurationError(f"sparsify: give ratio={ratio} or threshold={threshold}, one of the two")
    if ratio is not None and not 0 < ratio <= 1:
        raise out_of_range("sparsify", "ratio", ratio, "0 < ratio <= 1")
    if threshold is not None and not threshold >= 0:
        raise out_of_range("sparsify", "threshold", threshold, "threshold >= 0")
    if torch.compiler.is_compiling():
        made: tuple[Tensor, Tensor] = _sparsify_op(x, ratio, threshold)
        return made
    return _sparsify(x, ratio, threshold)


def _sparsify(x: Tensor, ratio: float | None, threshold: float | None) -> tuple[Tensor, Tensor]:
    flat = x.reshape(-1)
    if ratio is not None:
        n = flat.numel()
        k = _count_kept(n, ratio)
        index = kernels.select_topk(flat[None], k)[0] if n else torch.zeros(0, dtype=torch.int64, device=x.device)
    else:
        assert threshold is not None
        index = (~(flat.abs() <= threshold)).nonzero()[:, 0]
    return flat[index], index


def _count_kept(n: int, ratio: float) -> int:
    return min(n, max(1, math.ceil(ratio * n - 1e-9 * n)))


def desparsify(values: Tensor, index: Tensor, shape: Sequence[int]) -> Tensor:
    """A tensor of this shape with ``values [k]`` at the flat positions ``index [k]``, and zeros elsewhere.

    Raises:
        PayloadError: positions outside the shape, or not as many positions as values.

    Example:
        >>> desparsify(torch.tensor([-5.0, 3.0]), torch.tensor([1, 2]), (2, 2))
        tensor([[ 0., -5.],
                [ 3.,  0.]])
    """
    if torch.compiler.is_compiling():
        made: Tensor = _desparsify_op(values, index, list(shape))
        return made
    return _desparsify(values, index, shape)


def _desparsify(values: Tensor, index: Tensor, shape: Sequence[int]) -> Tensor:
    out = values.new_zeros(tuple(shape))
    if values.shape != index.shape or values.ndim != 1:
        raise PayloadError(
            f"fields 'values' and 'index' must have the same length, got {values.shape} and {index.shape}"
        )
    out.view(-1)[wires.check_index("index", index, out.numel())] = values
    return out


def pack(codes: Tensor, bits: int) -> Tensor:
    """Codes in [0, 2**bits), of any integer type and shape, to ``ceil(count bits / 8)`` bytes, uint8.

    Args:
        codes: the numbers; a list of them in the order of the flat tensor.
        bits: bits of each, 1 to 16: number j takes bits [j bits, (j+1) bits) of a little-endian stream.

    Example:
        >>> pack(torch.tensor([1, 2, 3, 0]), bits=2)
        tensor([57], dtype=torch.uint8)
    """
    _check_bits("pack", bits)
    return _pack_op(codes, bits) if torch.compiler.is_compiling() else _pack(codes, bits)


def _pack(codes: Tensor, bits: int) -> Tensor:
    if codes.numel() and not (int(codes.min()) >= 0 and int(codes.max()) < 1 << bits):
        raise out_of_range("pack", "codes", [int(codes.min()), int(codes.max())], f"0 to {(1 << bits) - 1}")
    return kernels.pack(codes.reshape(1, -1), bits)[0]


def unpack(packed: Tensor, bits: int, count: int) -> Tensor:
    """The inverse of :func:`pack`: ``[count]`` codes, int32.

    Raises:
        PayloadError: too few or too many bytes.

    Example:
        >>> unpack(torch.tensor([57], dtype=torch.uint8), bits=2, count=4)
        tensor([1, 2, 3, 0], dtype=torch.int32)
    """
    _check_bits("unpack", bits)
    if count < 0:
        raise out_of_range("unpack", "count", count, "0, 1, ...")
    return _unpack_op(packed, bits, count) if torch.compiler.is_compiling() else _unpack(packed, bits, count)


def _unpack(packed: Tensor, bits: int, count: int) -> Tensor:
    (field,) = wires.split(packed.reshape(1, -1), [("codes", torch.uint8, kernels.packed_bytes(count, bits))])
    return kernels.unpack(field, bits, count)[0].to(torch.int32)


def _levels(bits: int) -> int:
    if bits not in range(2, 17):
        raise out_of_range("quantize", "bits", bits, "2, 3, ..., 16")
    return (1 << (bits - 1)) - 1


def _check_bits(owner: str, bits: int) -> None:
    if bits not in range(1, 17):
        raise out_of_range(owner, "bits", bits, "1, 2, ..., 16")


# ---- operators, for compiled functions ------------------------------------------------------------------------------
def _ids_of(rng: Stream | None) -> tuple[str, str, int, int, int, int]:
    """A stream as an operator takes it: method, tensor, seed, rank, step, salt; a rank below -1 for none at all."""
    if rng is None:
        return "", "", 0, -2, 0, 0
    return rng.method, rng.tensor, rng.seed, -1 if rng.rank is None else rng.rank, rng.step, rng.salt


@torch.library.custom_op("grace::quantize", mutates_args=())
def _quantize_op(
    x: Tensor, bits: int, method: str, tensor: str, seed: int, rank: int, step: int, salt: int
) -> tuple[Tensor, Tensor]:
    rng = None if rank < -1 else Stream(seed, method, tensor, None if rank < 0 else rank, step, salt)
    return _quantize(x, bits, rng)


@_quantize_op.register_fake
def _(x: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape, dtype=torch.int32), x.new_empty((), dtype=torch.float32)


@torch.library.custom_op("grace::dequantize", mutates_args=())
def _dequantize_op(codes: Tensor, scale: Tensor, bits: int) -> Tensor:
    return _dequantize(codes, scale, bits)


@_dequantize_op.register_fake
def _(codes: Tensor, scale: Tensor, bits: int) -> Tensor:
    return torch.empty_like(codes, dtype=torch.float32)


@torch.library.custom_op("grace::sparsify", mutates_args=())
def _sparsify_op(x: Tensor, ratio: float | None, threshold: float | None) -> tuple[Tensor, Tensor]:
    return _sparsify(x, ratio, threshold)


@_sparsify_op.register_fake
def _(x: Tensor, ratio: float | None, threshold: float | None) -> tuple[Tensor, Tensor]:
    n = x.numel()
    k = (
        _count_kept(n, ratio)
        if ratio is not None and isinstance(n, int)
        else torch.library.get_ctx().new_dynamic_size()
    )
    return x.new_empty(k), x.new_empty(k, dtype=torch.int64)


@torch.library.custom_op("grace::desparsify", mutates_args=())
def _desparsify_op(values: Tensor, index: Tensor, shape: list[int]) -> Tensor:
    return _desparsify(values, index, shape)


@_desparsify_op.register_fake
def _(values: Tensor, index: Tensor, shape: list[int]) -> Tensor:
    return values.new_empty(shape)


@torch.library.custom_op("grace::pack", mutates_args=())
def _pack_op(codes: Tensor, bits: int) -> Tensor:
    return _pack(codes, bits)


@_pack_op.register_fake
def _(codes: Tensor, bits: int) -> Tensor:
    return codes.new_empty((codes.numel() * bits + 7) // 8, dtype=torch.uint8)


@torch.library.custom_op("grace::unpack", mutates_args=())
def _unpack_op(packed: Tensor, bits: int, count: int) -> Tensor:
    return _unpack(packed, bits, count)


@_unpack_op.register_fake
def _(packed: Tensor, bits: int, count: int) -> Tensor:
    return packed.new_empty(count, dtype=torch.int32)
