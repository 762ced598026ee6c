"""Codecs of fragments: each tensor travels by a compressor, small ones as they are.

Letters: a tensor is ``[n]`` float32 on the host; a wire is bytes.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor

from grace.contract.compressor import Compressor
from grace.contract.wrapping import find_compressor, layers, own_fields
from grace.errors import CompositionError, ConfigurationError, PayloadError
from grace.kernels.finite import all_finite
from grace.random import Stream
from grace.registry import method, parse, read_method, recipe, spell
from grace.registry.policy import SMALL

UP: Final = 1  # directions, which have random streams of their own
DOWN: Final = 2


def spell_codec(spec: str) -> str:
    """The one spelling of a codec that a user names.

    Raises:
        ConfigurationError: it is not known, or cannot carry fragments.
    """
    if not isinstance(spec, str):
        raise ConfigurationError(
            f"decoupled: method={spec!r:.80}; legal: the text of a compressor such as 'topk:ratio=0.01': the syncer reads it"
        )
    made = method(spec)  # imports the user's own class
    _check(spec.strip(), find_compressor(made))
    text = spell(made)
    read_codec(text)
    return text


@functools.lru_cache(maxsize=64)
def read_codec(text: str) -> Compressor:
    """The compressor that a text names, in the variant whose error a memory may carry. Imports nothing.

    Raises:
        ConfigurationError: it is not known, or cannot carry fragments.
    """
    compressor = find_compressor(read_method(text))
    _check(text, compressor)
    assert compressor is not None
    return compressor.with_memory()


def _check(text: str, compressor: Compressor | None) -> None:
    """Refuses what is more or less than a compressor."""
    if compressor is None or compressor.aggregation != "mean":
        kind = (
            "takes a vote of all workers"
            if compressor is not None
            else "is a conversation between workers, or has a schedule"
        )
        raise CompositionError(
            f"decoupled: {text!r} {kind}; a fragment travels between a learner and the syncer. Legal: compressors such as "
            "topk:ratio=0.01, qsgd:bits=4, lpc, fp8, bf16, none"
        )
    name, given = parse(text)
    knobs = {knob for layer in layers(compressor) for knob in own_fields(type(layer))} | {"lossless"}
    if strange := [knob for knob in given if knob not in knobs]:
        raise CompositionError(
            f"decoupled: {text!r} sets {', '.join(strange)}; learners and syncer have memories of their own, and no "
            f"communicator. Legal: knobs of the compressor {recipe(name).name}"
        )


class FragmentCodec:
    """Encodes and decodes fragments in one direction, between the syncer and one learner.

    Args:
        text: the compressor.
        names: of the tensors of the fragment. shapes: theirs.
        seed: of the random streams.
        learner: whose fragments they are.
        direction: :data:`UP` or :data:`DOWN`.
    """

    def __init__(
        self, text: str, names: Sequence[str], shapes: Sequence[Sequence[int]], seed: int, learner: str, direction: int
    ):
        self.compressor = read_codec(text)
        self._names = list(names)
        self._sizes = [int(np.prod(shape, dtype=np.int64)) for shape in shapes]
        small = [len(shape) <= 1 or n < SMALL for shape, n in zip(shapes, self._sizes, strict=True)]
        self._dense = [self.compressor.transparent or tiny for tiny in small]
        self._seed, self._salt = seed, direction
        self._rank = None if self.compressor.randomness == "shared" else zlib.crc32(learner.encode()) & 0x7FFFFFFF

    @property
    def exact(self) -> bool:
        """True if nothing is lost."""
        return all(self._dense)

    def encode_(self, tensors: Sequence[Tensor], number: int) -> list[bytes]:
        """Wires of tensors ``[n]``, all finite; each becomes what its wire does not say. ``number``: of the message."""
        out = []
        for place, x in enumerate(tensors):
            if self._dense[place] or not x.numel():
                out.append(dense_bytes(x))
                x.zero_()
            else:
                wire = self.compressor.compress_(x.view(1, -1), self._stream(place, number), True)
                out.append(wire.contiguous().view(torch.uint8).numpy().tobytes())
        return out

    def decode_add_(self, wires: Sequence[bytes], out: Sequence[Tensor], number: int, sender: str) -> None:
        """Adds what wires say to tensors ``[n]``.

        Raises:
            PayloadError: wires that no sender writes, or an inf or NaN; names the sender. ``out`` means nothing then.
        """
        if len(wires) != len(out):
            raise PayloadError(f"{sender} sent {len(wires)} wires; the fragment has {len(out)} tensors")
        for place, (wire, x) in enumerate(zip(wires, out, strict=True)):
            where = f"{sender}: {self._names[place]!r}"
            if self._dense[place] or not x.numel():
                x.add_(read_dense(wire, x.numel(), where))
            else:
                typed = self._typed(as_numbers(wire, torch.uint8), x.numel(), where)
                try:
                    self.compressor.decompress_add_(typed, x.view(1, -1), 1.0, self._stream(place, number))
                except PayloadError as error:
                    raise PayloadError(f"{where}: {error}") from error
                if not all_finite(x):
                    raise PayloadError(f"{where}: a wire that decodes to an inf or NaN")

    def _typed(self, code: Tensor, n: int, where: str) -> Tensor:
        """Bytes ``[w]`` as the wire ``[1, w]`` of n numbers."""
        if not self.compressor.varies:
            size, dtype = _wire_of(self.compressor, n)
            if code.numel() != size:
                raise PayloadError(f"{where}: {code.numel()} bytes; the wire of {n} numbers has {size}")
            code = code.view(dtype)
        return code.view(1, -1)

    def _stream(self, place: int, number: int) -> Stream:
        return Stream(self._seed, self.compressor.id, self._names[place], self._rank, number, self._salt)


@functools.lru_cache(maxsize=4096)
def _wire_of(compressor: Compressor, n: int) -> tuple[int, torch.dtype]:
    """Bytes and dtype of the wire of n numbers, by a compressor whose wires do not vary in size."""
    wire = compressor.compress_(
        torch.zeros(1, n, dtype=torch.float32, device="cpu"), Stream(0, compressor.id, "", 0, 0), False
    )
    return wire.numel() * wire.element_size(), wire.dtype


def as_numbers(wire: bytes, dtype: torch.dtype) -> Tensor:
    """``[n]`` on the host: a copy of bytes as numbers of this dtype."""
    return torch.frombuffer(bytearray(wire), dtype=dtype) if wire else torch.empty(0, dtype=dtype, device="cpu")


def dense_bytes(x: Tensor) -> bytes:
    """The numbers of a tensor, float32 of any shape, little-endian."""
    return x.detach().to("cpu", torch.float32).contiguous().view(-1).numpy().tobytes()


def read_dense(wire: bytes, n: int, where: str) -> Tensor:
    """``[n]`` float32 of :func:`dense_bytes`.

    Raises:
        PayloadError: another length, an inf or a NaN; ``where`` says whose.
    """
    if len(wire) != 4 * n:
        raise PayloadError(f"{where}: {len(wire)} bytes; {n} numbers have {4 * n}")
    x = as_numbers(wire, torch.float32)
    if not all_finite(x):
        raise PayloadError(f"{where}: an inf or NaN")
    return x
