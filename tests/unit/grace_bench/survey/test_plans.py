"""Plans of a survey: what is wrong with them, learning rates that are chosen on one seed, and what is left to do."""

import json

import pytest

from benchmarks.evidence import gather
from grace.errors import ConfigurationError, UnknownNameError
from grace_bench.survey.archive import add, check_row, read_archive
from grace_bench.survey.estimate import PlanPart, split
from grace_bench.survey.plan import read_plan, shard
from grace_bench.survey.row import same_run
from grace_bench.survey.run import run_all
from tests.unit.grace_bench.survey.tiny import HERE, PLAN, assert_one_line, call, change, plan


@pytest.mark.parametrize(
    ("text", "error", "match"),
    [
        (PLAN.replace("topk", "topp"), UnknownNameError, "topp"),
        (PLAN.replace("{here}:Tiny", "lstm_smal"), UnknownNameError, "lstm_small"),
        (PLAN.replace("steps = 3", "stepps = 3"), ConfigurationError, r"plan.toml: .*stepps"),
        (
            PLAN.replace("workers = 2", "workers = 'two'"),
            ConfigurationError,
            r"plan.toml: runs\[0\].workers: expected `int`",
        ),
        ("[[runs", ConfigurationError, "plan.toml is not TOML"),
        (PLAN.replace("[0, 1]", "[]"), ConfigurationError, "plan.toml: seeds is empty"),
        (PLAN + "grid = [0.1, 0.1]", ConfigurationError, "legal: learning rates > 0, each once"),
        (PLAN + "grid = [0.1, inf]", ConfigurationError, "legal: learning rates > 0, each once"),
        (
            PLAN.replace("[0, 1]", "[3]") + "grid = [0.1]",
            ConfigurationError,
            r"seeds = \[3\] beside a grid; legal: two or more",
        ),
        (PLAN + "grid = [0.1]\nlr = 0.1", ConfigurationError, "lr = 0.1 beside a grid"),
    ],
)
def test_a_wrong_plan_says_what_is_wrong(text, error, match, tmp_path):
    with pytest.raises(error, match=match):
        read_plan(plan(tmp_path, text))


@pytest.mark.parametrize("part", ["0/2", "3/2", "1", "a/b"])
def test_a_wrong_shard(part):
    with pytest.raises(ConfigurationError, match="legal: I/N with 1 <= I <= N"):
        shard([], part)


TUNED = """
[[runs]]
protocol = "tuned"
tasks = ["{here}:Tiny"]
methods = ["none", "topk"]
seeds = [0, 1, 2]
grid = [1e-3, 0.1, 1e30]
workers = 2
steps = 3
evaluations = 1
"""


def test_a_learning_rate_is_chosen_on_one_seed_and_judged_on_others(tmp_path):
    runs = read_plan(plan(tmp_path, TUNED))
    assert len(runs) == 2 * 3 + 2 * 2
    rows = run_all(runs, tmp_path / "whole", lambda done: None)
    trials = {(row.method, row.peak_lr): row for row in rows if row.protocol == "tuned-trial"}
    judged = [row for row in rows if row.protocol == "tuned"]
    assert {row.seed for row in trials.values()} == {0}
    assert sorted(row.seed for row in judged) == [1, 1, 2, 2]
    assert sorted(lr for _, lr in trials) == pytest.approx([1e-3, 1e-3, 0.1, 0.1, 1e30, 1e30])
    for row in judged:
        ends = {
            lr: trial.final
            for (method, lr), trial in trials.items()
            if method == row.method and trial.final is not None
        }
        assert row.peak_lr == min(ends, key=ends.get)
        assert f"--lr {row.peak_lr!r}" in row.command
        check_row(row)
    assert list(gather(rows)) == [("tuned", f"{HERE}:Tiny", 3)], "trials are no measure of a method"
    for part in ("1/2", "2/2"):
        run_all(shard(runs, part), tmp_path / part[0], lambda done: None)
        add(tmp_path / part[0], tmp_path / "parts.parquet")
    add(tmp_path / "whole", tmp_path / "whole.parquet")
    assert all(map(same_run, read_archive(tmp_path / "parts.parquet"), read_archive(tmp_path / "whole.parquet")))


def test_without_its_trials_no_learning_rate_is_chosen(tmp_path):
    told = []
    judged = [run for run in read_plan(plan(tmp_path, TUNED)) if run.grid][:1]
    assert run_all(judged, tmp_path, told.append) == []
    assert told[0].error == "3 of its 3 trials of a learning rate have no result"


def test_where_all_trials_diverge_the_first_learning_rate_stands(tmp_path):
    text = TUNED.replace("[1e-3, 0.1, 1e30]", "[1e31, 1e30]").replace('"none", "topk"', '"none"').replace("= 3", "= 9")
    rows = run_all(read_plan(plan(tmp_path, text)), tmp_path, lambda done: None)
    assert {(row.protocol, f"{row.peak_lr:.3g}", row.final) for row in rows if row.seed} == {("tuned", "1e+31", None)}


def test_what_a_plan_holds_and_how_long_the_rest_takes(tmp_path, whole):
    runs, rows = read_plan(plan(tmp_path, PLAN + TUNED)), [change(row, cpu_seconds=3600.0) for row in whole[1]]
    tiny = f"{HERE}:Tiny"
    assert split(runs, []) == [
        PlanPart("survey", tiny, 6, 0, None), PlanPart("tuned-trial", tiny, 6, 0, None), PlanPart("tuned", tiny, 4, 0, None),
    ]  # fmt: skip
    assert split(runs, rows[:2]) == [
        PlanPart("survey", tiny, 6, 2, 4.0), PlanPart("tuned-trial", tiny, 6, 0, 6.0), PlanPart("tuned", tiny, 4, 0, 4.0),
    ]  # fmt: skip
    tried = change(rows[0], protocol="tuned-trial", peak_lr=1e-3, cpu_seconds=1800.0)
    assert split(runs, [*rows, tried]) == [
        PlanPart("survey", tiny, 6, 6, 0.0), PlanPart("tuned-trial", tiny, 6, 1, 2.5), PlanPart("tuned", tiny, 4, 0, 2.0),
    ]  # fmt: skip
    done = call("plan", tmp_path / "plan.toml")
    assert done.stdout.splitlines()[-1] == "in all: 0 of 16 runs there, 0.00 hours left, and 3 parts of unknown length"
    add(whole[0], tmp_path / "a.parquet")
    done = call("plan", tmp_path / "plan.toml", "--archive", tmp_path / "a.parquet", "--json")
    assert [part["there"] for part in json.loads(done.stdout)] == [6, 0, 0]


BAD = {
    "method": ("topk", "topp", "topp"),
    "task": ("Tiny", "Tine", "Tine"),
    "field": ("steps = 3", "stepps = 3", "stepps"),
    "shard": ("", "", "3/2"),
}


@pytest.mark.parametrize(("old", "new", "named"), BAD.values(), ids=BAD)
def test_a_wrong_plan_is_one_line_that_names_what_is_wrong(old, new, named, tmp_path):
    more = ["--shard", "3/2"] if named == "3/2" else []
    done = call("run", plan(tmp_path, PLAN.replace(old, new) if old else PLAN), "--out", tmp_path / "out", *more)
    assert_one_line(done, named)
    assert not (tmp_path / "out").exists()
