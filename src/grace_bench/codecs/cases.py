"""The timed cases of a method."""

from __future__ import annotations

from typing import Any

from grace.contract.method import Method
from grace.errors import CompositionError
from grace.registry import method, parse
from grace_bench.codecs import compressors, conversations
from grace_bench.codecs.buffers import Buffers
from grace_bench.codecs.clock import Case
from grace_bench.codecs.compressors import compressor_of


def variants(name: str) -> tuple[Method[Any], Method[Any] | None]:
    """A method without a memory, and with error feedback; None where it refuses that."""
    word, knobs = parse(name)
    knobs.pop("memory", None)
    plain = method(word, **knobs, memory="none")
    try:
        return plain, method(word, **knobs, memory="residual")
    except CompositionError:
        return plain, None


def cases_of(plain: Method[Any], feedback: Method[Any] | None, buffers: Buffers) -> tuple[list[Case], int | None]:
    """The operations of a method, and how many wires its decoder gets: None where it has a conversation of its own."""
    if compressor_of(plain) is None:
        return conversations.cases(plain, feedback, buffers), None
    return compressors.cases(plain, feedback, buffers), compressors.payloads(plain, buffers)
