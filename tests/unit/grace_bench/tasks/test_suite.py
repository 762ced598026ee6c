"""All tasks of the suite: one step on little data, synthetic batches, and what they tell."""

import itertools
import math

import numpy as np
import pytest
import torch

from grace.errors import ConfigurationError, DataError
from grace_bench.tasks import TASKS, find_task
from grace_bench.tasks.embedded.chunks import stream
from grace_bench.tasks.memory import saved_bytes
from grace_bench.tasks.suite import SuiteTask, epochs_of

SMALL = [name for name, task in TASKS.items() if task.four_worker_steps or name in ("digits", "digits_wide")]
FULL = [name for name in TASKS if name not in (*SMALL, "digits_small")]
# What makes a small task smaller still.
CUT = {
    **{name: {"embedded": (160, 40), "batch": 8} for name in SMALL if name.startswith(("resnet", "densenet", "vgg"))},
    "ncf_small": {"embedded": (60, 200), "batch": 64},
    "lstm_small": {"batch": 4, "length": 5, "test_words": 2_000},
    "unet_small": {"size": 32},
    "lstm_tiny": {"batch": 4, "length": 5, "test_words": 2_000},
    "gpt_small": {"batch": 2, "context": 16, "windows": 4},
    "gpt_tiny": {"batch": 2, "context": 16, "windows": 4},
}


def cut(name):
    whole = type(find_task(name))
    return type(f"Cut{whole.__name__}", (whole,), CUT.get(name, {}))()


@pytest.mark.parametrize("name", SMALL)
def test_one_step(name):
    task = cut(name)
    task.workers = 2
    task.load(None)
    task.steps = task.default_steps(2)
    assert task.default_steps(4) == (task.four_worker_steps or 154)  # 14 epochs of 11
    torch.manual_seed(0)
    model = task.model()
    optimizer = task.optimizer(model)
    before = [p.detach().clone() for p in model.parameters()]
    loss = task.loss(model, next(task.batches(0, 2, seed=0)))
    torch.autograd.backward(loss)
    assert loss.shape == ()
    assert math.isfinite(loss.item())
    assert all(p.grad is not None for p in model.parameters())
    for group in optimizer.param_groups:
        group["lr"] = task.lr(1)
    optimizer.step()
    assert any(not torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True))
    qualities = task.evaluate(model)
    assert task.metric in qualities
    assert all(math.isfinite(value) for value in qualities.values())
    assert model.training
    info = task.data_info()
    assert info["source"] == "embedded"
    assert len(info["digest"]) == 16
    assert info["procedural"] == ("real data" not in task.about)


@pytest.mark.parametrize("name", SMALL)
def test_batches_depend_on_seed_and_rank_alone(name):
    task = cut(name)
    task.load(None)
    torch.manual_seed(1)
    generator = torch.get_rng_state()

    def first(rank, seed):
        return [part for part in next(task.batches(rank, 2, seed)) if isinstance(part, torch.Tensor)]

    batches, again, other_rank = first(0, 3), first(0, 3), first(1, 3)
    assert all(torch.equal(x, y) for x, y in zip(batches, again, strict=True))
    assert not all(torch.equal(x, y) for x, y in zip(batches, other_rank, strict=True))
    if not name.startswith("lstm"):  # whose text has an order of its own
        assert not all(torch.equal(x, y) for x, y in zip(batches, first(0, 4), strict=True))
    assert torch.equal(torch.get_rng_state(), generator)


@pytest.mark.parametrize("name", SMALL)
def test_synthetic_batches_are_like_real_ones(name):
    real, synthetic = cut(name), cut(name)
    real.load(None)
    synthetic.load_synthetic()
    pairs = zip(next(real.batches(0, 4, 0)), next(synthetic.batches(0, 4, 0)), strict=True)
    for x, y in pairs:
        assert type(x) is type(y)
        if isinstance(x, torch.Tensor):
            assert (x.shape, x.dtype) == (y.shape, y.dtype)
    model = synthetic.model()
    assert math.isnan(synthetic.evaluate(model)[synthetic.metric])
    assert synthetic.data_info() == {"name": "random batches", "procedural": True, "digest": "", "source": "synthetic"}
    assert math.isfinite(synthetic.loss(model, next(synthetic.batches(1, 4, 0))).item())


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("resnet20", 328 * (50_000 // 4 // 256)),
        ("resnet9", 24 * (50_000 // 4 // 128)),
        ("resnet50", 90 * (1_281_167 // 4 // 64)),
        ("ncf", 30 * (99_308_850 // 4 // 262_144)),
        ("lstm_ptb", 25 * (929_589 // 35 // 4 // 20)),
        ("unet", 2500),
    ],
)
def test_synthetic_runs_are_as_long_as_official_ones(name, steps):
    task = find_task(name)
    task.load_synthetic()
    assert task.default_steps(4) == steps
    assert round(task.epochs * task.steps_per_epoch(4)) == steps


@pytest.mark.parametrize(("name", "in_all"), [("resnet9", 512), ("ncf", 1_048_576)])
def test_a_batch_in_all_is_divided(name, in_all):
    task = find_task(name)
    task.workers = 8
    task.load_synthetic()
    assert task.batch == task.samples_per_batch == in_all // 8
    task.workers = 4
    task.load_synthetic()
    assert task.batch == in_all // 4
    task.workers = in_all + 1
    with pytest.raises(ConfigurationError, match=f"cannot share a batch of {in_all} in all"):
        task.load_synthetic()


def test_a_batch_that_was_asked_for_stays():
    task = find_task("resnet9")
    task.batch = 7
    task.load_synthetic()
    assert task.batch == 7
    assert len(next(task.batches(0, 4, 0))[1]) == 7


@pytest.mark.parametrize("name", FULL)
def test_memory_is_told_without_using_it(name):
    task = find_task(name)
    with torch.device("meta"):
        size = sum(p.numel() for p in task.model().parameters())
    assert task.worker_bytes() > 4 * 4 * size


@pytest.mark.parametrize("name", ["resnet20_small", "gpt_small", "unet_small", "lstm_small", "ncf_small"])
def test_saved_bytes_are_those_of_a_real_pass(name):
    task = cut(name)
    task.load_synthetic()
    with torch.device("meta"):
        model = task.model()
    expected = saved_bytes(task, model, task.synthetic_batch(stream(0, 0)))
    model = task.model()
    parameters = {p.data_ptr() for p in model.parameters()}
    saved = {}

    def keep(x):
        if (storage := x.untyped_storage()).data_ptr() not in parameters:
            saved[storage.data_ptr()] = storage
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        loss = task.loss(model, task.synthetic_batch(stream(0, 0)))
    assert loss.requires_grad
    # oneDNN's LSTM keeps a workspace whose size a fake tensor does not know.
    most = 1.3 if name == "lstm_small" else 1.001
    assert 0.999 * expected <= sum(storage.nbytes() for storage in saved.values()) <= most * expected


def test_one_permutation_an_epoch_that_all_share():
    def two_epochs(rank, seed):
        return [index for index, _ in itertools.islice(epochs_of(103, rank, 4, 5, seed), 10)]

    parts = [two_epochs(rank, 0) for rank in range(4)]
    for epoch in (slice(0, 5), slice(5, 10)):
        seen = np.concatenate([np.concatenate(part[epoch]) for part in parts])
        assert len(seen) == len(set(seen.tolist())) == 100
    assert not np.array_equal(parts[0][0], parts[0][5])
    assert not np.array_equal(parts[0][0], two_epochs(0, 1)[0])


def test_a_directory_that_is_not_there(tmp_path):
    task = find_task("resnet20_small")
    with pytest.raises(DataError, match="nowhere is not there"):
        task.load(tmp_path / "nowhere")
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="file is not a directory"):
        task.load(tmp_path / "file")


def test_what_needs_data_says_so():
    task = find_task("resnet20_small")
    assert isinstance(task, SuiteTask)
    for use in (lambda: task.steps_per_epoch(4), task.data_info):
        with pytest.raises(ConfigurationError, match="call load or load_synthetic first"):
            use()


def test_the_lstm_streams_go_on_from_step_to_step():
    task = cut("lstm_small")
    task.load(None)
    (x, y, carry), (x2, _, carry2) = itertools.islice(task.batches(1, 2, 0), 2)
    assert torch.equal(x[:, 1:], y[:, :-1])
    assert torch.equal(y[:, -1], x2[:, 0])
    assert carry is carry2
    model = task.model()
    task.loss(model, (x, y, carry))
    assert carry.state is not None
    steps = task.steps_per_epoch(2)
    last, fresh = itertools.islice(task.batches(1, 2, 0), steps - 1, steps + 1)
    assert last[2] is not fresh[2]
    assert torch.equal(fresh[0], x)


def test_the_perplexity_of_a_uniform_model_is_the_vocabulary():
    task = cut("lstm_small")
    task.load(None)
    model = task.model()
    with torch.no_grad():
        model.weight.zero_()
        model.bias.zero_()
    assert task.evaluate(model)["perplexity"] == pytest.approx(2_000, rel=1e-4)


def test_the_bits_of_a_uniform_model_are_eight():
    task = cut("gpt_small")
    task.load(None)
    model = task.model()
    with torch.no_grad():
        model.embedding.zero_()
    assert task.evaluate(model)["bits_per_byte"] == pytest.approx(8, rel=1e-4)


def test_ncf_has_four_negatives_for_a_positive():
    task = cut("ncf_small")
    task.load(None)
    labels = torch.cat([labels for _, _, labels in itertools.islice(task.batches(0, 1, 0), task.steps_per_epoch(1))])
    assert labels.mean().item() == pytest.approx(0.2, abs=0.01)
    users, items, labels = next(task.batches(0, 1, 0))
    touched = {tuple(pair) for pair in task.pairs.tolist()}
    for user, item, label in zip(users.tolist(), items.tolist(), labels.tolist(), strict=True):
        assert label == 0 or (user, item) in touched


def test_the_dice_loss_is_taken_where_it_is_small():
    task = find_task("unet_small")
    masks = torch.zeros(1, 1, 8, 8)
    masks[..., :4] = 1
    good, bad = 20 * (masks - 0.5), 20 * (0.5 - masks)

    def loss(logits):
        return task.loss(lambda x: logits, (torch.zeros_like(masks), masks)).item()

    assert loss(good) == pytest.approx(0, abs=0.02)
    assert loss(bad) == pytest.approx(10, rel=1e-3)  # cross-entropy: the Dice loss is below 1
