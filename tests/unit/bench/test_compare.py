from grace.bench.compare import Outcome, document, with_baseline
from tests.unit.bench.documents import document as result


def test_the_baseline_comes_first_and_no_method_twice():
    assert with_baseline("topk:ratio=0.01,none,topk,qsgd:bits=4,bucket=64") == [
        "none", "topk:ratio=0.01", "qsgd:bits=4,bucket=64",
    ]  # fmt: skip


def test_failures_are_part_of_the_document():
    found = document([Outcome("none", result=result()), Outcome("bad", error="why")])
    assert found["failed"] == [{"method": "bad", "error": "why"}]
    assert len(found["results"]) == 1
