"""States with something missing, or of another type: StateError, and nothing has changed."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from grace.decoupled.learner import Learner
from grace.decoupled.settings import SyncerSettings
from grace.decoupled.syncer import Syncer
from grace.errors import StateError
from tests.unit.decoupled.test_syncer import EVERY, Table, parameters

FREE = {"stats", "members", "marks", "unsaved"}  # any of their items may be missing


def busy_table() -> Table:
    """A table at which a state has all that a state can have."""
    table = Table(up="topk:ratio=0.1", quorum=2)
    table.syncer.keeps = True
    for link in (1, 2):
        table.join(link)
    table.step(2, EVERY - 1)
    table.deaf.add(2)
    table.step(1, EVERY)
    table.step(2)
    table.tick(0.0)
    assert table.learners[1]._fragments[0].unsaved
    return table


def damage(state: Any, *path: Any) -> Iterator[tuple[tuple[Any, ...], bool, Any]]:
    """States in which an item is missing, or another thing is in its place: its path, whether it is missing, and the state."""
    item: Any = state
    for key in path:
        item = item[key]
    if isinstance(item, dict | list):
        for key in range(len(item)) if isinstance(item, list) else list(item):
            yield from damage(state, *path, key)
    for put in ("nothing", "a text", ["a list"], -1.5, None) if path else ():
        other = copy.deepcopy(state)
        at: Any = other
        for key in path[:-1]:
            at = at[key]
        if put == "nothing":
            del at[path[-1]]
        else:
            at[path[-1]] = put
        yield path, put == "nothing", other


def same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    return a.equal(b) if isinstance(a, torch.Tensor) else bool(a == b)


def test_damaged_states_of_syncers_are_refused_and_change_nothing():
    whole = busy_table().syncer.state_dict()
    assert whole["members"]["l1"]["shares"][0]["inbox"]
    refused = 0
    for path, missing, state in damage(whole):
        syncer = Syncer(SyncerSettings(3), "own")
        before = syncer.state_dict()
        try:
            syncer.load_state_dict(state, 0.0)
        except StateError:
            refused += 1
            assert same(syncer.state_dict(), before), path
        else:  # a learner fewer, or another name
            assert not missing or not isinstance(path[-1], str) or (path[-2:-1] and path[-2] in FREE), path
    assert refused > 100


def test_a_state_with_a_codec_that_is_not_here_is_refused():
    whole = busy_table().syncer.state_dict()
    whole["plan"]["up"] = "nonesuch"
    with pytest.raises(StateError, match="a codec that cannot be used"):
        Syncer(SyncerSettings(3), "own").load_state_dict(whole, 0.0)


def test_damaged_states_of_learners_are_refused_and_change_nothing():
    table = busy_table()
    whole = table.learners[1].state_dict()
    refused = 0
    for path, missing, state in damage(whole):
        learner = Learner("l1", parameters(), table.plan)
        before = learner.state_dict()
        try:
            learner.load_state_dict(state)
        except StateError:
            refused += 1
            assert same(learner.state_dict(), before), path
        else:
            assert not missing or not isinstance(path[-1], str) or (path[-2:-1] and path[-2] in FREE), path
    assert refused > 50
