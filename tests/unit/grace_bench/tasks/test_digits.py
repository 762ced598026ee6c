import itertools

import pytest
import torch

from grace.errors import DataError, UnknownNameError
from grace_bench.tasks import find_task


@pytest.fixture(scope="module")
def digits():
    task = find_task("digits")
    task.load(None)
    task.steps = 100
    return task


def test_the_test_set_is_every_fifth_sample(digits):
    assert len(digits.pictures.test_labels) == 359 or len(digits.pictures.test_labels) == 360
    assert len(digits.pictures.labels) + len(digits.pictures.test_labels) == 1797


def test_the_data_are_scikit_learns(digits):
    from sklearn.datasets import load_digits

    theirs = load_digits()
    assert torch.equal(digits.pictures.test_labels, torch.from_numpy(theirs.target[4::5]))
    assert torch.equal(digits.pictures.test_images[:, 0], torch.from_numpy(theirs.images[4::5]).byte())
    images = torch.cat([images for images, _ in digits.pictures.testing()])
    assert torch.equal(images[:, 0], torch.from_numpy(theirs.images[4::5]).float() / 8 - 1)


def test_the_model_is_as_documented(digits):
    sizes = [p.numel() for p in digits.model().parameters()]
    assert (sum(sizes), len(sizes)) == (19_074, 23)
    assert sum(size >= 1024 for size in sizes) == 4


def test_workers_share_one_permutation_and_split_it(digits):
    steps = digits.steps_per_epoch(4)
    seen = [
        torch.cat([images for images, _ in itertools.islice(digits.batches(rank, 4, seed=1), steps)])
        for rank in range(4)
    ]
    flat = torch.cat(seen).flatten(1)
    assert len(flat) == 4 * steps * digits.batch
    everything = digits.pictures.images.flatten(1) / 8 - 1
    positions = [(everything == image).all(1).nonzero()[0].item() for image in flat]
    assert len(set(positions)) == len(torch.unique(flat, dim=0))


def test_batches_depend_on_the_seed_alone(digits):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = next(digits.batches(0, 2, seed=3))
    again = next(digits.batches(0, 2, seed=3))
    other = next(digits.batches(0, 2, seed=4))
    assert torch.equal(first[0], again[0])
    assert not torch.equal(first[0], other[0])
    assert torch.equal(torch.get_rng_state(), before)


def test_the_learning_rate_rises_and_falls(digits):
    rates = [digits.lr(step) for step in range(100)]
    assert max(rates) == digits.peak
    assert rates[0] < rates[5] < rates[10] > rates[50] > rates[99] >= 0


def test_decay_spares_normalization(digits):
    model = digits.model()
    norms = [m for m in model.modules() if isinstance(m, torch.nn.BatchNorm2d)]
    assert len(digits.decayed(model)) == 23 - 2 * len(norms)


def test_there_are_no_official_files(tmp_path):
    with pytest.raises(DataError, match="leave --data out"):
        find_task("digits").load(tmp_path)


def test_an_unknown_task_names_the_nearest():
    with pytest.raises(UnknownNameError, match="did you mean 'digits'"):
        find_task("digts")
