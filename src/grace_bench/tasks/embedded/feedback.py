"""Procedural implicit feedback: users and items with latent tastes, and items with a popularity."""

from __future__ import annotations

import math

import numpy as np

from grace_bench.tasks.embedded.cache import load_or_build
from grace_bench.tasks.embedded.chunks import Array, stream

CHUNK = 1000
_FEWEST = 20  # items of a user, as in MovieLens
_RANK, _GROUPS = 6, 20
_SHARPNESS, _POPULARITY = 2.2, 0.8
_LOG_MEAN, _LOG_STD = 3.4, 0.45  # of the number of a user's items


def feedback(users: int, items: int, seed: int = 13) -> dict[str, Array]:
    """``pairs`` int64 ``[n, 2]`` of a user and an item, by user, and ``held``, one more item of each user.

    A user has a taste around that of one of 20 groups. The user's items, 20 and more, are drawn without replacement with
    probabilities proportional to exp(2.2 sqrt(6) taste . item + 0.8 popularity); the last one drawn in a random order
    is held out.
    """

    def build() -> dict[str, Array]:
        world = stream(seed, 0)
        tastes = _unit(world.standard_normal((items, _RANK)))
        popularity = world.standard_normal(items)
        centers = world.standard_normal((_GROUPS, _RANK))
        pairs: list[Array] = []
        held: list[int] = []
        for chunk in range(-(-users // CHUNK)):
            for drawn in _chunk(chunk, tastes, popularity, centers, seed)[: users - chunk * CHUNK]:
                pairs.append(np.stack([np.full(len(drawn) - 1, len(held)), drawn[:-1]], axis=1))
                held.append(int(drawn[-1]))
        return {"pairs": np.concatenate(pairs).astype(np.int64), "held": np.array(held, np.int64)}

    return load_or_build("feedback", (users, items, seed), build)


def _unit(x: Array) -> Array:
    unit: Array = x / np.linalg.norm(x, axis=1, keepdims=True)
    return unit


def _chunk(chunk: int, tastes: Array, popularity: Array, centers: Array, seed: int) -> list[Array]:
    """The items of 1,000 users."""
    random, items = stream(seed, 1 + chunk), len(tastes)
    groups = random.randint(0, _GROUPS, CHUNK)
    users = _unit(centers[groups] + 0.5 * random.standard_normal((CHUNK, _RANK)))
    counts = np.clip(np.exp(random.normal(_LOG_MEAN, _LOG_STD, CHUNK)).astype(int), _FEWEST, max(_FEWEST, items // 4))
    logits = _SHARPNESS * math.sqrt(_RANK) * (users @ tastes.T) + _POPULARITY * popularity
    order = np.argsort(-(logits + random.gumbel(size=logits.shape)), axis=1)  # Gumbel's trick: without replacement
    return [random.permutation(order[i, : counts[i]]) for i in range(CHUNK)]
