"""The numbers selected from the tensors of a bucket, as the tensors of another one, which a compressor of all numbers
encodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from grace.kernels import (
    PlaceLists,
    TensorList,
    clear_listed_many,
    encode_indices_many,
    put_listed_many,
    take_topk_many,
)
from grace.kernels.sparse import Pairs


def encode_selected(message: Tensor, many: TensorList, pairs: Pairs, encode: Callable[[TensorList], object]) -> Tensor:
    """Writes the wires of pairs into ``message [s]`` uint8. ``encode`` writes what they say of the numbers, which are the xs
    of what it is given, and makes their rests what it drops; the places follow. ``[T]`` bool, which tensors were finite:
    others count as zeros.
    """
    finite, index = take_encoded(many, pairs.kept, many.places, encode)
    encode_indices_many(message, many, pairs.lists, index)
    return finite


def take_encoded(
    many: TensorList, kept: tuple[int, ...], places: tuple[int, ...], encode: Callable[[TensorList], object]
) -> tuple[Tensor, Tensor]:
    """As :func:`encode_selected`, of the ``kept`` largest of each row, whose wires have these places: (``[T]`` bool, which
    tensors were finite; ``[K]`` int64, the lists of where these numbers are).
    """
    lists = PlaceLists(kept, (), ())
    sent, values = many.once((take_encoded, kept, places), lambda: _make_rooms(many, kept, places))
    index = torch.empty(len(sent), dtype=torch.int64, device=many.device)
    finite = take_topk_many(index, sent, many, kept)
    clear_listed_many(index, sent, finite, many, lists)
    values.point(values.xs, None, None if many.rests is None else values.xs)
    encode(values)
    if many.rests is not None:
        put_listed_many(index, sent, many, lists)
    return finite, index


def _make_rooms(many: TensorList, kept: Sequence[int], places: Sequence[int]) -> tuple[Tensor, TensorList]:
    """``[K]`` float32 for what is selected, and the tensors of it, which stay where they are."""
    counts = kept[:: many.rows]
    sent = torch.empty(sum(kept), device=many.device, dtype=torch.float32)
    values = TensorList(counts, places, many.streams, many.device, many.rows)
    values.xs = [part.view(many.rows, -1) for part in sent.split_with_sizes([many.rows * k for k in counts])]
    return sent, values
