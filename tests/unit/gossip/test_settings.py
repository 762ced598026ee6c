from __future__ import annotations

from typing import Any

import pytest
import torch

import grace
from grace.communicators import Allgather
from grace.errors import CompositionError, ConfigurationError, NonFiniteError, UnknownNameError
from grace.gossip import ALGORITHMS, DPSGD, Choco, GossipSettings, GossipSimulator, Graph, is_gossip, read_gossip
from grace.methods import QSGD, TopK


def test_texts_and_arguments_make_the_same() -> None:
    text = "choco:graph=torus,method=(topk:ratio=0.1,index=raw),gamma=0.2,average_every=5,overlap=true,nonfinite=error"
    made = read_gossip(text)
    assert made == GossipSettings("choco", "torus", TopK(0.1, "raw"), 0.2, 5, True, "error")
    given = read_gossip(
        "topk:ratio=0.1,index=raw", graph="torus", gamma=0.2, average_every=5, overlap=True, nonfinite="error"
    )
    assert given == made
    assert read_gossip("choco:method=topk,gamma=0.2", gamma=0.1).gamma == 0.1
    assert read_gossip().algorithm == read_gossip("none").algorithm == "dpsgd"
    assert read_gossip("deepsqueeze:method=qsgd").algorithm == "deepsqueeze"
    assert [is_gossip(text) for text in (*ALGORITHMS, "choco:method=topk", "topk:ratio=0.1")] == [True] * 4 + [False]


def test_the_compressor_is_the_one_whose_error_stays_bounded() -> None:
    assert read_gossip("qsgd:bits=4").compressor == QSGD(bits=4).with_memory() != QSGD(bits=4)
    assert read_gossip(QSGD(bits=4)).compressor == QSGD(bits=4).with_memory()


@pytest.mark.parametrize(("given", "error", "match"), [
    ({"compressor": "topk:memory=residual"}, CompositionError, "names a memory"),
    ({"compressor": "topk:memory.beta=0.5"}, CompositionError, "names a memory"),
    ({"compressor": "topk:communicator=allgather"}, CompositionError, "names a communicator"),
    ({"compressor": "topk:machine=2"}, CompositionError, "names a machine"),
    ({"compressor": grace.method("topk")}, CompositionError, "ErrorFeedback, Allgather around"),
    ({"compressor": Allgather(TopK())}, CompositionError, "the compressor alone"),
    ({"compressor": "powersgd"}, CompositionError, "exchange of its own"),
    ({"compressor": "topk:ratio=warmup(0.2->0.1, 5 steps)"}, CompositionError, "follow the step"),
    ({"compressor": "topk", "graph": "one_peer_exponential"}, CompositionError, "differs from step to"),
    ({"compressor": "topkk"}, UnknownNameError, "topk"),
    ({"compressor": "topk", "algorithm": "chocco"}, UnknownNameError, "choco"),
    ({"compressor": "choco:method=topk,gama=1"}, UnknownNameError, "gamma"),
    ({"compressor": "choco:method=topk", "algorithm": "dpsgd"}, ConfigurationError, "differ"),
    ({"compressor": "choco"}, ConfigurationError, "needs a compressor"),
    ({"compressor": "topk", "algorithm": "dpsgd"}, ConfigurationError, "would drift"),
    ({"gamma": 0.0}, ConfigurationError, "gamma"),
    ({"gamma": 1.5}, ConfigurationError, "gamma"),
    ({"average_every": -1}, ConfigurationError, "average_every"),
    ({"nonfinite": "skip"}, ConfigurationError, "nonfinite"),
    ({"overlap": 1}, ConfigurationError, "overlap"),
    ({"compressor": 3}, CompositionError, "no compressor"),
])  # fmt: skip
def test_bad_input(given: dict[str, Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        read_gossip(**given)


def test_votes_are_refused_and_a_step_size_that_does_not_follow_is_asked_for() -> None:
    big = torch.empty(40, 40)
    with pytest.raises(ConfigurationError, match="give gamma="):
        GossipSettings("choco", compressor=read_gossip("eden:bits=2").compressor).conversation(
            big, Graph.read("ring", 4)
        )
    with pytest.raises(CompositionError, match="vote"):
        GossipSettings("choco", compressor=grace.SignSGD(), gamma=0.1).conversation(big, Graph.read("ring", 4))


def test_small_tensors_go_uncompressed_and_others_have_the_compressors_step_size() -> None:
    settings, graph = read_gossip("topk:ratio=0.1"), Graph.read("ring", 4)
    assert settings.conversation(torch.empty(40, 40), graph) == Choco(graph, TopK(0.1), 0.1)
    for small in (torch.empty(2000), torch.empty(10, 10)):
        assert settings.conversation(small, graph) == DPSGD(graph)


def test_the_simulator() -> None:
    made = torch.Generator().manual_seed(0)
    xs = {
        "w": [torch.randn(40, 40, generator=made) for _ in range(6)],
        "b": [torch.randn(40, generator=made) for _ in range(6)],
    }
    simulator = GossipSimulator("choco:graph=ring,method=(topk:ratio=0.1),average_every=4", 6)
    first = {name: sum(each) / 6 for name, each in xs.items()}
    for step in range(4):
        xs = simulator.step(xs)
        assert all(torch.equal(x, xs["w"][0]) for x in xs["w"]) == (step == 3)
    for name, mean in first.items():
        torch.testing.assert_close(xs[name][0], mean, rtol=1e-5, atol=1e-5)
    before = simulator.traffic[0].sent
    for _ in range(3):  # who agrees goes on agreeing
        after = simulator.step({name: list(each) for name, each in xs.items()})
        for name, each in after.items():
            assert all(torch.allclose(x, xs[name][0], rtol=0, atol=1e-6) for x in each)
    assert simulator.traffic[0].sent > before
    sent = TopK(0.1).facts(1600).payload
    assert sent * 2 * 3 <= before <= (sent + 4) * 2 * 3 + 2 * 3 * 160 + 3 * 107  # and biases, and 64 bytes agreed
    strict = GossipSimulator("dpsgd:nonfinite=error", 2)
    with pytest.raises(NonFiniteError, match="'w'"):
        strict.step({"w": [torch.ones(2), torch.full((2,), torch.nan)]})
    with pytest.raises(ConfigurationError, match="at least 2"):
        GossipSimulator("dpsgd", 1)
