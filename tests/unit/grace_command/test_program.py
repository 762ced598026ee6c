"""The program answers from its catalog what the whole command line would have answered, and imports no torch for it."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import grace
from grace.cli.app import app
from grace_command import catalog, main, quick
from tests.patience import PATIENCE

QUICK = [
    [],
    ["--version"],
    ["--help"],
    ["bench", "--help"],
    ["list"],
    ["list", "--json"],
    ["tasks"],
    ["tasks", "--json"],
    ["explain", "topk"],
    ["explain", "Top-K:ratio=0.01", "--json"],
    ["explain", "--json", "SignumCompressor"],
    ["explain", "UnknownNameError"],
    ["explain", "grace.inputerror", "--json"],
]
COMPLETIONS = [
    ("grace train --method topk,efs", "topk,efsignsgd", 3),
    ("grace explain powers", "powersgd", 2),
    ("grace train --task lstm_s", "lstm_small", 3),
    ("grace bench train --links 100mbit,1g", "100mbit,1gbit", 4),
    ("grace compare --gran", "--granularity", 2),
    ("grace expl", "explain", 1),
]
CHILD = """
import contextlib, io, json, os, sys
from grace_command import main

done = []
for arguments, env in json.load(sys.stdin):
    os.environ.update(env)
    sys.argv = ["grace", *arguments]
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        main()
    done.append(out.getvalue())
heavy = [name for name in ("torch", "numpy", "grace", "msgspec") if name in sys.modules]
json.dump({"done": done, "heavy": heavy}, sys.stdout)
"""


def completion(words: str, index: int) -> dict[str, str]:
    return {"_GRACE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(index)}


@pytest.fixture(scope="module")
def child() -> dict[str, list[str]]:
    asked = [(arguments, {}) for arguments in QUICK]
    asked += [([], completion(words, index)) for words, _, index in COMPLETIONS]
    ran = subprocess.run(
        [sys.executable, "-c", CHILD],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    return json.loads(ran.stdout)


def test_it_imports_no_torch(child: dict[str, list[str]]) -> None:
    assert child["heavy"] == []


@pytest.mark.parametrize("arguments", QUICK, ids=" ".join)
def test_it_answers_as_the_whole_command_line(child: dict[str, list[str]], arguments: list[str]) -> None:
    told = child["done"][QUICK.index(arguments)]
    ran = CliRunner().invoke(app, arguments, prog_name="grace")
    assert ran.exit_code == 0, ran.output
    if "--json" in arguments:
        assert json.loads(told) == json.loads(ran.stdout)
    else:
        assert told == ran.stdout


@pytest.mark.parametrize("at", range(len(COMPLETIONS)))
def test_it_completes(child: dict[str, list[str]], at: int) -> None:
    words, completed, index = COMPLETIONS[at]
    assert child["done"][len(QUICK) + at].split() == [completed]
    whole = CliRunner().invoke(app, [], prog_name="grace", env=completion(words, index))
    assert whole.stdout.split() == [completed]


@pytest.mark.parametrize(
    "arguments",
    [
        ["explain", "topk:ratio=0.02"], ["explain", "topk:ratio=0.01,ratio=0.01"], ["explain", "nonsense"],
        ["explain", "my.py:Mine"], ["explain", "topk:"], ["explain"], ["explain", "topk", "--model", "x:y"],
        ["list", "--help"], ["list", "--json", "--json"], ["train", "--method", "topk"], ["nonsense"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_the_rest_is_for_the_whole_command_line(arguments: list[str]) -> None:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert quick.run(arguments) is False
    assert out.getvalue() == ""


def test_a_method_that_the_catalog_does_not_know_is_not_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert catalog.is_whole()
    with monkeypatch.context() as patch:
        patch.setattr(catalog, "plugins", lambda: ["mymethod"])
        assert quick.run(["list"]) is False, "an installed package has one"
        assert "mymethod" in catalog.method_names(), "the shell completes it"
    with monkeypatch.context() as patch:
        patch.setattr(catalog, "list_files", lambda folder: [*catalog.read()["files"], "new"])
        assert quick.run(["list"]) is False, "a file is new"


def test_names_and_defaults_are_those_of_the_registry() -> None:
    for name, entry in catalog.read()["methods"].items():
        knobs = ",".join(f"{knob}={value}" for knob, value in entry["knobs"].items())
        for spelled in entry["names"]:
            assert grace.method(spelled) == grace.method(name)
        assert not knobs or grace.method(f"{name}:{knobs}") == grace.method(name)


def test_a_full_disk_and_an_interrupt_are_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    def fail(error: BaseException) -> None:
        def raise_it(text: str) -> None:
            raise error

        monkeypatch.setattr(quick, "_write", raise_it)

    fail(OSError(errno.ENOSPC, "No space left on device"))
    with pytest.raises(SystemExit) as stop:
        quick.run(["list", "--json"])
    assert stop.value.code == 1
    assert capsys.readouterr().err == "error: No space left on device; free some space and run the command again\n"
    monkeypatch.setattr("grace.cli.main", interrupt)
    monkeypatch.setattr(sys, "argv", ["grace", "doctor"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert (stop.value.code, capsys.readouterr().err) == (130, "stopped\n"), "while it is imported"
    fail(KeyboardInterrupt())
    with pytest.raises(SystemExit) as stop:
        quick.run(["list", "--json"])
    assert stop.value.code == 130
