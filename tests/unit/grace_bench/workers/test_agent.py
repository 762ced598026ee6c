import signal

import pytest

from grace_bench.workers.agent import find_killed

TERMINATED = -signal.SIGTERM  # how torchrun ends the others


@pytest.mark.parametrize(
    ("failures", "found"),
    [
        ([(5, 0, 1), (4, 1, -9)], (1, "SIGKILL")), ([(5, 0, -11), (4, 1, TERMINATED)], (0, "SIGSEGV")),
        ([(5, 0, -9), (4, 1, -11)], (1, "SIGSEGV")), ([(5, 0, TERMINATED)], None), ([(5, 0, 1)], None), ([], None),
    ],
)  # fmt: skip
def test_a_worker_that_a_signal_ended_is_found(failures, found):
    assert find_killed(failures) == found
