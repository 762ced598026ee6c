import sysconfig

import numpy as np
import pytest

from grace.errors import DataError
from grace_bench.tasks.embedded import stdlib


def test_bytes_are_the_interpreters_own():
    parts = stdlib.stdlib_bytes()
    sizes = {part: len(text) for part, text in parts.items()}
    assert sizes["train"] > 5 * sizes["valid"] > 0
    assert sizes["train"] > 5 * sizes["test"] > 1_000_000 / 4
    everything = b"".join(text.tobytes() for text in parts.values())
    assert b"class JSONDecoder" in everything
    assert b"class OrderedDict" in everything


def test_words(tmp_path, monkeypatch):
    for k in range(60):
        (tmp_path / f"m{k}.py").write_text("x = 10\n\n\nif x:\n    y = x + 2.5e3\n")
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "test_it.py").write_text("never seen\n")
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    assert stdlib._words("x = 10\n\n\nif x:") == ["x", "=", "N", "<eos>", "if", "x", ":"]
    words = stdlib.stdlib_words(5)
    assert {int(part.max()) for part in words.values()} == {4}
    assert all(part.dtype == np.int32 for part in words.values())
    # One file: x = N <eos> if x : <eos> y = x + N <eos>; the four most frequent: x and <eos> thrice, = and N twice.
    assert words["test"][:14].tolist() == [2, 3, 4, 1, 0, 2, 0, 1, 0, 3, 2, 0, 4, 1]


def test_an_interpreter_without_sources(tmp_path, monkeypatch):
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(DataError, match="comes without the source of its standard library"):
        stdlib.stdlib_bytes()
