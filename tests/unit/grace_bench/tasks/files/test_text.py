"""Penn Treebank, text as bytes, and files of tokens."""

import numpy as np
import pytest

from grace.errors import DataError
from grace_bench.tasks.files.ptb import read_ptb
from grace_bench.tasks.files.text import has_tokens, read_text, read_tokens

SENTENCES = {"train": " a b a \n b a c <unk> \n", "valid": " a zzz \n", "test": " c b \n"}


def write_ptb(folder, sentences=SENTENCES):
    folder.mkdir(parents=True, exist_ok=True)
    for part, content in sentences.items():
        (folder / f"ptb.{part}.txt").write_text(content)


@pytest.mark.parametrize("below", [".", "data", "simple-examples/data"])
def test_ptb(tmp_path, below):
    write_ptb(tmp_path / below)
    parts = read_ptb(tmp_path, 10_000)
    # By frequency, then by name: a, <eos>, b, <unk>, c
    assert parts["train"].tolist() == [0, 2, 0, 1, 2, 0, 4, 3, 1]
    assert parts["valid"].tolist() == [0, 3, 1]
    assert parts["test"].tolist() == [4, 2, 1]


def test_ptb_in_a_smaller_vocabulary(tmp_path):
    write_ptb(tmp_path, {**SENTENCES, "train": " a b a \n b a c \n"})
    assert read_ptb(tmp_path, 3)["train"].tolist() == [0, 2, 0, 1, 2, 0, 2, 1]  # a, <eos>; b and c are <unk>


def test_ptb_is_not_there(tmp_path):
    with pytest.raises(DataError, match=r"ptb\.train\.txt is not there.*imikolov"):
        read_ptb(tmp_path, 10_000)
    write_ptb(tmp_path)
    (tmp_path / "ptb.valid.txt").unlink()
    with pytest.raises(DataError, match=r"ptb\.valid\.txt is not there"):
        read_ptb(tmp_path, 10_000)


@pytest.mark.parametrize(("content", "message"), [(b" \n\n"[:1], "empty"), (b"\xff\xfe", "not UTF-8")])
def test_ptb_malformed(tmp_path, content, message):
    write_ptb(tmp_path)
    (tmp_path / "ptb.test.txt").write_bytes(content)
    with pytest.raises(DataError, match=rf"ptb\.test\.txt is not as expected: .*{message}"):
        read_ptb(tmp_path, 10_000)


def test_enwik8_is_split_at_90_and_95_percent(tmp_path):
    content = bytes(range(200))
    (tmp_path / "enwik8").write_bytes(content)
    parts = read_text(tmp_path)
    assert {part: len(array) for part, array in parts.items()} == {"train": 180, "valid": 10, "test": 10}
    assert b"".join(array.tobytes() for array in parts.values()) == content


def test_named_parts(tmp_path):
    for part in ("train", "valid", "test"):
        (tmp_path / f"{part}.txt").write_text(part)
    assert {part: array.tobytes().decode() for part, array in read_text(tmp_path).items()} == {
        part: part for part in ("train", "valid", "test")
    }


def test_any_text_files_are_joined_in_order(tmp_path):
    (tmp_path / "b.txt").write_text("b" * 30)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "z.txt").write_text("a" * 10)
    parts = read_text(tmp_path)
    assert b"".join(array.tobytes() for array in parts.values()) == b"a" * 10 + b"b" * 30


def test_no_text(tmp_path):
    with pytest.raises(DataError, match=r"no text data: .*mattmahoney"):
        read_text(tmp_path)
    (tmp_path / "enwik8").touch()
    with pytest.raises(DataError, match="it is empty"):
        read_text(tmp_path)


def test_tokens(tmp_path):
    assert not has_tokens(tmp_path)
    for name, ids in (("train.bin", [1, 50_256, 300]), ("val.bin", [2, 3])):
        np.array(ids, "<u2").tofile(tmp_path / name)
    assert has_tokens(tmp_path)
    parts = read_tokens(tmp_path)
    assert {part: array.tolist() for part, array in parts.items()} == {"train": [1, 50_256, 300], "test": [2, 3]}


def test_malformed_tokens(tmp_path):
    np.array([1, 2], "<u2").tofile(tmp_path / "train.bin")
    with pytest.raises(DataError, match=r"val\.bin is not there"):
        read_tokens(tmp_path)
    for content in (b"", b"abc"):
        (tmp_path / "val.bin").write_bytes(content)
        with pytest.raises(DataError, match=rf"val\.bin is not as expected: it has {len(content)} bytes"):
            read_tokens(tmp_path)
