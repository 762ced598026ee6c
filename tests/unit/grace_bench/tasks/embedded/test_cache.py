import shutil
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from grace_bench.tasks.embedded import cache
from tests.patience import PATIENCE


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("GRACE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


class Builder:
    def __init__(self):
        self.calls = 0

    def __call__(self):
        self.calls += 1
        return {"x": np.arange(10), "y": np.ones((2, 3), np.float32)}


def entries(folder):
    return sorted(path.name for path in folder.iterdir() if path.is_dir())


def test_built_once_and_the_same_afterwards(folder):
    build = Builder()
    first, second = cache.load_or_build("set", 1, build), cache.load_or_build("set", 1, build)
    assert build.calls == 1
    for name, array in Builder()().items():
        for arrays in (first, second):
            assert arrays[name].dtype == array.dtype
            assert np.array_equal(arrays[name], array)


def test_another_key_is_another_entry(folder):
    build = Builder()
    cache.load_or_build("set", (1, "a"), build)
    cache.load_or_build("set", (1, "b"), build)
    assert build.calls == 2
    assert len(entries(folder)) == 2


def test_writing_to_what_is_returned_changes_no_file(folder):
    cache.load_or_build("set", 1, Builder())["x"][:] = 7
    assert np.array_equal(cache.load_or_build("set", 1, Builder())["x"], np.arange(10))


def test_of_several_that_ask_at_once_one_builds(folder):
    """Threads stand for processes, which take seconds to start: each opens the lock for itself, as a process would."""
    build, barrier = Builder(), threading.Barrier(4)

    def ask(_):
        barrier.wait(PATIENCE)
        return cache.load_or_build("set", 1, build)

    with ThreadPoolExecutor(4) as pool:
        built = list(pool.map(ask, range(4)))
    assert build.calls == 1
    assert all(np.array_equal(arrays["x"], np.arange(10)) for arrays in built)


@pytest.mark.parametrize("damage", [b"", b"no array"])
def test_a_damaged_entry_is_built_again(folder, damage):
    cache.load_or_build("set", 1, Builder())
    (folder / entries(folder)[0] / "x.npy").write_bytes(damage)
    build = Builder()
    assert np.array_equal(cache.load_or_build("set", 1, build)["x"], np.arange(10))
    assert build.calls == 1
    assert np.array_equal(cache.load_or_build("set", 1, build)["x"], np.arange(10))
    assert build.calls == 1


def test_a_build_that_fails_leaves_nothing(folder):
    def build():
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        cache.load_or_build("set", 1, build)
    assert entries(folder) == []


def test_a_full_disk_is_no_error(folder, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    build = Builder()
    assert np.array_equal(cache.load_or_build("set", 1, build)["x"], np.arange(10))
    assert build.calls == 1
    assert entries(folder) == []


def test_a_folder_that_cannot_be_made_is_no_error(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("GRACE_CACHE", str(tmp_path / "file" / "cache"))
    assert np.array_equal(cache.load_or_build("set", 1, Builder())["x"], np.arange(10))


def test_where_it_is(monkeypatch, tmp_path):
    monkeypatch.delenv("GRACE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.cache_folder() == tmp_path / "grace"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache.cache_folder() == tmp_path / ".cache" / "grace"


def test_a_changed_program_makes_a_new_entry(folder, monkeypatch, tmp_path):
    copy = tmp_path / "programs"
    copy.mkdir()
    shutil.copy(cache.__file__, copy / "cache.py")
    monkeypatch.setattr(cache, "__file__", str(copy / "cache.py"))
    before = cache._hash(1)
    assert cache._hash(1) == before
    with (copy / "cache.py").open("a") as file:
        file.write("# changed\n")
    assert cache._hash(1) != before
