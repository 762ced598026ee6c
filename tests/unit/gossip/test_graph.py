from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from grace.errors import ConfigurationError
from grace.gossip import GRAPHS, Graph
from grace.gossip.graph import Round

EIGHT_EDGES = {"workers": 8, "edges": [[i, (i + 1) % 8] for i in range(8)] + [[0, 4, 0.1]]}


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("world", [2, 3, 4, 6, 7, 8, 16])
def test_rows_and_columns_sum_to_one(name: str, world: int) -> None:
    if name == "torus" and world in (2, 3, 7):
        with pytest.raises(ConfigurationError, match="at least 2 rows and 2 columns"):
            Graph.read(name, world)
        return
    graph = Graph.read(name, world)
    for t in range(len(graph.cycle)):
        w = graph.matrix(t)
        assert bool((w >= -1e-12).all())
        torch.testing.assert_close(w.sum(0), torch.ones(world, dtype=torch.float64))
        torch.testing.assert_close(w.sum(1), torch.ones(world, dtype=torch.float64))
        for r in range(world):
            assert graph.own(t, r) == pytest.approx(float(w[r, r]))
    assert 0 < graph.gap <= 1


def test_gaps_of_the_specification() -> None:
    assert Graph.read("ring", 8).gap == pytest.approx(1 - (1 + math.sqrt(2)) / 3)
    assert Graph.read("exponential", 8).gap == pytest.approx(1 / 2)
    assert Graph.read("exponential", 16).gap == pytest.approx(2 / 5)
    assert Graph.read("one_peer_exponential", 8).gap == 1.0
    assert Graph.read("one_peer_exponential", 6).gap < 1
    assert Graph.read("full", 8).gap == 1.0
    assert Graph.read("ring", 2).gap == 1.0
    assert Graph.read("torus", 16).gap == pytest.approx(2 / 5)
    assert Graph.read("ring", 8).theory_gamma(0.1) == pytest.approx(0.000353, rel=0.01)


def test_who_hears_whom() -> None:
    ring = Graph.read("ring", 4)
    assert [turn.pairs[0] for turn in ring.rounds(0)] == [(0, 1), (0, 3)]
    assert len(Graph.read("ring", 2).rounds(0)) == 1  # both neighbours are one
    turns = Graph.read("one_peer_exponential", 8)
    assert [turns.rounds(t)[0].pairs[0][1] for t in range(4)] == [1, 2, 4, 1]
    torus = Graph.read("torus", 12)  # 3 x 4
    hears = {s for turn in torus.rounds(0) for s, d in turn.pairs if d == 5}
    assert hears == {4, 6, 1, 9}
    assert len(Graph.read("torus", 4).rounds(0)) == 2


def test_a_graph_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "graph.json"
    path.write_text(json.dumps(EIGHT_EDGES))
    graph = Graph.read(str(path), 8)
    w = graph.matrix()
    torch.testing.assert_close(w, w.T)
    assert float(w[0, 4]) == 0.1
    assert float(w[1, 2]) == pytest.approx(1 / 3)  # Metropolis: two neighbours each
    assert float(w[0, 1]) == pytest.approx(1 / 4)  # worker 0 has three
    assert len(graph.rounds(0)) >= 3
    path.write_text(json.dumps({"workers": 8, "shifts": [[1, 0.25], [7, 0.25]]}))
    assert float(Graph.read(str(path), 8).matrix()[3, 3]) == 0.5


@pytest.mark.parametrize(("told", "match"), [
    ({"workers": 8, "shifts": [[0, 0.5]]}, "hear themselves"),
    ({"workers": 8, "shifts": [[8, 0.5]]}, "hear themselves"),
    ({"workers": 8, "shifts": [[1, 0.6], [7, 0.6]]}, "sum to 1.2"),
    ({"workers": 8, "shifts": [[1, -0.1]]}, ">= 0"),
    ({"workers": 8, "shifts": [[1]]}, r"\[shift, weight\]"),
    ({"workers": 8, "shifts": 3}, "no list"),
    ({"workers": 4, "shifts": [[1, 0.5]]}, "is of 4 workers, and there are 8"),
    ({"workers": 8, "edges": [[0, 8]]}, "edge"),
    ({"workers": 8, "edges": [[1, 1]]}, "edge"),
    ({"workers": 8, "edges": [[0, 1], [1, 0]]}, "twice"),
    ({"workers": 8, "edges": [[0, 1, 0.7], [1, 2, 0.7]]}, "sum to 1.4"),
    ({"workers": 8, "edges": [[0, 1, 2.0]]}, "weight"),
    ({"workers": 8}, "form"),
    ([1, 2], "form"),
])  # fmt: skip
def test_bad_files(tmp_path: Path, told: object, match: str) -> None:
    path = tmp_path / "graph.json"
    path.write_text(json.dumps(told))
    with pytest.raises(ConfigurationError, match=match):
        Graph.read(str(path), 8)


def test_a_file_that_is_cut_or_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "graph.json"
    whole = json.dumps(EIGHT_EDGES)
    for end in (0, 1, len(whole) // 2, len(whole) - 1):
        path.write_text(whole[:end])
        with pytest.raises(ConfigurationError, match="is cut"):
            Graph.read(str(path), 8)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        Graph.read(str(tmp_path / "other.json"), 8)


def test_bad_graphs() -> None:
    with pytest.raises(ConfigurationError, match="at least 2"):
        Graph.read("ring", 1)
    with pytest.raises(ConfigurationError, match="Did you mean 'ring'"):
        Graph.read("rings", 4)
    with pytest.raises(ConfigurationError, match="4 workers, and there are 8"):
        Graph.read(Graph.read("ring", 4), 8)
    with pytest.raises(ConfigurationError, match="hear themselves"):
        Graph.circulant(4, [(4, 0.5)])
    star = (Round(((0, 1),), (0.0, 0.5, 0.0)), Round(((0, 2),), (0.0, 0.0, 0.5)))  # 0 is heard, and hears nobody
    with pytest.raises(ConfigurationError, match="would drift"):
        Graph("star", 3, (star,))
