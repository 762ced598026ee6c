import platform

import pytest

from grace_bench import machine
from grace_bench.codecs.clock import Clock


def test_the_machine_tells_plausible_numbers():
    assert 1 << 10 <= machine.last_level_cache() <= 1 << 40
    assert machine.load() >= 0
    assert machine.processor()
    assert Clock(1.0).eviction >= 1 << 20
    assert machine.versions()["python"] == platform.python_version()


@pytest.mark.parametrize(("load", "busy"), [(0.4, False), (1.2, True), (None, False)])
def test_a_busy_machine(load, busy):
    assert machine.is_busy(load, cores=2) == busy
