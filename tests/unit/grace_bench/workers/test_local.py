import signal

import pytest

from grace.transports.launchers import LOCAL_WORLD
from grace_bench.network.namespaces import ShapedNetwork
from grace_bench.runs.config import RunConfig
from grace_bench.workers.local import _environment_of, find_killed, terminable


@pytest.mark.parametrize(
    ("statuses", "killed"),
    [
        ([1, -9], (1, "SIGKILL")),
        ([-11, -9], (0, "SIGSEGV")),
        ([None, -15], (1, "SIGTERM")),
        ([1, None], None),
        ([], None),
    ],
)
def test_a_worker_that_a_signal_ended_is_found(statuses, killed):
    assert find_killed(statuses) == killed


def test_a_command_that_is_terminated_ends_through_its_finally_clauses():
    before, ended = signal.getsignal(signal.SIGTERM), []

    def work():
        with terminable():
            try:
                signal.raise_signal(signal.SIGTERM)
            finally:
                ended.append(True)

    with pytest.raises(SystemExit) as left:
        work()
    assert (left.value.code, ended) == (143, [True])
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_signal_that_is_ignored_stays_so():
    """As SIGHUP does under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with terminable():
            signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(("machines", "local"), [(None, "1"), (2, "2"), (1, "4")])
def test_workers_behind_links_of_their_own_are_on_machines_of_their_own(machines, local):
    config = RunConfig("digits", "topk", workers=4, steps=1)
    assert _environment_of(config, None)[LOCAL_WORLD] == "4"
    assert _environment_of(config, ShapedNetwork(config.network, 4, machines))[LOCAL_WORLD] == local
