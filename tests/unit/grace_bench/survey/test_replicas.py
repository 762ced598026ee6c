"""The survey's runs of algorithms: of real processes, the rows, and what does not run."""

from __future__ import annotations

import pytest

from grace.errors import ConfigurationError
from grace_bench.runs.config import RunConfig
from grace_bench.survey.archive import check_row, read_archive, write_archive
from grace_bench.survey.plan import read_plan
from grace_bench.survey.plausible import check_plausible
from grace_bench.survey.row import is_algorithm, name_of
from grace_bench.survey.train import train
from grace_bench.workers.local import launch
from tests.distributed.forked import fork_workers
from tests.unit.grace_bench.survey.tiny import HERE, Tiny, call, change, plan

LOOP = "diloco:every=2,lr=0.5,method=(topk:ratio=0.1)"
OVERLAP = "streaming_diloco:every=4,fragments=2,delay=1"
WARM = "post_local_sgd:every=2,warmup_steps=3"
GOSSIP = "choco:graph=ring,method=(topk:ratio=0.1),gamma=0.3"
PLAN = f"""
[[runs]]
tasks = ["{{here}}:Tiny"]
methods = ["{LOOP}", "{OVERLAP}", "{WARM}", "onebitadam:lr=0.01,freeze_step=2", "{GOSSIP}"]
seeds = [1]
workers = 2
steps = 5
evaluations = 2
"""


def silent(done: int, steps: int) -> None:
    pass


def run(method: str, **more):
    Tiny()
    return train(
        RunConfig(f"{HERE}:Tiny", method, 2, cores=1, **{"steps": 5, "evaluations": 2, **more}), "survey", silent
    )


def test_real_processes_train_the_same(tmp_path, monkeypatch):
    """Dropout, running means, private random numbers, exchanges beside the steps, and averages of gossip included."""
    fork_workers(monkeypatch)
    runs = [run.config for run in read_plan(plan(tmp_path, PLAN))]
    rows = [train(run, "survey", silent) for run in runs]
    for row, result in zip(rows, launch(runs, on_progress=silent, command=[]), strict=True):
        assert [point.metrics["loss"] for point in result.curve] == row.values, row.method
        assert [point.sent_bytes for point in result.curve] == row.sent, row.method
        assert len(set(row.values)) == 3, "it learns something"


def test_rows_go_through_the_archive_and_a_plan_finds_them(tmp_path):
    path = plan(tmp_path, PLAN)
    done = call("run", path, "--no-idle", "--out", tmp_path / "out", "--trust", f"{HERE}:Tiny")
    assert done.exit_code == 0, done.stderr
    archive = tmp_path / "a.parquet"
    assert call("add", tmp_path / "out", "--archive", archive, "--trust", f"{HERE}:Tiny").exit_code == 0
    rows = read_archive(archive)
    assert {row.method for row in rows} == set(eval(PLAN.partition("methods = ")[2].splitlines()[0]))
    again = call("run", path, "--no-idle", "--out", tmp_path / "empty", "--archive", archive, "--trust", f"{HERE}:Tiny")
    assert again.exit_code == 0
    assert not (tmp_path / "empty" / "runs").exists(), "nothing ran again"


def test_a_row_says_what_its_algorithm_is_made_of(tmp_path):
    method, recipe = name_of(f" {LOOP} ")
    assert method == LOOP
    assert recipe == "OuterSettings(2, lr=0.5, momentum=0.9) ErrorFeedback(Allgather(TopK(ratio=0.1)))"
    assert name_of("diloco:every=2,method=(topk:ratio=0.1),lr=0.5")[1] == recipe
    assert is_algorithm(LOOP)
    assert not is_algorithm("topk:ratio=0.1")
    row = run(LOOP)
    check_row(row)
    check_plausible(row, "it")
    write_archive(tmp_path / "a.parquet", [row])
    with pytest.raises(Exception, match="its recipe is not what this version of Grace makes"):
        check_row(change(row, recipe="OuterSettings(3)"))


def test_a_warm_up_clips_the_mean_gradient_as_other_training_does(monkeypatch):
    """A warm-up learns as fp32 does: gradients of single workers, clipped before they are averaged, would shrink more."""
    monkeypatch.setattr(Tiny, "clip", 0.01, raising=False)
    warm, plain = run("post_local_sgd:every=2,warmup_steps=5"), run("none")
    assert warm.values == pytest.approx(plain.values, rel=1e-6)
    assert warm.values[-1] != pytest.approx(warm.values[0], rel=1e-6)


def test_a_run_that_diverges_ends_on_all_workers():
    row = train(RunConfig(f"{HERE}:Steep", "local_sgd:every=2", 2, steps=9, cores=1), "survey", silent)
    assert row.diverged is not None
    assert row.final is None


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("torch_post_local_sgd:every=2", r"torch_post_local_sgd:every=2 runs over torch\.distributed alone"),
        ("no-communication", "the survey runs methods in torch, not 'no-communication'"),
        ("auto", "the survey measures no time, by which auto would choose"),
        ("diloco:every=2,method=auto", "the survey measures no time, by which diloco:every=2,method=auto would choose"),
        ("diloco:every=2,method=(topk:ratio=7)", "ratio=7"),
    ],
)
def test_what_cannot_run_here_is_told_before_anything_runs(tmp_path, method, message):
    with pytest.raises(ConfigurationError, match=message):
        read_plan(plan(tmp_path, PLAN.replace(LOOP, method)))
    with pytest.raises(ConfigurationError, match=message):
        run(method)
