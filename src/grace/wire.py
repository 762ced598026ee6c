"""Fields side by side, and the header before them: how bytes are laid out and taken apart again.

Every wire is specified in these terms, in a method or in the reference of a kernel. Native kernels write and read whole wires
in one pass, without this module; tests compare their bytes with the reference's.

Wire format, version 2. All numbers are little-endian. A *wire* is what a compressor made of one row: its fields one
after the other. A *sealed* wire is what travels in gathers::

    byte 0      status: bit 0 is set if the sender saw an inf or NaN; the rest of the payload then means nothing
    bytes 1-3   the sender's step mod 2**24
    bytes 4-    the wire, then zeros up to a multiple of 4

so that every sealed wire, and every 4-byte field in front of the smaller ones, is aligned.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch
from torch import Tensor

from grace.errors import PayloadError, StepMismatch
from grace.flags.capturing import CapturedStep
from grace.flags.finite import Flag, on_host
from grace.flags.refusals import refuse_unless

VERSION = 2  # of the wire format
HEADER = 4
ALIGNMENT = 4
STEPS = 1 << 24  # steps are sent modulo this

if sys.byteorder != "little":  # pragma: no cover
    raise ImportError("Grace's wire format is little-endian, and so must be the machine")


# ---- fields of a wire -----------------------------------------------------------------------------------------------
def join(*fields: Tensor) -> Tensor:
    """Fields ``[b, f_i]`` of any dtype -> one wire uint8 ``[b, w]``. Wide fields go in front, for alignment."""
    return torch.cat([_pack_rows(field).view(torch.uint8).view(field.shape[0], -1) for field in fields], dim=1)


def _pack_rows(field: Tensor) -> Tensor:
    """The field with its numbers side by side; torch calls a column of one number contiguous, whatever its stride."""
    field = field.contiguous()
    return field if field.stride(-1) == 1 else field.clone(memory_format=torch.contiguous_format)


def split(wire: Tensor, fields: Sequence[tuple[str, torch.dtype, int]], *, slack: bool = False) -> list[Tensor]:
    """The inverse of :func:`join`: wire uint8 ``[b, w]`` -> one tensor ``[b, count]`` for each (name, dtype, count).

    The lengths must add up exactly; with ``slack`` the wire may be longer (padding to the longest of several).

    Raises:
        PayloadError: the wire is too short or too long; names the field.
    """
    at, out = 0, []
    for name, dtype, count in fields:
        end = at + count * dtype.itemsize
        if end > wire.shape[1]:
            raise PayloadError(f"truncated payload: field {name!r} needs bytes {at} to {end} of {wire.shape[1]}")
        out.append(view_as(wire[:, at:end], dtype))
        at = end
    if at != wire.shape[1] and not slack:
        raise PayloadError(f"payload of {wire.shape[1]} bytes, but its fields end at {at}")
    return out


def view_as(piece: Tensor, dtype: torch.dtype) -> Tensor:
    """Bytes ``[b, w]`` as ``dtype``: a view where the bytes are aligned and contiguous, else a copy."""
    if dtype == torch.uint8:
        return piece
    flat = piece.reshape(-1)  # one row of several is contiguous, whatever its stride says
    if flat.storage_offset() % dtype.itemsize:
        flat = flat.clone()
    return flat.view(dtype).view(piece.shape[0], piece.shape[1] // dtype.itemsize)


def check_shape(name: str, field: Tensor, shape: Sequence[int]) -> None:
    """Checks a field's shape: a smaller one would be broadcast.

    Raises:
        PayloadError: they differ; names the field.
    """
    if tuple(field.shape) != tuple(shape):
        raise PayloadError(f"field {name!r} must have the shape {tuple(shape)}, got {tuple(field.shape)}")


def check_scale(name: str, scale: Tensor) -> Tensor:
    """``scale``, of any shape, itself; every number in it has to be finite and not negative.

    Raises:
        PayloadError: otherwise; names the field.
    """
    fine = ((scale >= 0) & (scale <= torch.finfo(scale.dtype).max)).all()
    refuse_unless(fine, lambda: PayloadError(f"field {name!r} must be finite and not negative{_some(scale)}"))
    return scale


def check_index(name: str, index: Tensor, n: int) -> Tensor:
    """``index``, of any shape, itself; every number in it has to be in [0, n). On an accelerator, which reports that
    later, clamped to it.

    Raises:
        PayloadError: otherwise; names the field.
    """
    if index.numel() == 0:
        return index
    low, high = index.aminmax()
    refuse_unless(
        (low >= 0) & (high < n), lambda: PayloadError(f"field {name!r} must be in [0, {n}){_some(low, high)}")
    )
    return index if on_host(index.device) else index.clamp(0, n - 1)


def _some(*values: Tensor) -> str:
    """Numbers for an error, where the host may read them."""
    if not on_host(values[0].device):
        return ""
    return f", got {', '.join(str(number) for value in values for number in value.flatten()[:4].tolist())}..."


# ---- side by side ---------------------------------------------------------------------------------------------------
def with_gaps(sizes: Sequence[int]) -> list[int]:
    """Bytes of pieces of so many bytes that travel one behind the other, with the gap behind each: all begin at multiples of
    4. One piece that travels alone has no gap.
    """
    return [-(-size // ALIGNMENT) * ALIGNMENT for size in sizes] if len(sizes) > 1 else list(sizes)


# ---- sealed wires ---------------------------------------------------------------------------------------------------
def sealed_bytes(size: int) -> int:
    """Bytes of a sealed wire of ``size`` bytes."""
    return HEADER + -(-size // ALIGNMENT) * ALIGNMENT


def seal(wire: Tensor, finite: Flag, step: int, size: int | None = None, out: Tensor | None = None) -> Tensor:
    """Wires ``[b, w]`` of any dtype -> sealed uint8 ``[b, sealed_bytes(size or w's bytes)]``: ``out``, if it is given.

    finite: whether the sender saw only finite numbers: a bool, or a 0-d bool tensor. step: the sender's.
    """
    raw = wire.contiguous().view(torch.uint8).view(wire.shape[0], -1)
    width = raw.shape[1]
    if out is None:
        out = raw.new_empty(raw.shape[0], sealed_bytes(width if size is None else size))
    headers = out.view(torch.int32)[:, 0]
    if isinstance(finite, Tensor):
        headers.copy_(header_of(False, step) - finite.to(torch.int32))  # the status is the lowest bit
    else:
        headers.fill_(header_of(finite, step))
    out[:, HEADER : HEADER + width] = raw
    out[:, HEADER + width :] = 0
    return out


def header_of(finite: bool, step: int) -> int | Tensor:
    """The four bytes of a header, as an int32; that of what is not finite is 1 more. In a captured step a 0-d int32
    tensor, which each replay computes from its own step.
    """
    if isinstance(step, CapturedStep):
        return (step.clock[0] << 8) + (not finite)
    return _known_header(finite, step)


def _known_header(finite: bool, step: int) -> int:
    """As :func:`header_of`, of a step that the host knows."""
    unsigned = (step % STEPS) << 8 | (not finite)
    return unsigned - (1 << 32) if unsigned >> 31 else unsigned


def unseal(sealed: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """Sealed uint8 ``[b, s]`` -> wires ``[b, width / itemsize]`` of ``dtype``.

    Raises:
        PayloadError: it is too short for a wire of that width.
    """
    if width % dtype.itemsize or HEADER + width > sealed.shape[1]:
        raise PayloadError(f"sealed payload of {sealed.shape[1]} bytes cannot hold a wire of {width}")
    return view_as(sealed[:, HEADER : HEADER + width], dtype)


def write_bucket_flags(row: Tensor, words: Tensor, finite: Tensor, step: int) -> None:
    """Writes the headers of the T sealed wires that ``row [s]`` uint8 holds, or each of several: those of tensors that are
    ``finite [T]`` bool or not; ``words [T]``: where they are, in int32.
    """
    numbers = row.view(torch.int32)
    if on_host(finite.device) and bool(finite.all()):
        numbers.index_fill_(-1, words, header_of(True, step))
        return
    headers = torch.empty_like(finite, dtype=torch.int32)
    torch.bitwise_xor(finite, header_of(False, step), out=headers)  # the status is the lowest bit
    numbers.index_copy_(-1, words, headers if numbers.ndim == 1 else headers.expand(*numbers.shape[:-1], -1))


def read_headers(sealed: Tensor, step: int, sender: int = 0) -> Flag:
    """True if every sender of these sealed wires ``[b, s]`` saw only finite numbers.

    step: the receiver's. sender: the rank that the first row came from; the others came from the ranks after it.

    Raises:
        StepMismatch: a sender is at another step.
        PayloadError: a status that no sender writes, or too few bytes.
    """
    if sealed.shape[1] < HEADER:
        raise PayloadError(f"truncated payload: field 'status' needs {HEADER} bytes of {sealed.shape[1]}")
    headers = view_as(sealed[:, :HEADER], torch.int32).view(-1)
    if not on_host(sealed.device):
        headers = headers.clone()  # the next step's lie there when the host reads them
        good, bad = header_of(True, step), header_of(False, step)
        finite, legal = headers == good, (headers == good) | (headers == bad)
        refuse_unless(legal.all(), lambda: explain_headers([headers.tolist()], step, sender))
        return finite.all()
    return _all_say_finite(headers.tolist(), step, sender)


def _all_say_finite(headers: list[int], step: int, sender: int) -> bool:
    """True if no header says that its sender saw an inf or NaN; see :func:`read_headers`."""
    good, bad = _known_header(True, step), _known_header(False, step)
    if headers.count(good) == len(headers):
        return True
    if any(header not in (good, bad) for header in headers):
        raise _explain(headers, step, sender)
    return False


def explain_headers(tensors: list[list[int]], step: int, sender: int = 0) -> PayloadError:
    """The error for headers of several tensors, one of which is wrong: for each those of the ranks from ``sender`` on."""
    if isinstance(step, CapturedStep):  # the next replay has written over them
        return StepMismatch(
            "in a replayed step, a rank sent another step than this rank's, or a status that no sender writes: all ranks must "
            "make the same steps, captured or not. Replay equally often on every rank, and call replayed() after each replay"
        )
    legal = _known_header(True, step), _known_header(False, step)
    return next(_explain(headers, step, sender) for headers in tensors if not set(headers) <= set(legal))


def _explain(headers: list[int], step: int, sender: int) -> PayloadError:
    """The error for headers, one of which is wrong."""
    for rank, header in enumerate(headers, sender):
        if header & 0xFF not in (0, 1):
            return PayloadError(f"field 'status' of rank {rank} must be 0 or 1, got {header & 0xFF}")
        if (theirs := header >> 8 & (STEPS - 1)) != step % STEPS:
            return StepMismatch(
                f"rank {rank} sent its step {theirs}, this rank is at step {step % STEPS} (modulo 2**24): all ranks must make "
                "the same steps. Give every rank equally many batches, load the same checkpoint on all, and let nothing "
                "that only one rank knows decide whether a step is made"
            )
    raise AssertionError("the headers are as they should be")
