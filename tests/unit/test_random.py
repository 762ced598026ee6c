"""Known answers of Threefry, and what the streams promise."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grace.compute import backends
from grace.errors import GraceError
from grace.flags.finite import cpu_as_accelerator
from grace.flags.refusals import Refusals
from grace.random import Stream, reference
from grace.random.reference import threefry2x32

STREAM = Stream(1, "topk", "w", 0, 5)
KNOWN = [  # Random123's known-answer vectors: key, counter, result
    ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
    ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
    ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
]


def signed(word: int) -> int:
    return word - (1 << 32) if word >> 31 else word


@pytest.mark.parametrize(("key", "counter", "expected"), KNOWN)
def test_threefry_known_answers(key: tuple[int, int], counter: tuple[int, int], expected: tuple[int, int]):
    for copies in (1, 3):  # the same for each of several counters
        c0 = torch.full((copies,), signed(counter[0]), dtype=torch.int32)
        x0, x1 = threefry2x32(key, c0, counter[1])
        assert [int(w) & 0xFFFFFFFF for w in x0] == [expected[0]] * copies
        assert [int(w) & 0xFFFFFFFF for w in x1] == [expected[1]] * copies
        assert c0.eq(signed(counter[0])).all(), "the counters are an input"


@pytest.mark.parametrize(
    "other",
    [
        Stream(2, "topk", "w", 0, 5),
        Stream(1, "qsgd", "w", 0, 5),
        Stream(1, "topk", "v", 0, 5),
        Stream(1, "topk", "w", 1, 5),
        Stream(1, "topk", "w", None, 5),
        Stream(1, "topk", "w", 0, 6),
        STREAM.fork(0),
        STREAM.fork(1),
        STREAM.fork(0).fork(0),
        Stream(1, "topkw", "", 0, 5),
    ],
)
def test_streams_differ_in_every_field(other: Stream):
    own, theirs = STREAM.words(50), other.words(50)
    assert int((own == theirs).sum()) == 0, "100 equal words of 32 bits have probability 2e-8"


def test_drawing_does_not_change_a_stream():
    assert torch.equal(STREAM.words(10), STREAM.words(10))
    assert torch.equal(STREAM.words(10), STREAM.words(40)[:10]), "a longer draw begins with the shorter one"


def test_chunks_do_not_show():
    assert torch.equal(STREAM.words(70_000)[65_530:], STREAM.words(4470, first=65_530))


@given(first=st.integers(0, 50), n=st.integers(0, 50))
def test_uniform_from_the_middle(first: int, n: int):
    assert torch.equal(STREAM.uniform(n, first=first), STREAM.uniform(first + n)[first:])


def test_uniform_lies_in_the_open_interval_and_is_uniform():
    u = STREAM.uniform(200_000)
    assert u.dtype == torch.float32
    assert 0 < float(u.min()) < float(u.max()) < 1
    assert torch.equal(u * 65536 - 0.5, (u * 65536 - 0.5).round()), "16-bit lanes, centered"
    from scipy import stats  # here, since it is slow to import

    assert stats.kstest(u.numpy(), "uniform").pvalue > 1e-3
    assert abs(float(torch.corrcoef(torch.stack((u[:-1], u[1:])))[0, 1])) < 0.01


def test_uniform_uses_the_lanes_of_the_words_in_order():
    low, high = (int(w) & 0xFFFFFFFF for w in STREAM.words(1)[0])
    lanes = [low & 0xFFFF, low >> 16, high & 0xFFFF, high >> 16]
    assert STREAM.uniform(4).tolist() == [(lane + 0.5) / 65536 for lane in lanes]


def test_normal_is_standard_normal():
    z = STREAM.normal(100_001)
    assert z.shape == (100_001,)
    assert bool(z.isfinite().all())
    from scipy import stats  # as above

    assert stats.kstest(z.numpy(), "norm").pvalue > 1e-3


@pytest.mark.parametrize("n", [1, 2, 10, 4096, 4097, 5000, 100_000])
def test_subset_has_distinct_positions_in_range(n: int):
    for k in {1, n // 3, n - 1, n} - {0}:
        if k <= n:
            index = STREAM.subset(n, k)
            assert index.dtype == torch.int64
            assert index.shape == (k,)
            assert 0 <= int(index.min()) <= int(index.max()) < n
            assert index.unique().numel() == k, "drawn without replacement"
    assert torch.equal(STREAM.subset(n, n), torch.arange(n))


def test_an_empty_subset_and_an_impossible_one():
    assert STREAM.subset(5, 0).numel() == 0
    for n, k in ((3, 4), (0, 1), (3, -1)):
        with pytest.raises(ValueError, match="does not exist"):
            STREAM.subset(n, k)


@pytest.mark.parametrize(("n", "k", "draws", "bins"), [(20, 6, 800, 20), (5000, 1000, 200, 25)])
def test_subset_is_uniform(n: int, k: int, draws: int, bins: int):
    counts = torch.zeros(n)
    for step in range(draws):
        counts[Stream(7, "randomk", "w", None, step).subset(n, k)] += 1
    binned = counts.view(bins, -1).sum(1)
    # without replacement: the variance of a count is smaller than multinomial by (1 - k/n)
    statistic = float(((binned - binned.mean()) ** 2 / (binned.mean() * (1 - k / n))).sum())
    from scipy import stats  # as above

    assert stats.chi2.sf(statistic, bins - 1) > 1e-4


@pytest.mark.parametrize("n", [4097, 5000, 16384, 65537])
@pytest.mark.parametrize("share", [0.001, 0.9])
def test_an_accelerator_draws_the_same_subset_without_asking(n: int, share: float):
    k = max(1, int(share * n))
    with backends.using("reference"):
        here = STREAM.subset(n, k)
        with cpu_as_accelerator(), Refusals() as refusals:
            there = STREAM.subset(n, k)
    assert refusals.ok is not True, "whether it was complete is known later"
    assert bool(refusals.ok)
    assert torch.equal(there, here)


def test_a_walk_that_was_too_short_is_known_later(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reference, "walk_sizes", lambda k, n, half: [k, 0])
    with backends.using("reference"), cpu_as_accelerator(), Refusals() as refusals:
        index = STREAM.subset(5000, 1000)
    assert int(index.max()) < 5000, "harmless as an index"
    assert not bool(refusals.ok)
    with pytest.raises(GraceError, match="a subset of 1000 out of 5000 needs more walks"):
        raise refusals.checks[0][1]()


def test_round_keys_are_words_of_the_stream():
    for stream in (STREAM, Stream(1, "m", "t", 3, (1 << 24) + 5)):
        words = stream.words(reference.FEISTEL_ROUNDS)[:, 0]
        assert reference.feistel_keys(stream) == [int(word) & 0xFFFFFFFF for word in words]


def test_feistel_is_a_permutation():
    n = 4097
    out = torch.empty(n, dtype=torch.int64)
    reference._feistel(out, STREAM, n)
    assert torch.equal(out.sort().values, torch.arange(n))
