"""Bytes that no sender writes, made from bytes that one did.

Letters: B payloads of w bytes each.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Payloads = npt.NDArray[np.uint8]  # [B, w]

# As four bytes: small counts, inf, NaN, the largest and the smallest normal float, -0.0, and the ends of int32.
_WORDS = np.array(
    [0, 1, 0x7F800000, 0xFF800000, 0x7FC00000, 0x7F7FFFFF, 0x80000000, 0xFFFFFFFF, 0x7FFFFFFF, 0x00800000], dtype="<u4"
)
_BYTES = np.array([0x00, 0x01, 0x7F, 0x80, 0xFE, 0xFF], dtype=np.uint8)
_FRONT = 64  # bytes in which heads, counts and scales lie: half of the damage is done there
_MOST = 4  # changes of one payload


def damage(payloads: Payloads, dice: np.random.Generator) -> tuple[Payloads, int]:
    """A damaged copy, and how many of its rows were damaged.

    One time in eight all are cut or lengthened alike. Otherwise one row, a quarter or all of them are changed in up to four
    places, which are each row's own, or the same for all: a decoder that refuses a batch for one row's head would else
    hardly ever see damaged codes behind good heads.
    """
    out = payloads.copy()
    count, width = out.shape
    if dice.random() < 1 / 8:
        return _resized(out, dice), count
    if width == 0:
        return out, 0
    rows = np.flatnonzero(dice.random(count) < dice.choice([1 / count, 0.25, 1.0]))
    alike = dice.random() < 0.5
    for _ in range(int(dice.integers(1, _MOST + 1))):
        reach = min(width, _FRONT) if dice.random() < 0.5 else width
        at = (dice.random(1 if alike else len(rows)) * reach).astype(np.intp)
        _change(out, rows, np.broadcast_to(at, rows.shape), dice)
    return out, len(rows)


def _change(out: Payloads, rows: npt.NDArray[np.intp], at: npt.NDArray[np.intp], dice: np.random.Generator) -> None:
    """A change of one kind in each of these rows, at these bytes."""
    width = out.shape[1]
    match int(dice.integers(4)):
        case 0:
            out[rows, at] ^= (1 << dice.integers(0, 8, len(rows))).astype(np.uint8)
        case 1:
            out[rows, at] = dice.integers(0, 256, len(rows), dtype=np.uint8)
        case 2:
            out[rows, at] = dice.choice(_BYTES, len(rows))
        case _ if width >= 4:
            start = np.minimum(at // 4 * 4, width - 4)
            words = dice.choice(_WORDS, len(rows)).view(np.uint8).reshape(-1, 4)
            out[rows[:, None], start[:, None] + np.arange(4)] = words


def _resized(out: Payloads, dice: np.random.Generator) -> Payloads:
    """Shorter or longer, by a few bytes or by many."""
    count, width = out.shape
    by = int(dice.choice([1, 2, 3, 4, 8, 100]))
    if dice.random() < 0.5:
        return np.ascontiguousarray(out[:, : max(0, width - by)])
    return np.concatenate([out, dice.integers(0, 256, (count, by), dtype=np.uint8)], axis=1)
