import pytest

from grace_bench.extras import MissingExtraError
from grace_bench.runs.trackers import TensorBoard, Wandb, summary
from tests.unit.grace_bench.documents import document


def test_the_summary_leaves_out_what_there_is_not():
    numbers = summary(document(final=None))
    assert numbers["step_ms"] == 3.0
    assert "final" not in numbers
    assert "target_seconds" not in numbers


@pytest.mark.parametrize("made", [lambda path: TensorBoard(path), lambda path: Wandb("p", path)])
def test_missing_packages_are_named_with_their_extra(made, tmp_path, monkeypatch):
    def fail_import(name):
        raise ModuleNotFoundError(name=name)

    monkeypatch.setattr("importlib.import_module", fail_import)
    with pytest.raises(MissingExtraError, match=r"grace-dl\[(tensorboard|wandb)\]"):
        made(tmp_path)


class _Run:
    def __init__(self):
        self.logged, self.summary, self.finished = [], {}, False

    def log(self, metrics, step):
        self.logged.append((step, metrics))

    def finish(self):
        self.finished = True


class _Module:
    Settings = dict

    def init(self, **options):
        self.options, self.run = options, _Run()
        return self.run


def test_a_run_as_weights_and_biases_sees_it(tmp_path, monkeypatch):
    module = _Module()
    monkeypatch.setattr("grace_bench.runs.trackers.need", lambda *_, **__: module)
    Wandb("project", tmp_path / "new").log("name", document())
    assert module.options["project"] == "project"
    assert module.options["config"]["method"] == "none"
    assert module.run.logged[1] == (10, {"train_loss": 0.1, "accuracy": 0.9})
    assert module.run.summary["step_ms"] == 3.0
    assert module.run.finished


def test_a_run_as_tensorboard_sees_it(tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    TensorBoard(tmp_path).log("name", document())
    (file,) = (tmp_path / "name").iterdir()
    assert b"accuracy" in file.read_bytes()
