"""DAGM2007 and ImageNet: files that Pillow decodes."""

import numpy as np
import pytest

from grace.errors import DataError
from grace_bench.tasks.files.dagm import read_dagm
from grace_bench.tasks.files.imagenet import ImageFolder, _draw_crop

pillow = pytest.importorskip("PIL.Image")


def save(path, array):
    path.parent.mkdir(parents=True, exist_ok=True)
    pillow.fromarray(array).save(path)


@pytest.fixture
def textures():
    random = np.random.RandomState(0)
    return random.randint(0, 256, (5, 16, 16)).astype(np.uint8), (random.rand(5, 16, 16) > 0.5).astype(np.uint8) * 255


def write_dagm(root, textures, defective=(0, 3)):
    for split in ("Train", "Test"):
        for k, (image, mask) in enumerate(zip(*textures, strict=True)):
            save(root / "Class2" / split / f"{k:04d}.PNG", image)
            if k in defective:
                save(root / "Class2" / split / "Label" / f"{k:04d}_label.PNG", mask)


@pytest.mark.parametrize("below", [".", "private", "raw_images/private"])
def test_dagm(tmp_path, textures, below):
    write_dagm(tmp_path / below, textures)
    images, masks = textures
    arrays = read_dagm(tmp_path, 2, 16)
    assert np.array_equal(arrays["images"], images[[0, 3]])
    assert np.array_equal(arrays["masks"], masks[[0, 3]])
    assert np.array_equal(arrays["test_images"], images)
    kept = np.isin(np.arange(5), [0, 3])[:, None, None]
    assert np.array_equal(arrays["test_masks"], np.where(kept, masks, 0))


def test_dagm_averaged_down(tmp_path, textures):
    write_dagm(tmp_path, textures)
    arrays = read_dagm(tmp_path, 2, 4)["test_images"]
    assert np.array_equal(arrays, textures[0].reshape(5, 4, 4, 4, 4).mean((2, 4)).astype(np.uint8))


def test_dagm_is_not_there(tmp_path, textures):
    with pytest.raises(DataError, match=r"Class2 is not there.*hci.iwr"):
        read_dagm(tmp_path, 2, 16)
    write_dagm(tmp_path, textures, defective=())
    with pytest.raises(DataError, match=r"0001_label.PNG is not there"):
        read_dagm(tmp_path, 2, 16)
    (tmp_path / "Class2" / "Train").rename(tmp_path / "elsewhere")
    with pytest.raises(DataError, match=r"Train is not there"):
        read_dagm(tmp_path, 2, 16)


@pytest.mark.parametrize("content", [b"", b"no picture", b"\x89PNG\r\n\x1a\n" + bytes(40)])
def test_dagm_damaged(tmp_path, textures, content):
    write_dagm(tmp_path, textures)
    (tmp_path / "Class2" / "Test" / "0002.PNG").write_bytes(content)
    with pytest.raises(DataError, match=r"0002\.PNG is not as expected"):
        read_dagm(tmp_path, 2, 16)


def test_dagm_of_a_size_that_does_not_fit(tmp_path, textures):
    write_dagm(tmp_path, textures)
    with pytest.raises(DataError, match=r"16 x 16 pixels, which do not average down to 12 x 12"):
        read_dagm(tmp_path, 2, 12)


GRAYS = {"n01": 60, "n02": 130, "n03": 200}


def write_imagenet(root, flat=False):
    for name, gray in GRAYS.items():
        picture = np.full((90, 120, 3), gray, np.uint8)
        save(root / "train" / name / f"{name}_1.JPEG", picture)
        save(root / "val" / (f"{name}.JPEG" if flat else f"{name}/{name}.JPEG"), picture)
    if flat:
        (root / "val.txt").write_text("".join(f"{name}.JPEG {k}\n" for k, name in enumerate(GRAYS)))


@pytest.mark.parametrize("flat", [False, True])
def test_imagenet(tmp_path, flat):
    write_imagenet(tmp_path, flat)
    for split in ("train", "val"):
        folder = ImageFolder(tmp_path, split, 1000)
        assert [label for _, label in folder.files] == [1, 2, 3]
        for k, gray in enumerate(GRAYS.values()):
            for pixels in (folder.training(k, np.random.RandomState(k), 64), folder.evaluation(k, 64)):
                assert pixels.shape == (3, 64, 64)
                assert pixels.dtype == np.float32
                assert np.abs(pixels - (gray / 127.5 - 1)).max() < 0.03


@pytest.mark.parametrize("flat", [False, True])
def test_imagenet_with_fewer_classes(tmp_path, flat):
    write_imagenet(tmp_path, flat)
    for split in ("train", "val"):
        assert [label for _, label in ImageFolder(tmp_path, split, 2).files] == [1, 2]


def test_the_digest_sees_files(tmp_path):
    write_imagenet(tmp_path)
    before = ImageFolder(tmp_path, "train", 1000).digest()
    assert ImageFolder(tmp_path, "train", 1000).digest() == before
    save(tmp_path / "train" / "n02" / "more.JPEG", np.zeros((8, 8, 3), np.uint8))
    assert ImageFolder(tmp_path, "train", 1000).digest() != before


def test_the_evaluation_takes_the_center(tmp_path):
    write_imagenet(tmp_path)
    picture = np.zeros((100, 200, 3), np.uint8)
    picture[:, 80:120] = 255
    save(tmp_path / "val" / "n01" / "n01.png", picture)
    (tmp_path / "val" / "n01" / "n01.JPEG").unlink()
    pixels = ImageFolder(tmp_path, "val", 1000).evaluation(0, 32)
    assert pixels[:, :, 14:18].min() > 0.9
    assert pixels[:, :, :4].max() < -0.9


def test_crops_lie_within():
    random = np.random.RandomState(0)
    for _ in range(200):
        left, top, right, bottom = _draw_crop(120, 90, random)
        assert 0 <= left < right <= 120
        assert 0 <= top < bottom <= 90
        assert (right - left) * (bottom - top) >= 0.04 * 120 * 90
    assert _draw_crop(1, 1000, random) == (0, 0, 1, 1000)  # no crop of these ratios fits


def test_imagenet_is_not_there(tmp_path):
    with pytest.raises(DataError, match=r"train is not there.*image-net.org"):
        ImageFolder(tmp_path, "train", 1000)
    (tmp_path / "train" / "n01").mkdir(parents=True)
    with pytest.raises(DataError, match=r"JPEG is not there"):
        ImageFolder(tmp_path, "train", 1000)
    with pytest.raises(DataError, match=r"val is not there"):
        ImageFolder(tmp_path, "val", 1000)
    (tmp_path / "val").mkdir()
    with pytest.raises(DataError, match=r"val\.txt is not there"):
        ImageFolder(tmp_path, "val", 1000)
    (tmp_path / "val.txt").write_text("a.JPEG 0\nb.JPEG\n")
    with pytest.raises(DataError, match=r"val\.txt is not as expected: line 2 is 'b.JPEG'"):
        ImageFolder(tmp_path, "val", 1000)


def test_a_damaged_picture(tmp_path):
    write_imagenet(tmp_path)
    (tmp_path / "train" / "n02" / "n02_1.JPEG").write_bytes(b"\xff\xd8\xff no")
    folder = ImageFolder(tmp_path, "train", 1000)
    for decode in (lambda: folder.training(1, np.random.RandomState(0), 8), lambda: folder.evaluation(1, 8)):
        with pytest.raises(DataError, match=r"n02_1\.JPEG is not as expected"):
            decode()
