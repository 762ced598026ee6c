"""MovieLens-20M as implicit feedback: whoever rated a film has touched it."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np

from grace.errors import DataError
from grace_bench.tasks.embedded.cache import load_or_build
from grace_bench.tasks.embedded.chunks import Array
from grace_bench.tasks.files.finding import Published

MOVIELENS = Published(
    "MovieLens-20M",
    "ratings.csv, or ml-20m/ratings.csv, with the first line userId,movieId,rating,timestamp and 20,000,263 more",
    "https://grouplens.org/datasets/movielens/20m/",
)
_HEAD = "userid,movieid,rating,timestamp"
FEWEST = 20  # ratings of a user who counts


def read_movielens(root: Path) -> dict[str, Array]:
    """``pairs`` int64 ``[n, 2]`` of a user and an item, by user and time, and ``held``, each user's latest item.

    Users with fewer than 20 ratings are left out; users and items are numbered as they first appear; of ratings at the
    same time the last in the file is the latest. The whole file makes 138,493 users, 26,744 items and 19,861,770 pairs.

    Raises:
        DataError: the file is not there or not of the form.
    """
    path = MOVIELENS.folder(root, "ratings.csv", ["ml-20m"]) / "ratings.csv"
    state = path.stat()
    key = (str(path.resolve()), state.st_size, state.st_mtime_ns)
    return load_or_build("movielens", key, lambda: _build_pairs(path))  # 20 million lines: workers parse them once


def _build_pairs(path: Path) -> dict[str, Array]:
    user, item, when = _read_ratings(path)
    keep = np.bincount(user)[user] >= FEWEST
    if not keep.any():
        raise MOVIELENS.malformed(path, f"no user has {FEWEST} ratings or more")
    user, item, when = _renumber(user[keep]), _renumber(item[keep]), when[keep]
    order = np.lexsort((np.arange(len(when)), when, user))
    user, item = user[order], item[order]
    _, first = np.unique(user * (item.max() + 1) + item, return_index=True)  # a pair counts once
    first.sort()
    user, item = user[first], item[first]
    last = np.append(np.flatnonzero(np.diff(user)), len(user) - 1)
    train = np.ones(len(user), bool)
    train[last] = False
    return {"pairs": np.stack([user[train], item[train]], axis=1), "held": item[last]}


def _read_ratings(path: Path) -> tuple[Array, Array, Array]:
    """Users, items and times, int64."""
    try:
        with path.open(encoding="ascii") as file:
            head = file.readline().strip()
            if head.lower() != _HEAD:
                raise MOVIELENS.malformed(path, f"its first line is {head[:80]!r}")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # about an empty file: an error below
                table = np.loadtxt(file, np.int64, delimiter=",", usecols=(0, 1, 3), ndmin=2)
    except DataError:
        raise
    except (ValueError, OverflowError) as error:  # UnicodeDecodeError is one
        raise MOVIELENS.malformed(path, str(error)) from error
    if not len(table) or table.min() < 0:
        raise MOVIELENS.malformed(path, "there are no ratings in it" if not len(table) else "a number is negative")
    return table[:, 0], table[:, 1], table[:, 2]


def _renumber(ids: Array) -> Array:
    """0, 1, ... in the order of first appearance."""
    values, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
    rank = np.empty(len(values), np.int64)
    rank[np.argsort(first, kind="stable")] = np.arange(len(values))
    numbers: Array = rank[inverse]
    return numbers
