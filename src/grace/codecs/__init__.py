"""Codecs: lists of indices and streams of symbols in few bytes, without loss. What methods put into their wires."""

from __future__ import annotations

from grace.codecs.indices import CODES, IndexCode, check_code, choose, decode, encode, index_bits, size, take, varies

__all__ = [
    "CODES",
    "IndexCode",
    "check_code",
    "choose",
    "decode",
    "encode",
    "index_bits",
    "size",
    "take",
    "varies",
]
