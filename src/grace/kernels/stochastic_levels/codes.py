"""The codes of quantized numbers: how wide they are, and what no sender writes."""

from __future__ import annotations

from grace.kernels.packing import packed_bytes, packed_trits_bytes

BAD_NORM = "field 'norms' must be finite and not negative"


def bad_code(s: int) -> str:
    """The message about a code that no sender writes."""
    return f"field 'codes' must be in [0, {242 if s == 1 else 2 * s}]"


def code_bits(s: int) -> int:
    """ceil(log2(2 s + 1)), for s > 1."""
    return (2 * s).bit_length()


def code_bytes(n: int, s: int) -> int:
    """Bytes of the codes of n numbers."""
    return packed_trits_bytes(n) if s == 1 else packed_bytes(n, code_bits(s))
