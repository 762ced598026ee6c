import pytest

from grace.transports.joining import LOCAL_WORLD
from grace_bench.network.namespaces import ShapedNetwork
from grace_bench.runs.config import RunConfig
from grace_bench.workers.local import _environment_of, find_killed


@pytest.mark.parametrize(
    ("statuses", "found"),
    [
        ([1, -9], (1, "SIGKILL")),
        ([-11, -9], (0, "SIGSEGV")),
        ([None, -15], (1, "SIGTERM")),
        ([1, None], None),
        ([], None),
    ],
)
def test_a_worker_that_a_signal_ended_is_found(statuses, found):
    assert find_killed(statuses) == found


@pytest.mark.parametrize(("machines", "local"), [(None, "1"), (2, "2"), (1, "4")])
def test_workers_behind_links_of_their_own_are_on_machines_of_their_own(machines, local):
    config = RunConfig("digits", "topk", workers=4, steps=1)
    assert _environment_of(config, None)[LOCAL_WORLD] == "4"
    assert _environment_of(config, ShapedNetwork(config.network, 4, machines))[LOCAL_WORLD] == local
