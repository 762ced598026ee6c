import json
import types
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import grace
from grace import registry
from grace.cli.app import app
from grace.errors import ConfigurationError, UnknownNameError
from grace.verify import NORMAL, QUICK, Profile, report, verify
from grace.verify.report import CHECKS
from grace.verify.subject import compose, subject
from tests.unit.verify import own

OWN = "tests.unit.verify.own"
TINY = Profile("tiny", draws=8, worlds=(2,), every=False, ugly=False, trials=4, numbers=64)
ALSO = {  # what else a broken method breaks, because one law rests on another
    "agreement": {"conservation", "edge inputs"},
    "rows": {"conservation", "nothing lost", "edge inputs"},
    "conservation": {"nothing lost", "edge inputs"},
    "traffic": {"conservation"},
    "payload": {"traffic", "conservation"},
    "rest is free": {"edge inputs"},
    "failure": {"non-finite agreed"},
    "non-finite agreed": {"failure"},  # who writes into its old state has changed it, too
}
CAUSE = {"non-finite agreed": "failure"}  # what is named first, where that is another law
runner = CliRunner()


def call(*arguments):
    return runner.invoke(app, ["verify", "--quick", *map(str, arguments)])


# one of each kind; tests/laws has all methods, and more inputs
@pytest.mark.parametrize("name", ["none", "fp16", "qsgd", "efsignsgd", "topk", "randomk", "powersgd", "dgc", "signsgd"])
def test_a_method_of_each_kind_holds(name):
    report = verify(name, QUICK)
    assert report.holds, [finding for finding in report.findings if finding.verdict == "broken"]


def test_every_law_but_the_speed_is_broken_by_some_method():
    assert set(own.BROKEN) == set(CHECKS) - {"speed"}


@pytest.fixture
def promises(monkeypatch):
    """A method that is registered for the length of a test: only these say what they recover."""
    for part in ("_entries", "_classes", "_aliases"):
        monkeypatch.setattr(registry.METHODS, part, dict(getattr(registry.METHODS, part)))
    grace.register("promises", communicator="allgather", recovers={"whole": ""})(own.RecoversLess)


@pytest.mark.usefixtures("promises")
@pytest.mark.parametrize(("law", "broken"), own.BROKEN.items())
def test_a_broken_method_is_told(law, broken):
    done = call(f"{OWN}:{broken.__name__}", "--json")
    assert done.exit_code == 1, done.output
    told = json.loads(done.stdout)
    assert not told["holds"]
    assert law in told["broken"]
    assert set(told["broken"]) <= {law} | ALSO.get(law, set())
    finding = next(finding for finding in told["findings"] if finding["law"] == law)
    assert finding["verdict"] == "broken"
    assert finding["detail"]
    assert f"breaks {', '.join(told['causes'])}" in done.stderr
    assert ("likely for that reason also" in done.stderr) == (told["broken"] != told["causes"])
    assert told["causes"][0] == told["broken"][0] == CAUSE.get(law, law)


def test_json_has_every_law_with_what_was_measured():
    done = call("qsgd:bits=4", "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert (told["holds"], told["broken"], told["method"], told["profile"]) == (True, [], "qsgd:bits=4", "quick")
    findings = {finding["law"]: finding for finding in told["findings"]}
    assert list(findings) == list(CHECKS)
    fields = {"law", "verdict", "measured", "declared", "detail", "numbers"}
    assert all(set(finding) == fields for finding in findings.values())
    assert findings["unbiased"]["declared"] == "unbiased"
    assert findings["unbiased"]["numbers"]["p_value"] > 1e-4
    error = findings["error bound"]["numbers"]
    assert 0 < error["gaussian"] <= error["worst"] <= error["variance"]
    assert findings["traffic"]["numbers"]["rounds"] == 1
    assert findings["speed"]["verdict"] == "told"
    assert findings["speed"]["numbers"]["encode"] > 0


def test_the_table_names_every_law():
    done = call(f"{OWN}:Half")
    assert done.exit_code == 0, done.output
    assert all(name in done.stdout for name in CHECKS)
    assert "in Allgather, alone and under ErrorFeedback" in done.stdout


@pytest.mark.parametrize("name", ["Half", "half", "Plain", "factory", "text"])
def test_what_may_be_named(name):
    assert verify(getattr(own, name), TINY).holds


def test_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "from __future__ import annotations\nfrom dataclasses import dataclass\nimport grace\n"
        "@dataclass(frozen=True, slots=True)\nclass Mine(grace.TopK):\n    pass\n"
    )
    done = call("mine.py:Mine")
    assert done.exit_code == 0, done.output
    assert "Mine" in done.stdout
    assert call(tmp_path / "mine.py:Mine").exit_code == 0


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("no_such_module:Mine", "No module named 'no_such_module'"),
        ("no_such_file.py:Mine", "there is no file no_such_file.py"),
        ("mine.py", "say which class"),
        (f"{OWN}:Nothing", "has no 'Nothing'"),
        (f"{OWN}:NeedsRatio", "NeedsRatio needs arguments: ratio"),
        (f"{OWN}:two", "two needs arguments: a"),
        (f"{OWN}:number", "3 is not a method"),
        ("grace.contract.compressor:Compressor", "Compressor lacks compress_"),
        ("grace.registry.policy:Policy", "neither a subclass of grace.Compressor"),
        ("topkk", "did you mean 'topk'?"),
        ("topk:ratio=7", "0 < ratio <= 1"),
    ],
)
def test_what_cannot_be_verified(target, message):
    done = call(target)
    assert done.exit_code == 2
    assert message in done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.output


def test_a_file_that_fails(tmp_path):
    (tmp_path / "bad.py").write_text("1 / 0\n")
    done = call(tmp_path / "bad.py:Mine")
    assert done.exit_code == 2
    assert "ZeroDivisionError" in done.stderr


def test_quick_and_thorough_exclude_each_other():
    done = runner.invoke(app, ["verify", "topk", "--quick", "--thorough"])
    assert done.exit_code == 2
    assert "not both" in done.stderr


def test_help_has_an_example():
    done = runner.invoke(app, ["verify", "--help"])
    assert done.exit_code == 0
    assert "Example: grace verify my_method.py:MyMethod" in " ".join(done.stdout.split())


def test_schedules_and_memories_are_verified_too():
    for text in (
        "topk:ratio=warmup(0.5->0.1, 2 epochs)",
        "topk:ratio=0.1,start=2",
        "topk:ratio=0.1,memory=ef21m",
        "efsignsgd:communicator=scatterreduce,server_memory=true,memory=distef,follow_lr=true",
        "qsgd:communicator=parameterserver,server=1",
    ):
        report = verify(text, TINY)
        assert report.holds, (text, [finding for finding in report.findings if finding.verdict == "broken"])


def test_rows_that_are_kept_apart_hold_over_scatter_reduce():
    report = verify(own.KeepsRowsApart, TINY)
    assert report.holds, report.spell_broken()
    assert report.composed == ("ScatterReduce",)


def test_what_breaks_over_several_rows_only_is_told_by_default():
    examined = subject(own.MixesRows)
    law, others = "nothing lost", compose(examined, NORMAL.beside)
    assert report._finding(law, CHECKS[law], examined, NORMAL).verdict == "holds"
    assert report._look(law, CHECKS[law], examined, others, NORMAL).detail.startswith("over ScatterReduce: ")
    alone = replace(NORMAL, composed=replace(NORMAL.beside, worlds=(1,)))
    assert report._look(law, CHECKS[law], examined, others, alone).verdict == "holds", "one row mixes with none"


def test_a_report_by_default_compresses_no_more_than_what_slow_codecs_can_bear(monkeypatch):
    """Some take a millisecond for a few numbers, and a report should take a few seconds."""
    calls, plain = [], own.Half.compress_
    monkeypatch.setattr(own.Half, "compress_", lambda *given: calls.append(1) or plain(*given))
    assert verify(own.Half).composed == ("ScatterReduce",)
    assert len(calls) < 3000


def test_progress_is_told():
    seen = []
    verify("none", TINY, lambda done, of, law: seen.append((done, of, law)))
    assert [law for *_, law in seen] == [*CHECKS, ""]
    assert seen[-1][0] == seen[-1][1] == len(CHECKS)


def test_the_generators_are_left_as_they_were():
    torch.manual_seed(5)
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    verify(own.GlobalRandomness, TINY)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1] == before[1]).all()  # noqa: NPY002


def test_names_and_objects_that_are_none():
    with pytest.raises(UnknownNameError):
        verify("topkk")
    with pytest.raises(ConfigurationError, match="not a method"):
        verify(3)


def test_without_assertions_nothing_is_claimed():
    """As ``python -O`` compiles it: in a process of its own all of torch would be compiled once more."""
    file = Path(report.__file__)
    module = types.ModuleType(report.__name__)
    exec(compile(file.read_text(encoding="utf-8"), file, "exec", optimize=1), vars(module))
    with pytest.raises(ConfigurationError, match="run python without it"):
        module.verify("none")
