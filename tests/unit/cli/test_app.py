import errno
import json
import re
import sys

import pytest
from typer.testing import CliRunner

import grace
from grace.cli.app import app, run
from grace.cli.output import warn_if_busy
from grace.compute import backends, native
from grace.errors import GraceError
from grace.registry.algorithms import ALGORITHMS
from grace_command import catalog
from tests.distributed.forked import fork_workers
from tests.distributed.processes import fork
from tests.docs.pages import ROOT

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
    document = json.loads(call("explain", "topk:ratio=0.02", "--json").stdout)
    assert document["method"] == "topk:ratio=0.02"
    assert "Wire" in document["sections"]


def test_list_names_every_algorithm():
    out = call("list").stdout
    for name, algorithm in ALGORITHMS.items():
        assert re.search(rf"^{name} +{algorithm.kind} ", out, flags=re.MULTILINE), name
        assert algorithm.use.partition("(")[0] in out


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("diloco", {"every": "500", "lr": "0.7", "method": "none"}),
        ("local_sgd", {"every": "must be given"}),
        ("SparseLoCo:every=32,lr=0.4", {"every": "32", "lr": "0.4", "method": "chunktopk"}),
        ("onebitadam:freeze_step=7", {"freeze_step": "7", "eps": "1e-08", "method": "see the page"}),
        ("dpsgd", {"graph": "ring", "gamma": "see the page"}),
        ("choco:method=(topk:ratio=0.1),gamma=0.2", {"method": "TopK(ratio=0.1)", "gamma": "0.2"}),
    ],
)
def test_explain_knows_algorithms_and_their_settings(text, shown):
    name = text.partition(":")[0].lower()
    document = json.loads(call("explain", text, "--json").stdout)
    assert (document["name"], document["use"]) == (name, ALGORITHMS[name].use)
    assert document["settings"].items() >= shown.items()
    out = call("explain", text).stdout
    for part in (document["summary"], document["use"], document["page"], *shown):
        assert part in out
    assert (ROOT / document["page"]).is_file()


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["explain", "diloco:evry=3"], 1, "unknown knob of diloco 'evry'; did you mean 'every'"),
        (["verify", "diloco"], 2, "'diloco' is an outer loop, not a method"),
        (["explain", "topkk"], 1, "did you mean 'topk'?"),
        (["explain", "topk:ratio=7"], 1, "0 < ratio <= 1"),
        (["train", "--method", "topk", "--task", "digit"], 1, "did you mean 'digits' or 'digits_wide'?"),
        (["train", "--method", "topk", "--workers", "0"], 1, "workers=0"),
        (["train", "--method", "topk", "--granularity", "layer"], 1, "'parameter', 'bucket', 'model'"),
        (["train", "--method", "topk", "--steps", "3", "--epochs", "1"], 1, "not both"),
        (["train", "--method", "topk", "--task", "no.such.module:Task"], 1, "no.such"),
        (["train", "--method", "topk", "--task", "grace_bench.runs.config:RunConfig"], 1, "not a subclass"),
        (["compare", "--methods", "topk,nome", "--out", "nowhere"], 1, "unknown method 'nome'"),
        (["train", "--method", "topk", "--timeout", "nan"], 1, "timeout=nan is out of range; legal: 0 < timeout < inf"),
        (["bench", "predict", "nowhere"], 1, "nowhere has no runs/*.json"),
        (["bench", "predict", "nowhere", "--workers", "many"], 1, "many"),
        (["bench", "link", "--link", "none"], 1, "name one or more speeds"),
        (["train"], 2, "Missing option"),
        (["train", "--method", "topk", "--workers", "many"], 1, "--workers 'many': expected whole numbers"),
        (["train", "--method", "topk", "--steps", "many"], 2, "train --help"),
        (
            ["compare", "--methods", "topk", "--links", "1gbit,none", "--out", "nowhere"],
            1,
            "takes one link, not 1gbit, none",
        ),
        (["bench", "link", "--seconds", "none"], 2, "bench link --help"),
        (["explain"], 1, "a METHOD, or --run FILE"),
        (["nonsense"], 2, "No such command"),
        (["train", "--method", "topk", "--task", "nonsense"], 1, "grace tasks prints all tasks"),
    ],
)
def test_errors_are_one_message_and_a_status(arguments, status, message):
    done = call(*arguments)
    assert done.exit_code == status
    assert message in done.stderr
    assert "Traceback" not in done.output
    assert done.stdout == ""
    assert done.stderr.count("\n") == (2 if status == 1 else 1)
    assert ("\nread on: " in done.stderr) == (status == 1)


@pytest.mark.parametrize("command", [["list"], ["explain"], ["train"], ["compare"], ["bench", "codecs"]])
def test_every_command_has_help_with_an_example(command):
    done = call(*command, "--help")
    assert done.exit_code == 0
    assert f"Example: grace {' '.join(command)}" in " ".join(done.stdout.split())
    assert "--json" in done.stdout
    assert "<bool>" not in done.stdout


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
    assert done.stderr.count("\n") == 2
    assert done.stdout == ""


def test_a_damaged_result_is_named(tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "a.json").write_text("{")
    done = call("bench", "predict", str(tmp_path))
    assert done.exit_code == 1
    assert done.stderr.startswith(f"error: {tmp_path / 'runs' / 'a.json'}: not JSON")
    assert done.stderr.count("\n") == 2


def test_the_version():
    assert call("--version").stdout.strip() == f"grace {grace.__version__}"


WITHOUT = """
import io, sys
import grace_command
sys.modules["{}"], sys.stdout = None, io.StringIO()
try:
    grace_command.main()
finally:
    assert not sys.stdout.getvalue()
"""


@pytest.mark.parametrize(("missing", "command"), [("typer", "doctor"), ("rich", "list")])
def test_without_its_extra_the_command_says_what_to_install(missing, command, tmp_path):
    (tmp_path / "script.py").write_text(WITHOUT.format(missing))
    ((status, output),) = fork(tmp_path / "script.py", command, workers=1)
    assert status == 1
    assert "pip install 'grace-dl[cli]'" in output
    assert "Traceback" not in output


def test_compare_says_that_vl_convert_is_missing_before_it_trains(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    done = call("compare", "--methods", "topk", "--out", str(tmp_path / "out"))
    assert done.exit_code == 1
    assert "pip install 'grace-dl[bench]'" in done.stderr
    assert not (tmp_path / "out").exists()


OWN = """
from dataclasses import dataclass
import grace

@dataclass(frozen=True)
class Mine(grace.TopK):
    "Mine: like top-k."
"""


def test_a_method_of_ones_own_goes_wherever_methods_go(tmp_path, monkeypatch):
    (tmp_path / "my.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    fork_workers(monkeypatch)
    assert json.loads(call("explain", "my.py:Mine:ratio=0.1", "--json").stdout)["family"] == "own"
    done = call(
        "bench",
        "codecs",
        "--methods",
        "my.py:Mine:ratio=0.1",
        "--sizes",
        "1K",
        "--samples",
        "3",
        "--threads",
        "1",
        "--json",
    )
    assert any(row["method"].endswith("my.py:Mine:ratio=0.1") for row in json.loads(done.stdout)["worth"])
    done = call("train", "-m", "my.py:Mine:ratio=0.1", "--workers", "1", "--steps", "2", "--evaluations", "1", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)[0]["method"] == "my.py:Mine:ratio=0.1", "its worker found the file"


def test_grace_alone_greets_with_four_commands():
    done = call()
    assert done.exit_code == 0
    assert done.stdout.count("\n  grace ") == 4


def test_tasks_are_listed():
    rows = {row["name"]: row for row in json.loads(call("tasks", "--json").stdout)}
    assert rows["digits"]["parameters"] == 19_074
    assert rows["digits"]["data"] == ["embedded", "synthetic"]
    assert rows["lstm_small"]["metric"] == "perplexity"
    assert rows["lstm_small"]["better"] == "lower"
    shown = call("tasks").stdout
    assert all(name in shown for name in rows)
    (resnet9,) = [line for line in shown.splitlines() if line.startswith("resnet9 ")]
    assert "512 in all" in resnet9


@pytest.mark.parametrize("command", ["list", "explain", "tasks", "train"])
def test_json_takes_no_value(command):
    (line,) = [line for line in call(command, "--help").stdout.splitlines() if "--json" in line]
    assert "<bool>" not in line
    assert "BOOL" not in line
    assert "--no-json" not in line


def test_a_full_disk_is_told(monkeypatch):
    def refuse(*arguments, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("grace.cli.explain.write_json", refuse)
    done = call("list", "--json")
    assert done.exit_code == 1
    assert done.stderr == "error: No space left on device; free some space and run the command again\n"


@pytest.mark.parametrize("load", [0.0, 100.0])
def test_a_busy_machine_is_told_where_something_is_measured(load, monkeypatch, capsys):
    monkeypatch.setattr("grace_bench.machine.load", lambda: load)
    warn_if_busy()
    assert ("times are doubtful" in capsys.readouterr().err) == (load > 0)


def test_ctrl_c_is_status_130(monkeypatch, capsys):
    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("grace.cli.explain.write_json", interrupt)
    monkeypatch.setattr(sys, "argv", ["grace", "list", "--json"])
    with pytest.raises(SystemExit) as stop:
        run()
    assert (stop.value.code, capsys.readouterr().err) == (130, "stopped\n")


def test_what_trains_has_the_same_options():
    tree = catalog.read()["command"]["commands"]
    commands = {"train": tree["train"], "compare": tree["compare"], "bench": tree["bench"]["commands"]["train"]}
    options = {name: {param["names"][0]: param for param in command["params"]} for name, command in commands.items()}
    assert set(options["bench"]) - set(options["train"]) == {"--baselines"}
    for option in options["train"]:
        assert options["compare"][option] | {"required": True} == options["train"][option] | {"required": True}
        assert options["bench"][option] | {"required": True} == options["train"][option] | {"required": True}


@pytest.mark.parametrize(
    ("command", "measure"),
    [
        (["train", "-m", "topk"], "grace.cli.runs.sweep"),
        (["compare", "-m", "topk", "--out", "OUT"], "grace.cli.runs.sweep"),
        (["bench", "train", "-m", "topk", "--out", "OUT"], "grace.cli.runs.sweep"),
        (["bench", "smoke", "--out", "OUT"], "grace_bench.smoke.run"),
        (["bench", "link"], "grace_bench.network.throughput.measure_link"),
        (["bench", "codecs"], "grace_bench.codecs.session.run"),
        (["advise", "--task", "digits"], "grace_bench.advise.run.advise"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_every_command_that_measures_says_first_that_the_machine_is_busy(command, measure, monkeypatch, tmp_path):
    def stop(*arguments, **options):
        raise GraceError("here it would measure")

    monkeypatch.setattr("grace_bench.machine.load", lambda: 1000.0)
    monkeypatch.setattr(measure, stop)
    done = call(*(str(tmp_path) if word == "OUT" else word for word in command))
    before, stopped, _ = done.stderr.partition("error: here it would measure")
    assert stopped
    assert "note: the machine was busy (load 1000.0 on " in before


def test_no_color_is_honored(monkeypatch):
    colors = re.compile("\x1b\\[[0-9;]*3[0-9][0-9;]*m")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert colors.search(call("list").stdout), "otherwise this could not fail"
    monkeypatch.setenv("NO_COLOR", "1")
    for command in (["list"], ["explain", "signsgd"], ["tasks"]):
        assert not colors.search(call(*command).stdout)


def test_missing_kernels_are_told_once_at_the_end(monkeypatch):
    monkeypatch.setattr(backends, "current", backends.UNDECIDED)
    monkeypatch.setattr(native, "_loaded", "the native library was not built")
    monkeypatch.delenv(backends.VARIABLE, raising=False)
    done = call("bench", "codecs", "--methods", "qsgd", "--sizes", "1K", "--samples", "3")
    assert done.exit_code == 0, done.output
    assert done.stderr.count("slower torch kernels") == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("note: Grace uses its slower torch kernels: the native library was not built")
    monkeypatch.setenv(backends.VARIABLE, "reference")
    assert "slower" not in call("tasks").stderr, "they were asked for"
