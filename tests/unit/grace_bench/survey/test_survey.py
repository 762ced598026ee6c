"""The survey's runs, its archive, and what is wrong with those of others."""

import contextlib
import json
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pyarrow.parquet as parquet
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from benchmarks.evidence import gather
from grace.cli.app import app
from grace.errors import ConfigurationError, UnknownNameError
from grace.run.simulator import Simulator
from grace_bench.runs.results import DocumentError, encode
from grace_bench.survey.archive import add, check_row, join, merge, read_archive, read_runs, write_archive
from grace_bench.survey.estimate import Have, PlanPart, split
from grace_bench.survey.plan import read_plan, shard
from grace_bench.survey.plausible import check_plausible
from grace_bench.survey.row import SurveyRow, decode_row, run_file, same_run
from grace_bench.survey.run import run_all
from grace_bench.tasks import Task, find_task
from grace_bench.workers.local import launch
from tests.distributed.forked import fork_workers

ROOT = Path(__file__).parents[4]
HERE = "tests.unit.grace_bench.survey.test_survey"
PLAN = """
[[runs]]
tasks = ["{here}:Tiny"]
methods = ["none", "topk", "qsgd:bits=4"]
seeds = [0, 1]
workers = 2
steps = 3
evaluations = 1
"""


class Tiny(Task):
    """A layer with dropout and a running mean, whose data are random numbers."""

    metric, better, batch = "loss", "lower", 4
    rate = 0.1

    def load(self, root):
        self.x = torch.randn(64, 80, generator=torch.Generator().manual_seed(1))

    def data_info(self):
        return {"name": "tiny", "procedural": True, "digest": "0123456789abcdef", "source": "embedded"}

    def model(self):
        return nn.Sequential(nn.Linear(80, 20), nn.BatchNorm1d(20), nn.Dropout(0.5), nn.Linear(20, 80))

    def steps_per_epoch(self, world):
        return 64 // world // self.batch

    def batches(self, rank, world, seed):
        while True:
            for start in range(rank * 4, 64, 4 * world):
                yield self.x[start : start + 4]

    def loss(self, model, batch):
        return (model(batch) - batch).square().mean()

    def optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=self.rate, momentum=0.9)

    def lr(self, step):
        return self.rate

    def evaluate(self, model):
        model.eval()
        with torch.no_grad():
            value = self.loss(model, self.x).item()
        model.train()
        return {"loss": value}


class Tall(Tiny):
    """A layer whose two factors have different sizes."""

    def model(self):
        return nn.Linear(80, 20)


class Steep(Tiny):
    """The same, with a learning rate that no method survives."""

    rate = 1e30


def plan(tmp_path, text=PLAN, name="plan.toml"):
    path = tmp_path / name
    path.write_text(text.replace("{here}", HERE))
    return path


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of all runs, and their rows."""
    out = tmp_path_factory.mktemp("whole")
    return out, run_all(read_plan(plan(out)), out, lambda done: None)


def call(*arguments):
    return CliRunner().invoke(app, ["survey", *map(str, arguments)])


def test_real_processes_train_the_same(whole, monkeypatch):
    """Dropout, running means and private random numbers included."""
    fork_workers(monkeypatch)
    runs = [run.config for run in read_plan(whole[0] / "plan.toml") if run.config.seed == 1]
    rows = [row for row in whole[1] if row.seed == 1]
    for row, result in zip(rows, launch(runs, on_progress=lambda done, steps: None, command=[]), strict=True):
        assert [point.metrics["loss"] for point in result.curve] == row.values
        assert [point.sent_bytes for point in result.curve] == row.sent


def test_a_plan_killed_five_times_gives_the_same_archive(tmp_path, whole):
    runs, draw = read_plan(whole[0] / "plan.toml"), random.Random(0)
    for _ in range(5):
        left = draw.randrange(3, 40)

        def die(done, steps):
            nonlocal left
            left -= 1
            if left == 0:
                raise KeyboardInterrupt

        try:
            run_all(runs, tmp_path, lambda done: None, progress=die)
        except KeyboardInterrupt:
            assert len(list((tmp_path / "runs").glob("*"))) <= len(runs)
    rows = run_all(runs, tmp_path, lambda done: None)
    assert all(map(same_run, rows, whole[1]))
    assert len(rows) == len(whole[1]) == 6


def test_a_run_half_written_is_no_run(tmp_path, whole, monkeypatch):
    """What a writer with this defect leaves behind is noticed, and nothing is built on it."""

    def half(path, content):
        path.parent.mkdir(exist_ok=True)
        path.write_text(content[: len(content) // 2])
        raise KeyboardInterrupt

    runs = read_plan(whole[0] / "plan.toml")[:1]
    with monkeypatch.context() as patched:
        patched.setattr("grace_bench.survey.run.write_atomically", half)
        with pytest.raises(KeyboardInterrupt):
            run_all(runs, tmp_path, lambda done: None)
    with pytest.raises(DocumentError, match="move it away"):
        run_all(runs, tmp_path, lambda done: None)


@pytest.mark.night("a run half written")
def test_the_command_killed_five_times_gives_the_same_archive(tmp_path, whole):
    """SIGKILL at random times, of real processes."""
    draw, ended = random.Random(1), []
    command = [Path(sys.executable).with_name("grace"), "survey", "run", whole[0] / "plan.toml", "--out", tmp_path]
    for _ in range(5):
        run = subprocess.Popen(list(map(str, command)), cwd=ROOT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            run.wait(draw.uniform(2, 12))
        run.kill()
        run.wait()
        ended.append(len(list((tmp_path / "runs").glob("*.json"))))
    assert ended == sorted(ended)
    subprocess.run(list(map(str, command)), cwd=ROOT, check=True)
    assert add(tmp_path, tmp_path / "a.parquet") == (6, 6)
    add(whole[0], tmp_path / "b.parquet")
    assert all(map(same_run, read_archive(tmp_path / "a.parquet"), read_archive(tmp_path / "b.parquet")))


def test_what_has_run_does_not_run_again(whole):
    told = []
    run_all(read_plan(whole[0] / "plan.toml"), whole[0], told.append)
    assert [done.seconds for done in told] == [0.0] * 6


def test_what_an_archive_has_does_not_run(tmp_path, whole):
    runs, told = read_plan(plan(tmp_path, PLAN.replace("[0, 1]", "[0, 1, 2]"))), []
    rows = run_all(runs, tmp_path / "out", told.append, known=whole[1])
    assert [done.run.config.seed for done in told if done.seconds] == [2, 2, 2]
    assert len(rows) == 9
    assert len(list((tmp_path / "out" / "runs").iterdir())) == 3
    add(whole[0], tmp_path / "a.parquet")
    done = call(
        "run", tmp_path / "plan.toml", "--out", tmp_path / "out", "--archive", tmp_path / "a.parquet", "--no-idle"
    )
    assert done.stdout.endswith(f"9 of 9 runs in {tmp_path / 'out' / 'runs'} or {tmp_path / 'a.parquet'}\n")


@pytest.mark.parametrize(
    ("fields", "alike"),
    [
        ({}, True),
        ({"steps": 4}, False),
        ({"workers": 3}, False),
        ({"protocol": "other"}, False),
        ({"seed": 9}, False),
        ({"source": "official"}, False),
        ({"device": "H200"}, False),
    ],
)
def test_a_run_of_an_archive_is_another_one_if_it_differs_in_what_the_plan_says(fields, alike, whole):
    run, row = read_plan(whole[0] / "plan.toml")[0], whole[1][0]
    assert (Have([change(row, **fields)]).row(run) is not None) == alike
    assert Have([change(row, peak_lr=0.3)]).row(replace(run, config=replace(run.config, lr=0.1))) is None


def test_the_start_is_evaluated_once_for_all_methods(tmp_path, monkeypatch):
    monkeypatch.setattr("grace_bench.survey.train._BEGINNINGS", {})
    seen = []

    def evaluate(task, model, real=Tiny.evaluate):
        seen.append(task.steps)
        return real(task, model)

    monkeypatch.setattr(Tiny, "evaluate", evaluate)
    run_all(read_plan(plan(tmp_path)), tmp_path / "out", lambda done: None)
    assert len(seen) == 2 + 6  # at the start for each seed, at the end for each run


def test_two_shards_merged_are_the_whole(tmp_path, whole):
    runs, archive, other = read_plan(whole[0] / "plan.toml"), tmp_path / "parts.parquet", tmp_path / "whole.parquet"
    for part in ("1/2", "2/2"):
        run_all(shard(runs, part), tmp_path / part[0], lambda done: None)
        add(tmp_path / part[0], archive)
    assert add(whole[0], other) == (6, 6)
    assert all(map(same_run, read_archive(archive), read_archive(other)))
    assert add(tmp_path / "1", archive) == (0, 6), "a run that is there is not there twice"


def test_an_archive_gives_back_its_rows(tmp_path, whole):
    write_archive(tmp_path / "a.parquet", whole[1])
    assert sorted(map(encode, read_archive(tmp_path / "a.parquet"))) == sorted(map(encode, whole[1]))


def test_divergence_is_a_result(tmp_path):
    text = (
        PLAN.replace("Tiny", "Steep")
        .replace('"none", "topk", "qsgd:bits=4"', '"none"')
        .replace("steps = 3", "steps = 9")
    )
    row = run_all(read_plan(plan(tmp_path, text)), tmp_path, lambda done: None)[0]
    assert row.final is None
    assert row.diverged is not None
    check_row(row)


def test_the_row_says_how_to_repeat_it(whole):
    row = whole[1][0]
    assert row.command == (
        f"grace bench train --tasks {HERE}:Tiny --methods none --baselines '' --workers 2 --seeds 0 --steps 3 "
        "--evaluations 1 --out results"
    )


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
        ends = {lr: one.final for (method, lr), one in trials.items() if method == row.method and one.final is not None}
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


def change(row, **fields):
    return msgspec.structs.replace(row, **fields)


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"method": "topp"}, "topp"),
        ({"recipe": "Allreduce(BF16())"}, "its recipe is not"),
        ({"sent": [0, 10**12]}, "1000000000000 bytes sent are not plausible"),
        ({"sent": [0, 0]}, "0 bytes sent are not plausible"),
        ({"sent": [0]}, "its evaluations differ in number"),
        ({"at": [3, 0]}, "not in order"),
        ({"at": [0, 4]}, "after its last step"),
        ({"final": None}, "it has no end"),
        ({"source": "synthetic"}, "teach nothing"),
        ({"digest": ""}, "no digest"),
        ({"peak_lr": -1.0}, "learning rate"),
        ({"torch": "newest"}, "its versions are no versions"),
        ({"cpu_seconds": -1.0}, "processor time"),
    ],
)
def test_what_cannot_be_is_refused(fields, match, whole):
    check_row(whole[1][0])
    with pytest.raises(DocumentError, match=match):
        check_row(change(whole[1][0], **fields))


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"digest": "f" * 16}, "it has data f+, where this Grace has 0123456789abcdef"),
        ({"parameters": 3341}, "3341 parameters, where the task has 3340"),
        ({"sent": [0, 10_000]}, "10000 bytes sent in 3 steps, where this Grace sends 40080"),
        ({"sent": [0, 41_500]}, "41500 bytes sent in 3 steps, where this Grace sends 40080"),
    ],
)
def test_what_this_grace_would_not_make_is_not_added(fields, match, whole, tmp_path):
    row = next(row for row in whole[1] if row.method == "none" and row.seed == 0)
    check_plausible(row, "a run")
    check_plausible(change(row, source="official", **fields), "a run")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "one.json").write_text(encode(change(row, **fields)))
    with pytest.raises(DocumentError, match=match):
        add(tmp_path, tmp_path / "a.parquet")
    assert not (tmp_path / "a.parquet").exists()


def test_a_method_that_alternates_is_held_against_what_it_sends_on_average(whole):
    """ACP-SGD sends one factor in one step and the other in the next: neither step's bytes are those of them all."""
    row = next(row for row in whole[1] if row.method == "none" and row.seed == 0)
    exchange, task = Simulator("acpsgd", row.workers, seed=0), find_task(f"{HERE}:Tall")
    gradients = {key: [torch.ones(p.shape)] * row.workers for key, p in task.model().named_parameters()}
    sent = [0]
    for _ in range(100):
        exchange.step(gradients)
        sent.append(exchange.traffic[0].sent)
    assert sent[3] - sent[2] != sent[2] - sent[1]
    alternating = change(
        row, task=f"{HERE}:Tall", parameters=1620, method="acpsgd", at=[0, 100], values=[1.0, 1.0], sent=[0, sent[100]]
    )
    check_plausible(alternating, "a run")
    with pytest.raises(DocumentError, match="where this Grace sends"):
        check_plausible(change(alternating, sent=[0, round(1.05 * sent[100])]), "a run")


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"workers": 3}, "3 workers and batches of 4, where the others of its protocol have 2 and 4"),
        ({"batch": 5}, "2 workers and batches of 5"),
        ({"peak_lr": 0.2}, "the learning rate 0.2, where others of its method and protocol have 0.1"),
    ],
)
def test_runs_of_one_protocol_differ_in_nothing_else(fields, match, whole):
    with pytest.raises(DocumentError, match=match + ".*a protocol of another name"):
        merge(whole[1], [change(whole[1][0], seed=7, **fields)])
    assert len(merge(whole[1], [change(whole[1][0], seed=7, protocol="other", **fields)])) == 7


def test_archives_and_folders_are_merged(tmp_path, whole):
    first, second = tmp_path / "1.parquet", tmp_path / "2.parquet"
    write_archive(first, whole[1][:4])
    write_archive(second, whole[1][3:])
    done = call("merge", first, second, whole[0], "--out", tmp_path / "all.parquet")
    assert done.stdout.endswith("all.parquet: 6 runs of 3 parts\n")
    add(whole[0], tmp_path / "other.parquet")
    assert (tmp_path / "all.parquet").read_bytes() == (tmp_path / "other.parquet").read_bytes()
    write_archive(second, [change(whole[1][0], final=0.5)])
    with pytest.raises(DocumentError, match="is there twice, and the two differ"):
        join([first, second], tmp_path / "new.parquet")
    assert not (tmp_path / "new.parquet").exists()


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


def test_an_archive_is_drawn_and_its_steps_are_measured(tmp_path, whole, monkeypatch):
    monkeypatch.setattr("grace_bench.report.write.runtime", lambda: "vega")
    archive, steps = tmp_path / "a.parquet", tmp_path / "steps.json"
    add(whole[0], archive)
    done = call("steps", archive, "--out", steps, "--samples", "1", "--json")
    assert done.exit_code == 0, done.output
    assert [*json.loads(steps.read_text())["tasks"]] == [f"{HERE}:Tiny"]
    for more in ((), ("--steps", steps)):
        done = call("report", archive, "--out", tmp_path / "a.html", *more)
        assert done.stdout.startswith(f"{tmp_path / 'a.html'}: 6 runs, ")
    (tmp_path / "b.json").write_text("{}")
    done = call("report", archive, "--out", tmp_path / "b.html", "--steps", tmp_path / "b.json")
    assert isinstance(done.exception, DocumentError) or "is no table of steps" in done.output
    assert not (tmp_path / "b.html").exists()


def assert_one_line(done, named):
    """An error of one line, and another that says where to read on."""
    assert done.exit_code == 1
    said, *rest = done.stderr.strip().splitlines()
    assert named in said
    assert all(line.startswith("read on: ") for line in rest)


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


def test_what_cannot_be_added_is_one_line_and_nothing_is_written(tmp_path, whole):
    archive = tmp_path / "a.parquet"
    add(whole[0], archive)
    before, row = archive.read_bytes(), whole[1][0]
    other = json.dumps(json.loads(encode(row)) | {"version": 9})
    for text, named in (
        (encode(change(row, final=0.5)), "is there twice"),
        (encode(change(row, seed=7, digest="f" * 16)), "has embedded data ffff"),
        (encode(change(row, seed=7, method="topp")), "topp"),
        (other, "version 9"),
        ("{", "not JSON"),
    ):
        folder = tmp_path / named.replace(" ", "-")
        (folder / "runs").mkdir(parents=True)
        (folder / "runs" / "one.json").write_text(text)
        done = call("add", folder, "--archive", archive)
        assert_one_line(done, named)
        assert archive.read_bytes() == before


def test_runs_that_do_not_fit_are_refused_and_nothing_is_written(tmp_path, whole):
    archive, row = tmp_path / "a.parquet", whole[1][0]
    add(whole[0], archive)
    before = archive.read_bytes()
    for name, changed, match in (
        ("twice", change(row, final=0.5), "is there twice, and the two differ"),
        (
            "data",
            change(row, seed=7, digest="f" * 16),
            "has embedded data f+, where other runs of .* have 0123456789abcdef",
        ),
    ):
        (tmp_path / name / "runs").mkdir(parents=True)
        (tmp_path / name / "runs" / "one.json").write_text(encode(changed))
        with pytest.raises(DocumentError, match=match):
            add(tmp_path / name, archive)
        assert archive.read_bytes() == before


def test_official_data_are_rows_of_their_own(whole):
    official = change(whole[1][0], source="official", digest="f" * 16)
    assert len(merge(whole[1], [official])) == 7


def test_another_version_is_refused(tmp_path, whole):
    other = json.loads(encode(whole[1][0])) | {"version": 2}
    with pytest.raises(DocumentError, match=r"'grace.survey', version 2; legal: 'grace.survey', version 1"):
        decode_row(json.dumps(other))
    path = tmp_path / "a.parquet"
    write_archive(path, whole[1])
    table = parquet.read_table(path)
    parquet.write_table(table.replace_schema_metadata({"grace.survey": "2"}), path)
    with pytest.raises(DocumentError, match=r"an archive of grace.survey version 2; legal: 1"):
        read_archive(path)
    path.write_text("no")
    with pytest.raises(DocumentError, match="is no Parquet file"):
        read_archive(path)


def test_a_folder_without_runs(tmp_path):
    with pytest.raises(DocumentError, match="make them with grace survey run PLAN"):
        read_runs(tmp_path)


def test_a_file_that_is_no_row_is_not_overwritten(tmp_path, whole):
    run = read_plan(whole[0] / "plan.toml")[0]
    file = tmp_path / "runs" / run_file(run.protocol, run.config)
    file.parent.mkdir()
    file.write_text("{}")
    with pytest.raises(DocumentError, match="move it away, or take another --out"):
        run_all([run], tmp_path, lambda done: None)
    assert file.read_text() == "{}"


def test_the_commands(tmp_path, whole):
    done = call("run", plan(tmp_path), "--out", whole[0], "--no-idle", "--json")
    assert done.exit_code == 0, done.output
    assert len(msgspec.json.decode(done.stdout, type=list[SurveyRow])) == 6
    done = call("add", whole[0], "--archive", tmp_path / "a.parquet")
    assert done.stdout.endswith("a.parquet: 6 runs added, 6 in all\n")
    assert json.loads(call("add", whole[0], "--archive", tmp_path / "a.parquet", "--json").stdout)["added"] == 0
