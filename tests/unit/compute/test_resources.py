import mmap
import os
import sys
from pathlib import Path

import pytest
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


def flags_at(address: int) -> list[str]:
    """Flags that the system notes of the memory there."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split()[0]:
            first, last = (int(end, 16) for end in line.split()[0].split("-"))
            inside = first <= address < last
        elif inside and line.startswith("VmFlags:"):
            return line.split()[1:]
    raise AssertionError(f"nothing at {address:x}")


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux")
def test_large_pages_are_asked_for_where_they_fit_wholly():
    with mmap.mmap(-1, 8 * resources.LARGE_PAGE) as fresh:  # an allocator may give memory for which somebody has asked
        ask_for_pages_of(torch.frombuffer(fresh, dtype=torch.uint8))


def ask_for_pages_of(memory):
    before = -memory.data_ptr() % resources.LARGE_PAGE  # bytes before the first large page
    assert not resources.ask_for_large_pages(memory[before + 1 : before + resources.LARGE_PAGE + 1])
    assert not resources.ask_for_large_pages(memory[:0])
    if resources.ask_for_large_pages(memory[before + 1 :]):  # else the system has none
        assert "hg" in flags_at(memory.data_ptr() + before + resources.LARGE_PAGE)
        assert "hg" not in flags_at(memory.data_ptr() + before)


def test_where_nobody_can_be_asked_nothing_happens(monkeypatch):
    monkeypatch.setattr(resources, "_advise", lambda: None)
    assert not resources.ask_for_large_pages(torch.empty(8 * resources.LARGE_PAGE, dtype=torch.uint8))
