import pytest
import torch

from grace.errors import ConfigurationError, UnknownNameError
from grace_bench.tasks import TASKS, Task, find_task


def test_every_task_tells_what_it_is():
    for name, kind in TASKS.items():
        task = find_task(name)
        assert isinstance(task, Task)
        assert type(task) is kind
        assert "\n" not in kind.about
        assert len(kind.about) < 100
        assert kind.__doc__


def test_a_task_without_a_name_of_its_own_is_not_listed():
    named = {task for task in TASKS.values() if "name" in vars(task)}
    assert named == set(TASKS.values())
    assert not any(type(find_task(name)).__name__.startswith("_") for name in TASKS)


def test_the_surveys_nine_rows_come_in_two_sizes():
    rows = [find_task(name).paper_row for name in TASKS]
    assert len({row for row in rows if row is not None}) == 9
    assert all(rows.count(row) == 2 for row in rows if row is not None)


def test_a_small_task_is_the_full_one_with_other_numbers():
    for small, full in [("resnet20_small", "resnet20"), ("densenet_small", "densenet40_k12"), ("unet_small", "unet")]:
        own = vars(type(find_task(small)))
        assert issubclass(type(find_task(small)), type(find_task(full)))
        assert not any(callable(value) for value in own.values())


def test_an_unknown_task_names_the_nearest():
    with pytest.raises(UnknownNameError, match="did you mean 'resnet20_small'"):
        find_task("resnet20_smal")


class Smallest(Task):
    """A user's own task needs no more than this."""

    def load(self, root):
        self.root = root

    def model(self):
        return torch.nn.Linear(2, 1)

    def steps_per_epoch(self, world):
        return 12 // world

    def batches(self, rank, world, seed):
        while True:
            yield torch.ones(4, 2)

    def loss(self, model, batch):
        return model(batch).mean()

    def optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.1)

    def lr(self, step):
        return 0.1

    def evaluate(self, model):
        return {"accuracy": 0.0}


def test_the_defaults_of_a_users_own_task():
    task = find_task(f"{__name__}:Smallest")
    assert isinstance(task, Smallest)
    assert task.data_info() == {"name": "smallest", "procedural": False, "digest": "", "source": "embedded"}
    assert (task.paper_row, task.target, task.samples_per_batch, task.worker_bytes()) == (None, None, 32, 0)
    assert task.default_steps(4) == 3
    with pytest.raises(ConfigurationError, match="no synthetic data"):
        task.load_synthetic()


def test_what_is_no_task_is_refused():
    with pytest.raises(ConfigurationError, match="is not a subclass"):
        find_task("pathlib:Path")
