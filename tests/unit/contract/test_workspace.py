"""Scratch memory is reused, aligned, and does not overlap."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence

import pytest
import torch

from grace.compute import resources
from grace.contract.workspace import Workspace
from grace.kernels.tensor_list import SIDES

CPU = torch.device("cpu")


def test_what_is_taken_does_not_overlap():
    space = Workspace()
    taken = [space.take((n, 3), dtype, CPU) for n in range(40) for dtype in (torch.float32, torch.uint8, torch.float64)]
    for i, piece in enumerate(taken):
        piece.fill_(i % 200)
    for i, piece in enumerate(taken):
        assert bool((piece == i % 200).all())
        assert piece.numel() == 0 or piece.data_ptr() % 64 == 0


def test_shapes():
    space = Workspace()
    assert space.take(5, torch.int64, CPU).shape == (5,)
    assert space.take((), torch.float32, CPU).shape == ()
    assert space.take((2, 0), torch.float32, CPU).shape == (2, 0)


def test_the_steady_state_allocates_nothing():
    space = Workspace()

    def step() -> list[int]:
        pointers = [space.take(n, torch.float32, CPU).data_ptr() for n in (1000, 50_000, 3)]
        space.reset()
        return pointers

    step()
    assert step() == step()
    assert len(space._blocks) == 1


def test_more_than_before_still_fits():
    space = Workspace()
    space.take(10, torch.float32, CPU)
    space.reset()
    small, large = space.take(10, torch.float32, CPU).fill_(1), space.take(10_000, torch.float32, CPU).fill_(2)
    assert bool((small == 1).all())
    assert bool((large == 2).all())


def test_of_the_ways_under_a_key_the_latest_are_kept():
    space = Workspace()
    for way in range(1, 40):
        space.keep("tensors", way, f"plan {way}")
        space.keep("tensors", 0, "plan 0")
    assert space.find("tensors", 0) == "plan 0"
    assert space.find("tensors", 39) == "plan 39"
    assert space.find("tensors", 1) is space.find("others", 0) is None
    assert len(space.kept["tensors"]) == 4


def test_large_pages_are_asked_for_whatever_is_allocated(monkeypatch):
    sizes = []
    monkeypatch.setattr(resources, "ask_for_large_pages", lambda block: sizes.append(block.numel()))
    space = Workspace()
    space.take(10_000, torch.float32, CPU)
    space.take(10_000, torch.float32, CPU)
    space.reset()
    assert sizes == [40_000, 40_000, 80_000]


def test_what_is_taken_again_is_of_the_block_that_serves_all() -> None:
    """Views are kept from step to step; those of a block that is gone are not handed out."""
    workspace, device = Workspace(), torch.device("cpu")
    for _ in range(3):
        parts = [workspace.take((3, 500), torch.float32, device) for _ in range(4)]
        first = [part.data_ptr() for part in parts]
        for i, part in enumerate(parts):
            part.fill_(i)
        assert [float(part.mean()) for part in parts] == [0.0, 1.0, 2.0, 3.0]
        workspace.reset()
    again = [workspace.take((3, 500), torch.float32, device) for _ in range(4)]
    assert [part.data_ptr() for part in again] == first
    assert len({part.untyped_storage().data_ptr() for part in again}) == 1
    assert workspace.take((3, 500), torch.int32, device).dtype is torch.int32


class Late:
    """A device that is a step behind: what is marked is done when somebody says so."""

    def __init__(self) -> None:
        self.done = False

    def mark(self, device: torch.device) -> Callable[[], bool]:
        return lambda: self.done


def test_what_is_dropped_lives_until_the_device_is_done_with_it():
    """Its allocator would give it away at once, to another stream than the one that still reads it."""
    device = Late()
    space = Workspace(device.mark)
    small, large = space.take(10, torch.float32, CPU), space.take(10_000, torch.float32, CPU)
    space.kept["table"] = table = torch.zeros(3)
    dropped = [weakref.ref(x.untyped_storage()) for x in (small, large, table)]
    del small, large, table
    for _ in range(2):
        space.reset()
        assert not space.kept
        assert all(storage() is not None for storage in dropped)
    device.done = True
    space.reset()
    assert all(storage() is None for storage in dropped)


def test_on_the_host_what_is_dropped_is_free_at_once():
    space = Workspace()
    small = weakref.ref(space.take(10, torch.float32, CPU).untyped_storage())
    space.take(10_000, torch.float32, CPU)
    space.reset()
    assert small() is None


def wander(buckets: Sequence[Sequence[int]], steps: int) -> int:
    """Most tables that a bucket of states of these sizes has seen, of (states, successors) by their addresses."""
    space = Workspace()
    states = [[torch.empty(n) for n in sizes] for sizes in buckets]
    seen: list[set[tuple[int, ...]]] = [set() for _ in buckets]
    for _ in range(steps):
        for i, olds in enumerate(states):
            news = [space.borrow_successor(old) for old in olds]
            seen[i].add(tuple(x.data_ptr() for x in (*olds, *news)))
            for old in olds:
                space.give_back(old)
            states[i] = news
            space.reset()
    return max(map(len, seen))


@pytest.mark.parametrize(("buckets", "tensors"), [(17, 6), (33, 4), (100, 4)])
def test_states_that_wander_come_back(buckets: int, tensors: int):
    assert wander([[8] * tensors] * buckets, 2 * buckets + 20) == buckets + 1 <= SIDES


def test_states_of_unequal_buckets_come_back_too():
    assert wander([[8] * (3 + i % 3) + [9] * (1 + i % 2) for i in range(17)], 700) == 217 <= SIDES
