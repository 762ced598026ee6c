"""Methods that are named by where they are: ``file.py:Class``."""

import pytest
from typer.testing import CliRunner

import grace
from grace.cli.app import app
from grace.errors import ConfigurationError
from grace.registry import recipe, resolve, short, spell, split_methods
from grace_bench.runs.config import RunConfig
from grace_bench.runs.record import file_name

SOURCE = """
from dataclasses import dataclass
import grace

@dataclass(frozen=True)
class Mine(grace.TopK):
    "Mine: like top-k."

@grace.register("registered_mine", communicator="broadcast", memory="residual", family="sparsification")
@dataclass(frozen=True)
class Registered(grace.TopK):
    "Registered."

@dataclass(frozen=True)
class Sum(grace.BF16):
    "What can be summed."

@dataclass(frozen=True)
class Lacks(grace.Compressor):
    "Nothing."

def function(): ...
"""


@pytest.fixture
def file(tmp_path):
    (tmp_path / "my.py").write_text(SOURCE)
    return str(tmp_path / "my.py")


def test_the_string_makes_the_class_in_the_first_communicator_that_takes_it(file):
    made = grace.method(f"{file}:Mine:ratio=0.1,memory=residual")
    assert isinstance(made, grace.ErrorFeedback)
    assert isinstance(made.method, grace.Allgather)
    assert (type(made.method.compressor).__name__, made.method.compressor.ratio) == ("Mine", 0.1)
    assert isinstance(grace.method(f"{file}:Sum:communicator=allreduce"), grace.Allreduce)


def test_its_spelling_reads_back(file):
    made = grace.method(f"{file}:Mine:ratio=0.1")
    assert spell(made) == f"{file}:Mine:ratio=0.1"
    assert grace.method(spell(made)) == made, "the file is imported once"


def test_a_file_that_changed_is_read_again(file, tmp_path):
    before = grace.method(f"{file}:Mine")
    (tmp_path / "my.py").write_text(SOURCE + "\n# changed\n")
    assert grace.method(f"{file}:Mine") != before


def test_a_registered_class_keeps_its_recipe(file):
    made = grace.method(f"{file}:Registered")
    assert isinstance(made, grace.ErrorFeedback)
    assert isinstance(made.method, grace.Broadcasts)
    assert recipe(f"{file}:Registered").name == f"{file}:Registered", "a worker finds it by this name"


def test_a_module_does_as_well(file, tmp_path, monkeypatch):
    (tmp_path / "own_methods_of_a_test.py").write_text(SOURCE.replace("registered_mine", "registered_in_a_module"))
    monkeypatch.chdir(tmp_path)
    assert isinstance(grace.method("own_methods_of_a_test:Sum:communicator=allreduce"), grace.Allreduce)


def test_workers_get_the_absolute_path_and_tables_the_name(file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = RunConfig(task="digits", method="my.py:Mine:ratio=0.1")
    assert config.method == resolve("my.py:Mine:ratio=0.1") == f"{file}:Mine:ratio=0.1"
    assert short(config.method) == "my.py:Mine:ratio=0.1"
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "my.py").write_text(SOURCE)
    other = RunConfig(task="digits", method="other/my.py:Mine:ratio=0.1")
    assert file_name(other) != file_name(config)


def test_lists_of_methods():
    methods = ["a.py:Mine:x=1,y=2", "b.py:Other", "topk"]
    assert split_methods("a.py:Mine:x=1,y=2,b.py:Other,topk") == methods


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "say which class of"),
        (":Nope", "has no 'Nope'"),
        (":Lacks", "lacks compress_, decompress_add_, facts"),
        (":function", "neither a subclass of grace.Compressor nor of grace.Method"),
        (":Mine:ratio=7", "0 < ratio <= 1"),
        (":Mine:ration=7", "did you mean 'ratio'"),
    ],
)
def test_what_is_wrong_is_told(name, message, file):
    with pytest.raises(ConfigurationError, match=message):
        grace.method(f"{file}{name}")


def test_a_file_that_is_not_there():
    with pytest.raises(ConfigurationError, match=r"there is no file nowhere\.py"):
        grace.method("nowhere.py:Mine")


@pytest.mark.parametrize(
    "command", [["simulate"], ["advise"], ["compare"], ["bench", "codecs"], ["bench", "train"]], ids=" ".join
)
def test_the_help_says_how_ones_own_method_is_named(command):
    shown = CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "200"})
    assert shown.exit_code == 0
    assert "file.py:Class" in shown.output
