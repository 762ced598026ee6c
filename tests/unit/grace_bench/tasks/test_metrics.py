import math

import numpy as np
import pytest
import torch

from grace_bench.tasks import metrics


def test_top1():
    logits = torch.tensor([[0.0, 2.0, 1.0], [3.0, 2.0, 1.0], [0.0, 0.0, 1.0], [1.0, 5.0, 2.0]])
    assert metrics.top1(logits, torch.tensor([1, 0, 0, 2])) == 0.5


def test_negatives_are_untouched():
    random = np.random.RandomState(0)
    pairs = np.unique(np.stack([random.randint(0, 6, 60), random.randint(0, 20, 60)], 1), axis=0)
    held = np.array([(pairs[pairs[:, 0] == u, 1].max() + 1) % 20 for u in range(6)])
    drawn = metrics.negatives(pairs, held, 20, count=50)
    assert drawn.shape == (6, 50)
    touched = {(int(u), int(i)) for u, i in pairs} | set(enumerate(held.tolist()))
    assert not touched & {(u, i) for u in range(6) for i in drawn[u].tolist()}
    assert {i for _, i in touched} & set(drawn.ravel().tolist())  # others' items may be drawn
    assert np.array_equal(drawn, metrics.negatives(pairs, held, 20, count=50))


def make_scores(better, ties, others=20):
    """Scores where ``better`` candidates beat the held-out one and ``ties`` equal it."""
    scores = [1.0] * better + [0.0] * ties + [-1.0] * (others - better - ties) + [0.0]
    return torch.tensor([scores]), torch.arange(others + 1)[None]


@pytest.mark.parametrize(
    ("better", "ties", "rank"),
    [(0, 0, 0), (9, 0, 9), (10, 0, None), (0, 19, None), (0, 18, 9), (8, 2, 9), (8, 3, None)],
)
def test_hit_rate_by_hand(better, ties, rank):
    hits, gain = metrics.hit_rate(*make_scores(better, ties))
    assert hits == (rank is not None)
    assert gain == pytest.approx(0.0 if rank is None else 1 / math.log2(rank + 2))


def test_copies_take_one_place():
    # Ten negatives beat the held-out item, but they are five items twice; one more is the held-out item itself.
    candidates = torch.tensor([[1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 9, 9]])
    scores = torch.tensor([[2.0] * 10 + [0.0, 0.0]])
    hits, gain = metrics.hit_rate(scores, candidates, k=6)
    assert (hits, gain) == (1.0, pytest.approx(1 / math.log2(7)))
    assert metrics.hit_rate(scores, candidates, k=5)[0] == 0.0


def test_hit_rate_is_the_mean_over_users():
    scores = torch.cat([make_scores(0, 0)[0], make_scores(15, 0)[0]])
    assert metrics.hit_rate(scores, torch.arange(21).expand(2, -1))[0] == 0.5


def test_perplexity():
    assert metrics.perplexity(100 * math.log(7), 100) == pytest.approx(7)
    assert math.isfinite(metrics.perplexity(1e9, 1))


def test_segmentation_by_hand():
    masks, predicted = torch.zeros(4, 4, 4), torch.zeros(4, 4, 4)
    masks[0, :2, :2] = 1  # 4 pixels; 4 found, 2 of them right: Dice 4/8, IoU 2/6
    predicted[0, 0, :] = 0.9
    masks[1, 0, 0] = 1  # nothing found: 0
    predicted[2, 3, 3] = 0.6  # a false alarm: 0
    result = metrics.segmentation(predicted, masks)  # the fourth has no defect, and none is found: 1
    assert result["paper_iou"] == pytest.approx((0.5 + 0 + 0 + 1) / 4, abs=1e-5)
    assert result["iou"] == pytest.approx((2 / 6 + 0) / 2)
    assert result["false_alarms"] == 0.5


def test_predicting_nothing_has_the_surveys_floor():
    masks = torch.zeros(575, 2, 2)
    masks[:71, 0, 0] = 1
    result = metrics.segmentation(torch.zeros(575, 2, 2), masks)
    assert result["paper_iou"] == pytest.approx(504 / 575, abs=1e-4)  # 0.877
    assert (result["iou"], result["false_alarms"]) == (0, 0)


def test_there_is_no_iou_without_a_defect():
    result = metrics.segmentation(torch.zeros(2, 2, 2), torch.zeros(2, 2, 2))
    assert math.isnan(result["iou"])
    assert result["paper_iou"] == 1
