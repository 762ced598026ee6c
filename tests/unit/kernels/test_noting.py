"""Calls of kernels that are noted, and made many at a time."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from torch import Tensor

from grace import kernels
from grace.communicators.bound import BoundEncoder, make_table
from grace.compute import native
from grace.contract.compressor import Fused
from grace.errors import InputError
from grace.kernels.call_table import ROWS, THREADS, CallTable
from grace.kernels.noting import Blank, BlankStream, Call
from grace.methods.efsignsgd import EFSignSGD
from grace.methods.qsgd import QSGD
from grace.methods.topk import TopK
from grace.random import Stream
from grace.registry.policy import Policy
from grace.run.simulate import simulate
from grace.run.worker import Worker
from tests.unit.kernels.native_checks import needs_native


def no_keys(i: int, forks: tuple[int, ...]) -> Any:
    raise AssertionError("nobody wants a key")


@needs_native
def test_a_table_calls_a_kernel_for_each_row():
    kernels.all_finite(torch.zeros(3))  # a backend is chosen
    xs = [torch.ones(7)[:5], torch.full((7,), torch.inf), torch.zeros(1)]  # the first has room for a call of 7
    table = CallTable(native.c.finite, [(ROWS, x.numel(), THREADS) for x in xs])
    table.put(ROWS, [x.data_ptr() for x in xs])
    assert table.run().tolist() == [1, 0, 1]
    with torch.device("meta"):  # whatever tensors are made of by default
        table.put(ROWS, [xs[1].data_ptr(), xs[0].data_ptr(), xs[2].data_ptr()])
        assert table.run().tolist() == [0, 1, 1]


@needs_native
def test_calls_of_different_kinds_make_no_table():
    kernels.all_finite(torch.zeros(3))
    first, second = (ROWS, 5, THREADS), (0, 5, THREADS)
    with pytest.raises(TypeError, match="different kinds"):
        CallTable(native.c.finite, [first, second])
    same, other = Call(native.c.finite, first, 0), Call(native.c.sum_finite, (ROWS, None, ROWS, 5, THREADS), 0)
    assert make_table([same, same], no_keys) is not None
    assert make_table([same, Call(native.c.finite, second, 0)], no_keys) is None
    assert make_table([same, other], no_keys) is None


def test_blank_rows_are_for_one_call_and_know_no_more_than_their_shape():
    rows = Blank(5)
    assert rows.shape == (1, 5)
    call = Call(max, (), 0)
    assert rows.note(call) is rows.wire
    with pytest.raises(TypeError, match="one call"):
        rows.note(call)
    with pytest.raises(AttributeError):
        _ = cast(Tensor, rows).max


def test_a_blank_stream_says_whether_it_was_asked_for_the_step():
    rng = BlankStream(3, 7)
    assert rng.fork(2).native_key()[0].forks == (2,)
    assert not rng.asked
    assert rng.fork(1).step == 7
    assert rng.asked


class Bound(Fused):
    """A compressor whose encoder is given."""

    def __init__(self, encode: Any):
        self._encode = encode

    def encode_(self, rows: Tensor, rng: Stream, memory: Tensor | None = None, rest: Tensor | None = None) -> Any:
        return self._encode(rows, rng, memory, rest)

    def sum_(self, received: Any, out: Tensor, scale: float, rng: Stream, add: bool) -> None:
        raise NotImplementedError

    def facts(self, n: int) -> Any:
        raise NotImplementedError


def is_bound(encode: Any, width: int) -> bool:
    encoder = BoundEncoder(Bound(encode), (40,), (width,), True, lambda i: Stream(0, "m", "x", 0, 0), 0)
    x, memory, rest, wire = torch.randn(1, 40), torch.zeros(40), torch.empty(40), torch.empty(64, dtype=torch.uint8)
    return encoder.run([x.data_ptr()], [wire.data_ptr()], 3, [memory.data_ptr()], [rest.data_ptr()]) is not None


@needs_native
def test_only_what_calls_one_kernel_and_returns_what_it_gives_is_bound():
    signs = EFSignSGD(block=32)
    kernels.all_finite(torch.zeros(3))
    assert is_bound(signs.encode_, 8 + 5)
    assert is_bound(QSGD(bits=4, bucket=32).encode_, 8 + 20)
    assert is_bound(TopK(ratio=0.1, index="raw").encode_, 4 * 4 + 3)
    assert not is_bound(signs.encode_, 8 + 6), "another width than that of the wires"
    assert not is_bound(lambda *args: (signs.encode_(*args), signs.encode_(*args))[0], 13), "two calls"
    assert not is_bound(lambda *args: (signs.encode_(*args)[0], False), 13), "another answer"
    assert not is_bound(lambda rows, *args: signs.encode_(rows.clone(), *args), 13), "a look at the numbers"
    assert not is_bound(lambda rows, rng, *more: QSGD(bucket=2 + rng.seed).encode_(rows, rng, *more), 28), "the seed"


def test_a_memory_of_another_shape_is_refused_before_anything_is_read():
    worker = Worker(Policy([("*", "efsignsgd:block=32")]), 0, 1)
    for step in range(4):
        size = 40 if step < 3 else 4000
        tensors = {name: torch.randn(size) for name in ("a", "b")}
        if step == 3:
            with pytest.raises((InputError, RuntimeError)):
                simulate([worker.exchange(tensors)])
        else:
            simulate([worker.exchange(tensors)])
            worker.workspace.reset()
            worker.advance()
