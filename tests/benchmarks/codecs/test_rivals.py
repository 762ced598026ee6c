"""Rivals of the codecs, and parts that are no method: the cases compute what they say."""

import pytest
import torch

from benchmarks.codecs import naive, parts
from benchmarks.codecs.goals import GOALS, THRESHOLD
from grace_bench.codecs import compressors
from grace_bench.codecs.buffers import WORKERS, Buffers
from grace_bench.codecs.cases import variants
from grace_bench.codecs.clock import DECODE, ENCODE, FEEDBACK, do_nothing
from grace_bench.codecs.plan import canonical


@pytest.fixture(scope="module")
def buffers():
    return Buffers(4096)


def test_index_coding_knows_its_bits():
    buffers = Buffers(100_000)
    (case, few), (_, fewer) = parts.elias_fano(buffers)
    case.seconds(do_nothing)
    assert (few.count, fewer.count) == (1000, 100)
    assert 8.0 < 8 * few.size / few.count < 8.7
    assert 11.0 < 8 * fewer.size / fewer.count < 12.6


def test_degenerate_inputs_are_what_they_are_called(buffers):
    zeros, constant, sparse = parts.degenerate(buffers)
    for case, check in (
        (zeros, lambda rows: not rows.any()),
        (constant, lambda rows: len(rows.unique()) == 1 and bool(rows.all())),
        (sparse, lambda rows: int(rows.count_nonzero()) == 41),
    ):
        case.prepare()
        assert check(buffers.rows), case.operation
        case.seconds(do_nothing)


def test_powersgd_takes_a_whole_step(monkeypatch):
    monkeypatch.setattr(parts, "MATRIX", (64, 32))
    step, copy, size = parts.powersgd()
    assert size == 64 * 32
    assert step.seconds(do_nothing) > 0
    assert copy.seconds(do_nothing) > 0
    assert [tuple(answer.shape) for answer in step.answers] == [(4 * 64,), (4 * 32,)]


def test_every_method_with_a_goal_has_a_counterpart():
    named = {canonical(goal.method) for goal in GOALS if goal.method is not None}
    assert named == set(naive.CODES)


@pytest.mark.parametrize("name", sorted(naive.CODES))
def test_naive_code_says_nearly_the_same_as_the_codec(name, buffers):
    x = buffers.x.view(-1)
    _, encode, decode = naive.CODES[name]()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        decoded = decode(encode(x), x)
    if name in ("topk", "topk:ratio=0.001", THRESHOLD, "randomk"):
        kept = decoded != 0
        assert torch.equal(decoded[kept], x[kept])
        share = {"topk:ratio=0.001": 0.001}.get(name, 0.01)
        assert share / 2 < kept.float().mean() < 2 * share
        if name.startswith("topk"):
            assert x[kept].abs().min() > x[~kept].abs().max()
    elif name == "natural":
        factor = decoded / x
        assert factor.min() >= 0.499
        assert factor.max() <= 2.001
    elif name == "efsignsgd":
        assert torch.equal(decoded.sign(), x.sign())
    else:
        coarse = {"qsgd:bits=8": 1 / 127, "qsgd": 1 / 7, "qsgd:bits=2": 1.0, "u8bit": 0.06, "thc": 0.2, "sketch": 0.9}[
            name
        ]
        assert (decoded - x).abs().max() <= 1.001 * coarse * x.abs().max()


def test_naive_code_decodes_and_sums_and_remembers(buffers):
    theirs = naive.case(DECODE, "topk", buffers, WORKERS)
    theirs.prepare()
    summed = theirs.run()
    *_, ours = compressors.cases(*variants("topk"), buffers)
    ours.seconds(do_nothing)
    same = (summed - buffers.out.view(-1)).abs() <= 1e-5
    assert same.float().mean() > 0.98  # int() keeps one number less than ceil()
    payload, rest = naive.case(FEEDBACK, "topk", buffers, WORKERS).run()
    assert torch.equal(rest[payload[1]], torch.zeros(payload[1].numel()))
    assert naive.case(ENCODE, "sketchml", buffers, WORKERS) is None
