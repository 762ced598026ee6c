"""Shapes, defects and feedback: the same wherever they are made, and what they are said to be."""

import numpy as np
import pytest

from grace_bench.tasks.embedded.chunks import digest, stream
from grace_bench.tasks.embedded.defects import defect_image, defects
from grace_bench.tasks.embedded.feedback import feedback
from grace_bench.tasks.embedded.shapes import CHUNK, shape_chunk, shapes


def test_streams_are_functions_of_their_numbers():
    assert np.array_equal(stream(7, 3).randint(0, 1000, 5), stream(7, 3).randint(0, 1000, 5))
    assert not np.array_equal(stream(7, 3).randint(0, 1000, 5), stream(7, 4).randint(0, 1000, 5))
    assert not np.array_equal(stream(7, 3).randint(0, 1000, 5), stream(3, 7).randint(0, 1000, 5))


def test_the_streams_never_change():
    """Between versions and machines: results would no longer be comparable."""
    assert stream(7, 3).randint(0, 1000, 5).tolist() == [498, 945, 415, 746, 422]


def test_the_digest_sees_values_types_and_shapes():
    x = np.arange(6, dtype=np.int32)
    others = [x + 1, x.astype(np.int64), x.reshape(2, 3), x[:0]]
    assert len({digest([x]), *(digest([other]) for other in others)}) == 5
    assert digest([x[::2]]) == digest([x[::2].copy()])


@pytest.mark.parametrize(("size", "classes"), [(32, 10), (64, 40)])
def test_shapes(size, classes):
    arrays = shapes(CHUNK + 10, 20, size, classes)
    assert arrays["images"].shape == (CHUNK + 10, 3, size, size)
    assert arrays["images"].dtype == np.uint8
    assert arrays["test_images"].shape == (20, 3, size, size)
    assert set(np.unique(arrays["labels"])) == set(range(classes))
    # Any part can be made without the rest.
    images, labels = shape_chunk(1, size, classes, 0.06, 7)
    assert np.array_equal(arrays["images"][CHUNK:], images[:10])
    assert np.array_equal(arrays["labels"][CHUNK:], labels[:10])
    assert not np.array_equal(arrays["images"][:20], arrays["test_images"])


def test_the_shape_is_in_the_picture():
    """Without noise, pictures of one class are more alike at their middles than pictures of two."""
    images, labels = shape_chunk(0, 32, 10, 0.0, 7)
    contrast = np.abs(images[:, :, 8:24, 8:24].astype(float) - np.median(images, axis=(2, 3), keepdims=True)).mean(
        (1, 2, 3)
    )
    assert contrast.min() > 0
    filled, ringed = contrast[labels == 2].mean(), contrast[labels == 3].mean()  # squares and frames
    assert filled > 1.2 * ringed


def test_defects():
    arrays = defects(5, 32, train=6, test=8, test_defective=3)
    assert arrays["images"].shape == (6, 32, 32)
    assert all(mask.any() for mask in arrays["masks"])
    assert [bool(mask.any()) for mask in arrays["test_masks"]] == [True] * 3 + [False] * 5
    assert set(np.unique(arrays["masks"])) == {0, 255}
    image, mask = defect_image(4, 5, 32, True, 11)
    assert np.array_equal(arrays["images"][4], image)
    assert np.array_equal(arrays["masks"][4], mask)


@pytest.mark.parametrize("kind", range(1, 11))
def test_a_defect_changes_the_picture_only_within_its_mask(kind):
    whole, _ = defect_image(3, kind, 64, False, 11)
    spoilt, mask = defect_image(3, kind, 64, True, 11)
    assert 0 < mask.mean() / 255 < 0.2
    assert whole.shape == spoilt.shape
    # The random numbers differ after the defect's, so the grain does; the texture, which is stronger, does not.
    apart = np.abs(whole.astype(float) - spoilt)
    assert apart[mask == 0].mean() < 30


def test_feedback():
    arrays = feedback(40, 200)
    pairs, held = arrays["pairs"], arrays["held"]
    assert len(held) == 40
    counts = np.bincount(pairs[:, 0], minlength=40) + 1
    assert counts.min() >= 20
    assert len(np.unique(pairs[:, 0] * 200 + pairs[:, 1])) == len(pairs)  # no item twice
    assert not {(u, i) for u, i in enumerate(held.tolist())} & {(u, i) for u, i in pairs.tolist()}
    assert max(pairs[:, 1].max(), held.max()) < 200


def test_popular_items_are_touched_more():
    counts = np.bincount(feedback(300, 200)["pairs"][:, 1], minlength=200)
    assert np.sort(counts)[-20:].sum() > 3 * np.sort(counts)[:100].sum() / 5


def test_more_users_do_not_change_the_first():
    few, many = feedback(30, 200), feedback(60, 200)
    assert np.array_equal(few["held"], many["held"][:30])
