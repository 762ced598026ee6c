import os

import torch

from grace.compute import resources


def test_the_machine_tells_plausible_numbers():
    assert resources.available_memory() > 1 << 20
    assert 1 <= resources.cores() <= (os.cpu_count() or 1)


def test_threads_are_as_before():
    before = torch.get_num_threads()
    with resources.threads(before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before


def test_free_memory_is_what_the_machine_or_its_control_group_leaves(monkeypatch, tmp_path):
    limit, used = tmp_path / "max", tmp_path / "current"
    limit.write_text("3000\n")
    used.write_text("1000\n")
    monkeypatch.setattr(resources, "_CONTROL_GROUP", (limit, used))
    assert resources.available_memory() == 2000
    limit.write_text("max\n")
    assert resources.available_memory() > 10**6


def test_where_the_system_does_not_tell_it_is_half_of_what_there_is(monkeypatch, tmp_path):
    monkeypatch.setattr(resources, "_MEMORY", tmp_path / "none")
    monkeypatch.setattr(resources, "_CONTROL_GROUP", (tmp_path / "max", tmp_path / "current"))
    half = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    assert resources.available_memory() == half
