"""Methods that ``auto`` may use, by what the survey knows."""

from __future__ import annotations

import itertools

import pytest

import grace
from benchmarks.evidence import read_known, write_known
from grace.auto import classes
from grace.auto.classes import QUALITIES, Known, evidence_of, known, permitted
from grace.errors import ConfigurationError
from grace.run.optimizer import Settings
from grace_bench.survey.evidence import Quality


def test_the_table_is_what_the_evidence_says() -> None:
    assert classes.PATH.read_text(encoding="utf-8") == read_known(), "python -m docs.survey.findings writes it"


def test_classes_hold_each_other_and_begin_with_what_is_compared() -> None:
    for world in (2, 4, 16):
        held = [permitted(quality, world)[0] for quality in QUALITIES]
        assert held[0] == ["none", "bf16"]
        for smaller, larger in itertools.pairwise(held):
            assert set(smaller) <= set(larger)
            assert larger[:2] == ["none", "bf16"]
    assert len(held[2]) > len(held[1]) > 2


def test_what_is_in_a_class_can_be_made_and_was_measured() -> None:
    for name, of in known().items():
        assert grace.spell(grace.method(name)) == name
        assert of.quality in ("", "safe", "fast")
        if of.quality:
            assert of.tasks >= 2
            assert of.loss is not None


def test_what_many_workers_make_dear_is_left_out() -> None:
    few, many = permitted("safe", 2), permitted("safe", 64)
    gathered = [name for name in few[0] if name in many[1]]
    assert gathered
    assert "sends no less than bf16 among 64 workers" in many[1][gathered[0]]


def test_what_needs_another_optimizer_is_left_out() -> None:
    momentum = Settings(momentum=0.9, lr=0.1)
    names, left_out = permitted("fast", 2, momentum, ["dgc", "topk"])
    assert names == ["none", "bf16", "topk"]
    assert left_out == {"dgc": "needs momentum 0 (it is 0.9)"}
    assert permitted("fast", 2, Settings(momentum=0.0, lr=0.1), ["dgc"])[0] == ["none", "bf16", "dgc"]
    assert "dgc" in permitted("fast", 2, None, ["dgc"])[1], "unknown is not met"


def test_what_is_named_need_not_be_in_the_class_but_exist() -> None:
    assert permitted("exact", 2, None, ["topk:ratio=0.001"])[0] == ["none", "bf16", "topk:ratio=0.001"]
    with pytest.raises(ConfigurationError, match="topc"):
        permitted("safe", 2, None, ["topc"])


def test_memories_can_be_left_out() -> None:
    names, left_out = permitted("safe", 2, None, ["topk", "qsgd:bits=4"], memoryless=True)
    assert names == ["none", "bf16", "qsgd:bits=4"]
    assert "has a memory" in left_out["topk"]


def test_on_how_little_it_rests_is_said() -> None:
    assert evidence_of("none") == "the sum itself"
    assert evidence_of("topk:ratio=0.123") == "nobody measured it"
    assert str(Known("safe", 0.013, "ncf_small", 4, 12)) == "at worst 1.3% below fp32 on ncf_small (4 tasks, 12 runs)"
    assert str(Known("", None, "digits", 1, 1)).startswith("diverged on digits")
    assert str(Known("safe", -0.01, "digits", 2, 6)).startswith("at worst not below fp32")


PLAIN = Quality(3, 0.80, 0.79, 0.81, 1.0, True)
CLOSE = Quality(3, 0.79, 0.78, 0.80, 0.1, True)
WORSE = Quality(3, 0.70, 0.69, 0.71, 0.1, True)
MUCH = Quality(3, 0.50, 0.49, 0.51, 0.1, True)
FEW = Quality(1, 0.79, None, None, 0.1, True)


@pytest.mark.parametrize(
    ("on_a", "on_b", "quality"),
    [(CLOSE, CLOSE, "safe"), (CLOSE, WORSE, "fast"), (WORSE, WORSE, "fast"), (MUCH, CLOSE, ""), (CLOSE, FEW, "")],
)
def test_the_rule(on_a: Quality, on_b: Quality, quality: str) -> None:
    table = {("survey", task, 1): {"none": PLAIN, "topk": quality} for task, quality in (("a", on_a), ("b", on_b))}
    text = write_known(table, dict.fromkeys(table, "accuracy"))
    assert f'"topk": {{\n  "quality": "{quality}"' in text
