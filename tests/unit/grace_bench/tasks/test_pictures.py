import numpy as np
import pytest
import torch

from grace_bench.tasks.pictures import ArrayPictures, Augmentation, FolderPictures

N = 40


def arrays(size=8):
    random = np.random.RandomState(0)
    images = random.randint(0, 256, (N, 3, size, size)).astype(np.uint8)
    labels = np.arange(N, dtype=np.int64) % 4
    return {"images": images, "labels": labels, "test_images": images[:10], "test_labels": labels[:10]}


def scale(images):
    return (torch.from_numpy(images).float() - 127.5) / 127.5


def train(how, size=8, first=0, index=None):
    pictures = ArrayPictures(arrays(), how, size, first)
    index = np.arange(N) if index is None else index
    return pictures.training(index, np.random.RandomState(1))


def test_without_padding_and_flips_nothing_moves():
    images, labels = train(Augmentation(pad=0, flip=False))
    assert torch.equal(images, scale(arrays()["images"]))
    assert torch.equal(labels, torch.arange(N) % 4)


def test_half_of_the_pictures_are_mirrored():
    images, _ = train(Augmentation(pad=0))
    plain = scale(arrays()["images"])
    same = (images == plain).flatten(1).all(1)
    mirrored = (images == plain.flip(3)).flatten(1).all(1)
    assert torch.equal(same, ~mirrored)
    assert 10 < mirrored.sum() < 30


@pytest.mark.parametrize("reflect", [False, True])
def test_crops_of_the_padded_picture(reflect):
    images, _ = train(Augmentation(pad=2, flip=False, reflect=reflect))
    wide = np.pad(arrays()["images"], ((0, 0), (0, 0), (2, 2), (2, 2)), mode="reflect" if reflect else "constant")
    wide = scale(wide)
    places = set()
    for k in range(N):
        windows = {(y, x): wide[k, :, y : y + 8, x : x + 8] for y in range(5) for x in range(5)}
        matching = [place for place, window in windows.items() if torch.equal(window, images[k])]
        assert len(matching) == 1
        places |= set(matching)
    assert len(places) > 10


def test_cutout_is_one_square_of_zeros():
    images, _ = train(
        Augmentation(pad=0, flip=False, cutout=3, mean=(300.0,) * 3, std=(1.0,) * 3)
    )  # no zeros otherwise
    cut = images == 0
    assert torch.equal(cut.flatten(1).sum(1), torch.full((N,), 27))
    assert all(len(cut[k].any(0).any(1).nonzero()) == 3 for k in range(N))
    assert all(len(cut[k].any(0).any(0).nonzero()) == 3 for k in range(N))


def test_mean_and_deviation_of_each_channel():
    how = Augmentation(pad=0, flip=False, mean=(1.0, 2.0, 3.0), std=(2.0, 4.0, 8.0))
    images, _ = train(how, index=np.array([5]))
    raw = torch.from_numpy(arrays()["images"][5]).float()
    for channel, (mean, std) in enumerate(zip(how.mean, how.std, strict=True)):
        torch.testing.assert_close(images[0, channel], (raw[channel] - mean) / std)


def test_pictures_are_enlarged_and_labels_shifted():
    images, labels = train(Augmentation(), size=28, first=1)
    assert images.shape == (N, 3, 28, 28)
    assert labels.min() == 1


def test_the_test_set_comes_as_it_is():
    pictures = ArrayPictures(arrays(), Augmentation(cutout=4), 8)
    (images, labels), *more = pictures.testing()
    assert not more
    assert torch.equal(images, scale(arrays()["images"][:10]))
    assert torch.equal(labels, torch.arange(10) % 4)


def test_folders(tmp_path):
    pillow = pytest.importorskip("PIL.Image")
    for split in ("train", "val"):
        for k, name in enumerate(("n01", "n02")):
            (tmp_path / split / name).mkdir(parents=True)
            for i in range(3):
                picture = np.full((20, 30, 3), 50 + 100 * k, np.uint8)
                pillow.fromarray(picture).save(tmp_path / split / name / f"{i}.png")
    pictures = FolderPictures(tmp_path, 16, 1000)
    images, labels = pictures.training(np.array([0, 5, 1]), np.random.RandomState(0))
    assert labels.tolist() == [1, 2, 1]
    torch.testing.assert_close(images.mean((1, 2, 3)), torch.tensor([50.0, 150.0, 50.0]) / 127.5 - 1)
    (images, labels), *more = pictures.testing()
    assert not more
    assert images.shape == (6, 3, 16, 16)
    assert labels.tolist() == [1, 1, 1, 2, 2, 2]
