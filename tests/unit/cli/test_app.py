import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import grace
from grace.cli.app import app

runner = CliRunner()


def call(*arguments):
    return runner.invoke(app, list(arguments))


def test_list_names_every_method():
    done = call("list")
    assert done.exit_code == 0
    for name in grace.methods():
        assert name in done.stdout


def test_list_as_json_is_json_only():
    rows = json.loads(call("list", "--json").stdout)
    assert [row["name"] for row in rows] == list(grace.methods())
    assert all(row["family"] and row["recipe"] and row["summary"] for row in rows)


@pytest.mark.parametrize("name", grace.methods())
def test_explain_knows_every_method(name):
    done = call("explain", name)
    assert done.exit_code == 0, done.output
    for heading in ("Recipe", "Wire", "Bias", "Reference", "Claims", "Traffic"):
        assert heading in done.stdout


def test_explain_as_json():
    found = json.loads(call("explain", "topk:ratio=0.02", "--json").stdout)
    assert found["method"] == "topk:ratio=0.02"
    assert "Wire" in found["sections"]


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["explain", "topkk"], 1, "did you mean 'topk'?"),
        (["explain", "topk:ratio=7"], 1, "0 < ratio <= 1"),
        (["train", "--method", "topk", "--task", "digit"], 1, "did you mean 'digits'?"),
        (["train", "--method", "topk", "--workers", "0"], 1, "workers=0"),
        (["train", "--method", "topk", "--granularity", "layer"], 1, "'parameter', 'bucket', 'model'"),
        (["train", "--method", "topk", "--steps", "3", "--epochs", "1"], 1, "not both"),
        (["train", "--method", "topk", "--task", "no.such.module:Task"], 1, "no.such"),
        (["train", "--method", "topk", "--task", "grace.bench.config:RunConfig"], 1, "not a subclass"),
        (["compare", "--methods", "topk,nome", "--out", "nowhere"], 1, "unknown method 'nome'"),
        (["train", "--method", "topk", "--timeout", "nan"], 1, "timeout=nan is out of range; legal: seconds > 0"),
        (["bench", "predict", "nowhere"], 1, "nowhere has no runs/*.json"),
        (["bench", "predict", "nowhere", "--workers", "many"], 1, "many"),
        (["bench", "link", "--link", "none"], 1, "name one or more speeds"),
        (["train"], 2, "Missing option"),
        (["train", "--method", "topk", "--workers", "many"], 2, "train --help"),
        (["bench", "overhead", "--samples", "1"], 2, "bench overhead --help"),
        (["explain"], 2, "Missing argument"),
        (["nonsense"], 2, "No such command"),
    ],
)
def test_errors_are_one_message_and_a_status(arguments, status, message):
    done = call(*arguments)
    assert done.exit_code == status
    assert message in done.stderr
    assert "Traceback" not in done.output
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("command", [["list"], ["explain"], ["train"], ["compare"], ["bench", "overhead"]])
def test_every_command_has_help_with_an_example(command):
    done = call(*command, "--help")
    assert done.exit_code == 0
    assert f"Example: grace {' '.join(command)}" in " ".join(done.stdout.split())
    assert "--json" in done.stdout


@pytest.mark.parametrize(
    "command",
    [["train", "--method", "topk"], ["compare", "--methods", "topk"], ["bench", "train", "--methods", "topk"]],
    ids=lambda words: " ".join(words[:-2]),
)
def test_a_folder_that_cannot_be_written_is_told_before_anything_runs(command, tmp_path):
    (tmp_path / "file").touch()
    done = call(*command, "--out", str(tmp_path / "file" / "results"))
    assert done.exit_code == 1
    assert done.stderr.startswith("error: nothing can be written to ")
    assert f"{tmp_path / 'file'} is not a folder; name another folder\n" in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_a_damaged_result_is_named(tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "a.json").write_text("{")
    done = call("bench", "predict", str(tmp_path))
    assert done.exit_code == 1
    assert done.stderr.startswith(f"error: {tmp_path / 'runs' / 'a.json'}: not JSON")
    assert done.stderr.count("\n") == 1


def test_the_version():
    assert call("--version").stdout.strip() == f"grace {grace.__version__}"


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_without_its_extra_the_command_says_what_to_install(missing):
    code = (
        f"import sys; sys.modules[{missing!r}] = None; sys.argv = ['grace', 'list']; import grace.cli; grace.cli.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "pip install 'grace-dl[cli]'" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_compare_says_that_vl_convert_is_missing_before_it_trains(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    done = call("compare", "--methods", "topk", "--out", str(tmp_path / "out"))
    assert done.exit_code == 1
    assert "pip install 'grace-dl[bench]'" in done.stderr
    assert not (tmp_path / "out").exists()
