import pytest

from grace.errors import ConfigurationError
from grace_bench.runs.config import RunConfig
from grace_bench.runs.record import file_name, find_target
from grace_bench.runs.results import Target
from grace_bench.tasks.digits import Digits
from tests.unit.grace_bench.documents import point


def test_file_names_are_plain():
    assert file_name(RunConfig("my.tasks:Own", "topk:ratio=0.01")) == "my.tasks_Own-topk_ratio=0.01-4workers-seed0.json"


@pytest.mark.parametrize("wrong", [{"workers": 0}, {"steps": 0}, {"epochs": -1.0}, {"lr": 0.0}, {"seed": -1}])
def test_a_run_is_checked_before_it_starts(wrong):
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        RunConfig("digits", "none", **wrong)


class Targeted(Digits):
    target = 0.5


def test_the_target_is_reached_at_the_first_evaluation_that_has_it():
    curve = [point(value, step) for step, value in enumerate([None, 0.4, 0.6, 0.7])]
    assert find_target(Targeted(), curve) == Target(0.5, 0.4, 0.2, 2)
    assert find_target(Targeted(), curve[:2]) == Target(0.5)
    lower = Targeted()
    lower.better = "lower"
    assert find_target(lower, curve).step == 1
    untargeted = Digits()
    if untargeted.target is None:
        assert find_target(untargeted, curve) is None
