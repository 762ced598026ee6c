"""Tasks on official files, tiny ones: they load, take a step, evaluate, and say what they were trained on."""

import math
import pickle

import numpy as np
import pytest
import torch

from grace.errors import DataError
from grace_bench.tasks import find_task


def cifar(root):
    random = np.random.RandomState(0)
    folder = root / "cifar-10-batches-py"
    folder.mkdir()
    for name in [*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]:
        images, labels = random.randint(0, 256, (16, 3072)).astype(np.uint8), random.randint(0, 10, 16).tolist()
        (folder / name).write_bytes(pickle.dumps({b"data": images, b"labels": labels}, 2))


def imagenet(root):
    pillow = pytest.importorskip("PIL.Image")
    for split in ("train", "val"):
        for label in range(3):
            (root / split / f"n0{label}").mkdir(parents=True)
            for k in range(6):
                picture = np.full((70, 80, 3), 80 * label, np.uint8)
                pillow.fromarray(picture).save(root / split / f"n0{label}" / f"{k}.JPEG")


def movielens(root):
    random = np.random.RandomState(0)
    lines = ["userId,movieId,rating,timestamp"]
    for user in range(1, 7):
        lines += [f"{user},{item},4.0,{k}" for k, item in enumerate(random.permutation(200)[:22])]
    (root / "ratings.csv").write_text("\n".join(lines) + "\n")


def ptb(root):
    random = np.random.RandomState(0)
    for part in ("train", "valid", "test"):
        words = [f"w{k}" for k in random.randint(0, 50, 2_000)]
        (root / f"ptb.{part}.txt").write_text("".join(" ".join(words[k : k + 20]) + " \n" for k in range(0, 2_000, 20)))


def dagm(root):
    pillow = pytest.importorskip("PIL.Image")
    random = np.random.RandomState(0)
    for split in ("Train", "Test"):
        folder = root / "Class5" / split
        (folder / "Label").mkdir(parents=True)
        for k in range(10):
            pillow.fromarray(random.randint(0, 256, (256, 256)).astype(np.uint8)).save(folder / f"{k:04d}.PNG")
            if k < 8:
                mask = np.zeros((256, 256), np.uint8)
                mask[:64, :64] = 255
                pillow.fromarray(mask).save(folder / "Label" / f"{k:04d}_label.PNG")


def enwik8(root):
    (root / "enwik8").write_bytes(bytes(range(256)) * 40)


@pytest.mark.parametrize(
    ("name", "write", "data", "batch"),
    [
        ("resnet20_small", cifar, "CIFAR-10", 8),
        ("resnet50_small", imagenet, "ImageNet", 4),
        ("ncf_small", movielens, "MovieLens-20M", 32),
        ("lstm_small", ptb, "Penn Treebank", 4),
        ("unet_small", dagm, "DAGM2007 class 5", 2),
        ("gpt_small", enwik8, "enwik8", 2),
    ],
)
def test_a_small_task(tmp_path, name, write, data, batch):
    write(tmp_path)
    task = find_task(name)
    task.batch, task.workers = batch, 2
    task.load(tmp_path)
    task.steps = task.default_steps(2)
    model = task.model()
    loss = task.loss(model, next(task.batches(1, 2, 0)))
    torch.autograd.backward(loss)
    assert math.isfinite(loss.item())
    assert math.isfinite(task.evaluate(model)[task.metric])
    info = task.data_info()
    assert (info["name"], info["procedural"], info["source"]) == (data, False, "official")
    again = find_task(name)
    again.load(tmp_path)
    assert again.data_info()["digest"] == info["digest"]


def test_tables_grow_with_the_data(tmp_path):
    movielens(tmp_path)

    task = find_task("ncf_small")
    task.users = task.items = 5
    task.load(tmp_path)
    assert task.users == 6
    assert task.items == task.touched > 5
    assert task.model().user.shape[0] == 6


def test_tokens_are_measured_by_their_loss(tmp_path):
    for name in ("train.bin", "val.bin"):
        np.random.RandomState(0).randint(0, 50_257, 3_000).astype("<u2").tofile(tmp_path / name)
    task = find_task("gpt2_small")
    task.batch = 1
    task.load(tmp_path)
    assert (task.metric, task.steps_per_epoch(1)) == ("loss", 2)
    x, y = next(task.batches(0, 1, 0))
    assert torch.equal(x[:, 1:], y[:, :-1])
    with pytest.raises(DataError, match="no text data"):
        find_task("gpt_small").load(tmp_path)  # whose vocabulary is bytes


def test_a_token_that_the_model_does_not_have(tmp_path):
    for name in ("train.bin", "val.bin"):
        np.full(3_000, 50_257, "<u2").tofile(tmp_path / name)
    task = find_task("gpt2_small")
    task.load(tmp_path)
    with pytest.raises(DataError, match="the token 50257; the model has 50257, from 0 on"):
        next(task.batches(0, 1, 0))


def test_text_that_is_too_short_for_a_window(tmp_path):
    (tmp_path / "a.txt").write_text("x" * 1000)
    with pytest.raises(DataError, match="the test text has 50 tokens; a window needs at least 130"):
        find_task("gpt_small").load(tmp_path)
