"""The lossless stage: streams of symbols, and the compressor that wraps compressors."""

from __future__ import annotations

import importlib.util
import zlib

import pytest
import torch

import grace
from grace.contract.compressor import Compressor
from grace.errors import CompositionError, ConfigurationError, PayloadError
from grace.methods import BF16, QSGD, EFSignSGD, Lossless, RandomK, SignSGD, Threshold, TopK
from grace.methods.common import streams

from . import sparse_checks as checks

INNER = [QSGD(levels=1), QSGD(bits=4), TopK(0.1), TopK(0.1, "rice"), Threshold(1.0), RandomK(0.1), BF16(), EFSignSGD()]
HAS_ZSTD = importlib.util.find_spec("zstandard") is not None


def test_streams() -> None:
    for raw in (b"", b"a", b"abc" * 1000, bytes(range(256))):
        stream = streams.shrink(raw, "zlib", 6)
        assert len(stream) <= len(raw) + 1
        assert streams.expand(stream, len(raw)) == raw
        for size in {0, len(raw) - 1, len(raw) + 1} - {-1, len(raw)}:
            with pytest.raises(PayloadError, match="stream"):
                streams.expand(stream, size)
    assert streams.shrink(bytes(range(256)), "zlib", 9)[0] == 0  # the raw escape


@pytest.mark.parametrize(
    "stream",
    [b"", b"\x03abc", b"\x01abc", b"\x01" + zlib.compress(b"abc")[:-1], b"\x01" + zlib.compress(b"abc") + b"x"],
)
def test_streams_that_are_none_are_refused(stream: bytes) -> None:
    with pytest.raises(PayloadError, match="field"):
        streams.expand(stream, 3)


def test_a_bomb_is_not_unpacked() -> None:
    with pytest.raises(PayloadError, match="stream"):
        streams.expand(b"\x01" + zlib.compress(bytes(1 << 24)), 10)


@pytest.mark.skipif(not HAS_ZSTD, reason="needs the package zstandard")
def test_zstd() -> None:
    raw = b"abc" * 1000
    stream = streams.shrink(raw, "zstd", 3)
    assert stream[0] == 2
    assert streams.expand(stream, len(raw)) == raw
    for bad in (stream[:-1], stream + b"x", b"\x02" + raw[:50]):
        with pytest.raises(PayloadError, match="stream"):
            streams.expand(bad, len(raw))


@pytest.mark.parametrize("inner", INNER, ids=repr)
def test_says_what_the_compressor_says(inner: Compressor) -> None:
    x = torch.randn(3, 1000, generator=checks.generator())
    wrapped = Lossless(inner)
    outs, rests = [], []
    for compressor in (inner, wrapped):
        rows, out = x.clone(), torch.zeros_like(x)
        wire = compressor.compress_(rows, checks.stream(), True)
        compressor.decompress_add_(wire, out, 0.5, checks.stream())
        outs.append(out)
        rests.append(rows)
    assert torch.equal(outs[0], outs[1])
    assert torch.equal(rests[0], rests[1])
    assert wrapped.varies
    assert not wrapped.summable
    assert wrapped.facts(1000).payload is None
    assert (wrapped.randomness, wrapped.aggregation, wrapped.id) == (inner.randomness, inner.aggregation, inner.id)
    checks.check_corruption(wrapped, trials=60)


def test_gains_on_dull_symbols() -> None:
    n = 100_000
    x = torch.randn(1, n, generator=checks.generator())
    plain = QSGD(levels=1).compress_(x.clone(), checks.stream(), False).shape[1]
    less = Lossless(QSGD(levels=1), level=6).compress_(x.clone(), checks.stream(), False).shape[1]
    assert less < 0.9 * plain
    assert (
        Lossless(TopK()).compress_(torch.zeros(1, n), checks.stream(), False).shape[1] < 0.2 * TopK().facts(n).payload
    )


def test_edges() -> None:
    for inner in (QSGD(levels=1), TopK(0.1), Threshold(1.0)):
        checks.check_edges(Lossless(inner))


@pytest.mark.parametrize("communicator", ["Allgather", "Broadcasts", "ScatterReduce", "ParameterServer"])
def test_exchange(communicator: str) -> None:
    wrap = getattr(grace, communicator)
    checks.check_exchange(wrap(Lossless(TopK(0.2))))
    checks.check_nothing_lost(grace.ErrorFeedback(wrap(Lossless(TopK(0.2)))))


def test_exchange_is_that_of_the_compressor_alone() -> None:
    xs = [torch.randn(23, 17, generator=checks.generator(rank)) for rank in range(3)]
    for inner in (QSGD(), SignSGD(), TopK(0.1)):
        first, second = (checks.run(grace.Allgather(c), xs)[0].mean for c in (inner, Lossless(inner)))
        assert torch.equal(first, second)


def test_compositions() -> None:
    with pytest.raises(CompositionError, match="cannot be summed"):
        grace.Allreduce(Lossless(RandomK()))
    with pytest.raises(CompositionError, match="wraps a Compressor"):
        Lossless(grace.Allgather(TopK()))
    assert Lossless(QSGD()).with_memory() == Lossless(QSGD(shrink=True))
    for knobs in ({"stage": "lzma"}, {"level": 0}, {"level": 10}):
        with pytest.raises(ConfigurationError, match="Lossless"):
            Lossless(QSGD(), **knobs)


@pytest.mark.skipif(HAS_ZSTD, reason="the package zstandard is installed")
def test_a_missing_package_is_named() -> None:
    with pytest.raises(ConfigurationError, match="zstandard"):
        Lossless(QSGD(), stage="zstd")
    with pytest.raises(PayloadError, match="zstandard"):
        streams.expand(b"\x02abc", 3)


def test_a_lossless_stage_is_a_knob_of_every_compressor():
    for spec in ("qsgd:levels=1,lossless=zlib", "topk:index=raw,lossless=zlib", "efsignsgd:lossless=zlib,memory=none"):
        made = grace.method(spec)
        assert "Lossless" in repr(made)
        assert grace.method(grace.spell(made)) == made
        assert "lossless=zlib" in grace.spell(made)
    with pytest.raises(grace.errors.CompositionError, match="powersgd has its own exchange, and lossless"):
        grace.method("powersgd:lossless=zlib")
    with pytest.raises(grace.errors.ConfigurationError, match="stage='gzip'"):
        grace.method("qsgd:lossless=gzip")
