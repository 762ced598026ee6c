"""Quality, as the numbers of the survey's Table II mean it.

Letters: u users, c candidates, n images, h and w their sides.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from grace_bench.tasks.embedded.chunks import Array, stream

_LARGEST_EXPONENT = 50.0  # of a perplexity: what has diverged stays a number


def top1(logits: Tensor, labels: Tensor) -> float:
    """The share of samples whose largest logit is the label's."""
    return (logits.argmax(dim=1) == labels).double().mean().item()


def negatives(pairs: Array, held: Array, items: int, count: int = 100, seed: int = 1) -> Array:
    """``[u, count]`` items that the user never touched, drawn uniformly, with replacement.

    Args:
        pairs: ``[n, 2]`` of a user and an item.
        held: ``[u]``, one more item of each user.
        items: how many there are; every user must leave one untouched.
        count: negatives of each user.
        seed: of the draw.
    """
    random, users = stream(seed, 0), np.arange(len(held))
    touched = np.unique(np.concatenate([pairs[:, 0] * items + pairs[:, 1], users * items + held]))
    drawn = random.randint(0, items, (len(held), count))
    while True:
        codes = users[:, None] * items + drawn
        again = touched[np.minimum(np.searchsorted(touched, codes), len(touched) - 1)] == codes
        if not again.any():
            return drawn
        drawn[again] = random.randint(0, items, int(again.sum()))


def hit_rate(scores: Tensor, candidates: Tensor, k: int = 10) -> tuple[float, float]:
    """HR@k and NDCG@k of the last candidate among the others.

    Of copies of an item all but the last are masked, so that an item takes one place only. A tie counts as half, rounded
    up: a model that scores all alike gets no hit for it.

    Args:
        scores: ``[u, c]``.
        candidates: ``[u, c]`` items, the held-out one last.
        k: how many places are a hit, >= 1.
    """
    order = torch.argsort(candidates, dim=1, stable=True)
    ranked = candidates.gather(1, order)
    copy = torch.zeros_like(candidates, dtype=torch.bool)
    copy[:, :-1] = ranked[:, :-1] == ranked[:, 1:]
    scores = scores.masked_fill(torch.empty_like(copy).scatter_(1, order, copy), float("-inf"))
    others, own = scores[:, :-1], scores[:, -1:]
    rank = (others > own).sum(dim=1) + ((others == own).sum(dim=1) + 1) // 2
    hit = (rank < k).double()
    gain = hit * math.log(2) / torch.log(rank.double() + 2)
    return hit.mean().item(), gain.mean().item()


def perplexity(nats: float, tokens: int) -> float:
    """Exp of the mean of ``nats`` over ``tokens``."""
    return math.exp(min(nats / tokens, _LARGEST_EXPONENT))


def segmentation(probabilities: Tensor, masks: Tensor, threshold: float = 0.5, eps: float = 1e-5) -> dict[str, float]:
    """``paper_iou``, ``iou``, ``false_alarms``.

    ``paper_iou`` is what the survey calls IoU: the Dice coefficient (2 I + eps) / (A + B + eps), averaged over all images.
    An empty prediction on an image without a defect scores 1, so predicting nothing already gets their share. ``iou`` is
    intersection over union, averaged over the images with a defect; ``false_alarms`` the share of images without one
    where something is predicted. Both are NaN where there are no such images.

    Args:
        probabilities: ``[n, h, w]``, 0 to 1.
        masks: ``[n, h, w]``, 0 to 1.
        threshold: what is more is a defect.
        eps: of the Dice coefficient.
    """
    predicted, true = probabilities > threshold, masks > threshold
    both = (predicted & true).flatten(1).sum(1).double()
    a, b = predicted.flatten(1).sum(1).double(), true.flatten(1).sum(1).double()
    defective = b > 0
    return {
        "paper_iou": ((2 * both + eps) / (a + b + eps)).mean().item(),
        "iou": (both / (a + b - both).clamp(min=1))[defective].mean().item(),
        "false_alarms": (a[~defective] > 0).double().mean().item(),
    }
