import json

import pytest
import torch

from benchmarks.codecs.board import Board
from benchmarks.codecs.goals import POWERSGD
from benchmarks.codecs.plan import board_plan
from grace.compute import backends, resources
from grace_bench.codecs import bench
from grace_bench.codecs.clock import OPERATIONS, CaseSamples, Clock

NUMBERS = ("ratio", "low", "high", "microseconds")


def small(methods, sizes="1000", **more):
    return Board(board_plan(methods, sizes, "1", 3, **more), eviction=1 << 16).measure()


@pytest.fixture(scope="module")
def cold():
    """At a size at which caches are emptied and goals hold."""
    told = []
    plan = board_plan("qsgd:bits=8", "1M", "1", 3, limit=20.0)
    bench = Board(plan, eviction=1 << 16)
    document = bench.measure(command=["grace"], progress=lambda *news: told.append(news))
    return document, told


def test_the_document_is_what_its_schema_says(cold):
    document, _ = cold
    assert (document["schema"], document["version"]) == ("grace.codecs", 1)
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert document["failed"] == []
    for row in document["rows"]:
        assert isinstance(row["operation"], str)
        assert row["method"] is None or isinstance(row["method"], str)
        assert row["threads"] == 1
        assert row["kernels"] == backends.active()[0]
        assert row["cold"] is True
        assert all(isinstance(row[name], float) and row[name] > 0 for name in NUMBERS)
        assert row["low"] <= row["ratio"] <= row["high"]
        assert len(row["samples"]) == 3
        for goal in row["goals"]:
            assert goal["met"] == (goal["value"] <= goal["goal"])
            assert goal["binds"] in (("memory", "arithmetic") if goal["unit"] == "x add_" else (None,))
    (floor,) = document["floors"]
    assert (floor["size"], floor["threads"]) == (1_000_000, 1)
    assert floor["ns_per_byte"] > 0
    assert floor["ns_per_cycle"] > 0
    assert {row["operation"] for row in document["yardsticks"]} == {"add_", "memcpy", "sum"}


def test_rows_with_a_goal_are_compared(cold):
    document, _ = cold
    rows = {row["operation"]: row for row in document["rows"] if row["method"] is not None}
    assert set(rows) == set(OPERATIONS)
    assert rows["encode"]["goal"] == rows["encode"]["goals"][0]["goal"] > 0
    assert rows["decode and sum"]["payloads"] == 8
    assert rows["encode"]["payloads"] is None
    here = backends.active()[0]
    expected = {"torch", "reference", "native-base"} - {here} if len(backends.available()) > 1 else {"torch"}
    assert {other["kernels"] for other in rows["encode"]["others"]} == expected
    for other in rows["encode"]["others"]:
        assert all(other[name] > 0 for name in NUMBERS)
        assert other["times"] > 0
    if "native-base" in expected:
        (base,) = [other for other in rows["encode"]["others"] if other["kernels"] == "native-base"]
        assert [goal["row"] for goal in base["goals"]] == ["qsgd:bits=8, baseline instruction set"]


def test_the_parts_have_goals_in_units_of_their_own(cold):
    document, _ = cold
    rows = {row["operation"]: row for row in document["rows"] if row["method"] is None}
    (copies,) = rows[POWERSGD]["goals"]
    assert (copies["unit"], rows[POWERSGD]["goal"], rows[POWERSGD]["size"]) == ("x memcpy", None, 4096 * 1024)
    units = {goal["unit"]: goal["value"] for goal in rows["Elias-Fano encode 1 %"]["goals"]}
    assert set(units) == {"ns per index", "bits per index"}
    assert 8.0 < units["bits per index"] < 8.7
    assert rows["top-k 1 % of zeros"]["goal"] > 0


def test_progress_ends_near_all(cold):
    _, told = cold
    assert [what for _, _, what in told] == [f"{name}, 1M, 1 thread" for name in ("yardsticks", "parts", "qsgd:bits=8")]
    assert [done for done, _, _ in told] == sorted(done for done, _, _ in told)
    assert all(0 <= done < total for done, total, _ in told)


def test_small_tensors_are_warm_and_have_goals_in_microseconds():
    document = small("qsgd:bits=8,powersgd,none,signsgd", "4K")
    rows = {(row["method"], row["operation"]): row for row in document["rows"]}
    assert not any(row["cold"] for row in document["rows"])
    (goal,) = rows["qsgd:bits=8", "encode"]["goals"]
    assert (goal["unit"], goal["goal"]) == ("us", 5.0)
    assert rows["qsgd:bits=8", "encode"]["goal"] is None
    assert {operation for method, operation in rows if method == "powersgd"} == set(OPERATIONS)
    assert ("signsgd", "encode with error feedback") not in rows
    assert [(omission["method"], omission["operation"]) for omission in document["left_out"]] == [("none", None)]


def test_what_takes_too_long_is_left_out_and_told():
    document = small("topk,sketchml", limit=1e-9)
    assert document["rows"] == []
    told = {(omission["method"], omission["operation"]) for omission in document["left_out"]}
    assert {("sketchml", operation) for operation in OPERATIONS} <= told
    assert all(
        "more than the limit of 1e-09 s" in omission["why"]
        for omission in document["left_out"]
        if omission["method"] != "topk"
    )


def test_what_has_a_goal_may_take_longer(monkeypatch):
    patience = {}

    def measure(self, yard, cases, samples, *, cold):
        patience.update({(case.operation, case.kernels): case.patience for case in cases})
        return {case: CaseSamples([1e-6] * 3, [1.0] * 3) for case in cases}

    monkeypatch.setattr(Clock, "measure", measure)
    small("topk", "1M")
    assert patience["encode", None] == 10
    assert patience["encode", "torch"] == 5
    assert patience.get(("encode", "reference"), 1) == 1  # not there where it is what runs anyway
    assert patience["top-k 1 % of zeros", None] == 10
    patience.clear()
    small("sketchml", "1000")
    assert patience["encode", None] == 1


def test_what_was_slow_is_not_tried_on_larger_tensors():
    sizes = [omission["size"] for omission in small("sketchml", "66000,200K", limit=1e-6)["left_out"]]
    assert sizes == [66_000] * 3 + [204_800] * 3


def test_a_size_that_does_not_fit_is_left_out(monkeypatch):
    monkeypatch.setattr(resources, "available_memory", lambda: 100_000)
    document = small("topk", "1000,1M")
    assert {row["size"] for row in document["rows"]} == {1000}
    (omission,) = document["left_out"]
    assert (omission["size"], omission["method"]) == (1_000_000, None)
    assert "do not fit" in omission["why"]


def test_a_method_that_fails_does_not_end_the_others(monkeypatch):
    real = bench.variants

    def variants(name):
        if name == "topk":
            raise ValueError("broken")
        return real(name)

    monkeypatch.setattr(bench, "variants", variants)
    document = small("topk,qsgd")
    assert document["failed"] == [{"method": "topk", "size": 1000, "threads": 1, "error": "ValueError: broken"}]
    assert {row["method"] for row in document["rows"]} == {"qsgd"}


def test_what_was_measured_is_told_after_each_method():
    kept = []
    document = Board(board_plan("topk,signsgd", "1000", "1", 3), eviction=1 << 16).measure(keep=kept.append)
    methods = [[row["method"] for row in snapshot["rows"]] for snapshot in kept]
    assert methods == [[], [], ["signsgd"] * 2, ["signsgd"] * 2 + ["topk"] * 3]
    assert [snapshot["complete"] for snapshot in (*kept, document)] == [False] * 4 + [True]
    assert all(snapshot.keys() == document.keys() for snapshot in kept)


def test_nobodys_random_numbers_or_threads_change():
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    Board(board_plan("qsgd", "1000", "1,2", 3), eviction=1 << 16).measure()
    assert torch.equal(before, torch.get_rng_state())
    assert torch.get_num_threads() == threads
