import pytest

from grace.bench.config import RunConfig
from grace.bench.results import failure_of, reached
from grace.bench.schema import problems
from grace.bench.table import line, table_csv
from grace.bench.tasks.digits import Digits
from tests.unit.bench.documents import document

FAILED = failure_of(RunConfig("digits", "topk", link="1gbit"), "why", ["grace"])


@pytest.mark.parametrize(
    "fine", [document(), FAILED, document(nic={"sent_bytes_per_step": 1.0, "received_bytes_per_step": 2})]
)
def test_documents_have_the_form(fine):
    assert problems(fine) == []


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"time": None}, "$.time"), ({"version": 1}, "$.version"), ({"link": {"name": "none"}}, "$.link"),
        ({"curve": [{"step": 1}]}, "$.curve[0]"), ({"replicas_agree": False}, "$.replicas_agree"),
    ],
)  # fmt: skip
def test_what_departs_from_the_form_is_named(change, where):
    assert any(problem.startswith(where) for problem in problems(document(**change)))


def test_a_failed_run_with_a_result_is_none():
    assert problems({**FAILED, "final": 0.5})


def test_a_missing_field_is_named():
    broken = document()
    del broken["traffic"]
    assert any("traffic" in problem for problem in problems(broken))


def test_a_line_of_the_table():
    found = line(document())
    assert found["link"] == "none"
    assert found["step_ms"] == 3.0
    assert found["prediction_error"] == 0.1
    assert found["nic_sent_bytes_per_step"] is None
    assert line(FAILED)["step_ms"] is None
    assert line(FAILED)["link_bits_per_second"] == 1e9


def test_an_empty_table_has_a_heading():
    assert table_csv([]).startswith("task,kind,method,")


class Targeted(Digits):
    target = 0.5


def test_the_target_is_reached_at_the_first_evaluation_that_has_it():
    curve = [
        {"accuracy": value, "seconds": float(step), "epoch": 0.1 * step, "step": step}
        for step, value in enumerate([None, 0.4, 0.6, 0.7])
    ]
    assert reached(Targeted(), curve) == {"value": 0.5, "seconds": 2.0, "epoch": 0.2, "step": 2}
    assert reached(Targeted(), curve[:2]) == {"value": 0.5, "seconds": None, "epoch": None, "step": None}
    lower = Targeted()
    lower.better = "lower"
    assert reached(lower, curve)["step"] == 1
    untargeted = Digits()
    if untargeted.target is None:
        assert reached(untargeted, curve) is None
