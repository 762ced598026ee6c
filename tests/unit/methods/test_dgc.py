from __future__ import annotations

import pytest
import torch

import grace
from grace.errors import ConfigurationError
from grace.methods.dgc import DGC

from .helpers import (
    check_contraction,
    check_corrupted,
    check_exchange,
    check_nothing_lost,
    check_rows,
    check_ugly,
    coded,
    gradients,
    shapes,
    steps,
    stream,
)


def test_vector_of_the_specification():
    method = grace.method("dgc:ratio=0.5,momentum=0.9")
    outs, [((u, v), _)] = steps(method, [[torch.tensor([1.0, 0.1])], [torch.tensor([0.0, 0.1])]])
    assert torch.equal(outs[0].mean, torch.tensor([1.0, 0.0]))
    torch.testing.assert_close(outs[1].mean, torch.tensor([0.0, 0.29]))
    assert not u.any()
    assert not v.any()


def test_sampling_hits_its_target():
    for name, x in shapes(200_000).items():
        sent = int((coded(DGC(0.001), x)[1] != 0).sum())
        expected = {"one-hot": range(1, 2), "sparse": range(160, 201)}.get(name, range(160, 201))
        assert sent in expected, (name, sent)


def test_what_is_sent_is_larger_than_what_is_not():
    x = shapes(100_000)["heavy"]
    _, decoded, rest = coded(DGC(0.01), x)
    assert decoded[decoded != 0].abs().min() >= rest.abs().max()
    assert torch.equal(decoded + rest, x)


def test_exact_where_everything_is_sampled():
    x = shapes(3000)["gauss"]
    top = x.abs().topk(30).indices
    for compressor in (DGC(0.01, sample=1.0), DGC(0.01, sample=0.9999)):
        decoded = coded(compressor, x)[1]
        assert set(decoded.nonzero()[:, 0].tolist()) == set(top.tolist())
    assert DGC(0.01, sample=1.0).facts(3000).deterministic
    assert not DGC(0.01).facts(3000).deterministic


def test_odd_and_homogeneous():
    x = shapes(50_000)["gauss"]
    decoded = coded(DGC(0.001), x)[1]
    assert torch.equal(coded(DGC(0.001), -x)[1], -decoded)
    assert torch.equal(coded(DGC(0.001), x * 2**-20)[1], decoded * 2**-20)


def test_payload_size():
    x = shapes(100_000)["gauss"]
    wire, decoded, _ = coded(DGC(0.001, index="raw"), x)
    sent = int((decoded != 0).sum())
    assert wire.shape[1] == 4 + 4 * sent + -(-17 * sent // 8)
    assert 8 * coded(DGC(0.001), x)[0].shape[1] / x.numel() < 0.046
    assert 8 * coded(DGC(0.001, index="rice", values="bfloat16"), x)[0].shape[1] / x.numel() < 0.029


def test_warmup_is_the_list_of_the_paper():
    compressor = DGC(0.001, warmup=400)
    ratios = [compressor.ratio_at(step) for step in (0, 99, 100, 200, 300, 399, 400, 10_000)]
    paper = [0.25, 0.25, 0.0625, 0.015625, 0.004, 0.004, 0.001, 0.001]
    assert ratios == pytest.approx(paper, rel=0.02)
    x = shapes(10_000)["gauss"]
    assert int((coded(compressor, x, step=0)[1] != 0).sum()) > 1900
    assert int((coded(compressor, x, step=400)[1] != 0).sum()) <= 10


@pytest.mark.parametrize("compressor", [DGC(), DGC(0.1), DGC(0.02, 0.05, index="rice"), DGC(0.05, values="bfloat16")])
def test_bounds_and_edges(compressor: DGC):
    check_contraction(compressor)
    check_rows(compressor)
    check_corrupted(compressor)
    if compressor.values == "float32":
        check_ugly(compressor)


@pytest.mark.parametrize("world", [1, 3])  # the laws' tests run it with up to eight
def test_agreement_and_conservation(world: int):
    check_exchange(grace.Allgather(DGC(0.1, 0.2)), world)
    check_nothing_lost(grace.ErrorFeedback(grace.Allgather(DGC(0.05))), world)
    check_nothing_lost(grace.method("dgc:ratio=0.05,momentum=0,masking=false"), world)
    steps(grace.method("dgc:ratio=0.05,communicator=scatterreduce"), gradients(3, world, 40))


def test_knobs():
    for knobs in ({"ratio": 0}, {"ratio": 1.5}, {"sample": 0}, {"warmup": -1}, {"warmup": 1.5}, {"index": "gzip"}):
        with pytest.raises(ConfigurationError):
            DGC(**knobs)


def test_the_sample_is_the_streams():
    x = shapes(20_000)["gauss"][None]
    first, second = (DGC(0.001).compress_(x.clone(), stream(0, step), False) for step in (1, 1))
    assert torch.equal(first, second)
