import pytest

from grace_bench.workers.local import find_killed


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
