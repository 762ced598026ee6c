import platform

import pytest
import torch

from grace_bench import machine
from grace_bench.codecs.clock import Clock


def test_the_machine_tells_plausible_numbers():
    assert 1 << 10 <= machine.last_level_cache() <= 1 << 40
    assert machine.available_memory() > 1 << 20
    assert 1 <= machine.cores() <= 1 << 16
    assert machine.load() >= 0
    assert machine.processor()
    assert Clock(1.0).eviction >= 1 << 20
    assert machine.versions()["python"] == platform.python_version()


@pytest.mark.parametrize(("load", "busy"), [(0.4, False), (1.2, True), (None, False)])
def test_a_busy_machine(load, busy):
    assert machine.is_busy(load, cores=2) == busy


def test_threads_are_as_before():
    before = torch.get_num_threads()
    with machine.threads(before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before


def test_free_memory_is_what_the_machine_or_its_control_group_leaves(monkeypatch, tmp_path):
    limit, used = tmp_path / "max", tmp_path / "current"
    limit.write_text("3000\n")
    used.write_text("1000\n")
    monkeypatch.setattr(machine, "_CONTROL_GROUP", (limit, used))
    assert machine.available_memory() == 2000
    limit.write_text("max\n")
    assert machine.available_memory() > 10**6
