"""Text as bytes, and files of tokens."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from grace_bench.tasks.embedded.chunks import Array
from grace_bench.tasks.files.finding import Published

TEXT = Published(
    "text",
    "enwik8, or train.txt, valid.txt and test.txt, or any *.txt",
    "http://mattmahoney.net/dc/textdata.html (enwik8); any text of your own will do",
)
TOKENS = Published(
    "tokens",
    "train.bin and val.bin, token ids as little-endian uint16",
    "https://github.com/karpathy/nanoGPT (data/openwebtext/prepare.py writes them); or text as it is",
)
_PARTS = ("train", "valid", "test")


def read_text(root: Path) -> dict[str, Array]:
    """``train``, ``valid`` and ``test``, uint8. One file, or many joined, are split at 90 and 95 percent.

    Raises:
        DataError: no text there, or an empty one.
    """
    named = [root / f"{part}.txt" for part in _PARTS]
    if (root / "enwik8").is_file():
        return _split([root / "enwik8"])
    if all(path.is_file() for path in named):
        return {part: _read_bytes(path) for part, path in zip(_PARTS, named, strict=True)}
    if files := sorted(path for path in root.rglob("*.txt") if path.is_file()):
        return _split(files)
    raise TEXT.missing(root / "enwik8")


def has_tokens(root: Path) -> bool:
    """True if ``read_tokens`` would find its files."""
    return (root / "train.bin").is_file()


def read_tokens(root: Path) -> dict[str, Array]:
    """``train`` and ``test`` (``val.bin``), uint16, mapped: nothing is read yet.

    Raises:
        DataError: a file that is not there, is empty, or has half a token.
    """
    tokens: dict[str, Array] = {}
    for part, path in (("train", root / "train.bin"), ("test", root / "val.bin")):
        if not path.is_file():
            raise TOKENS.missing(path)
        size = path.stat().st_size
        if not size or size % 2:
            raise TOKENS.malformed(path, f"it has {size} bytes")
        tokens[part] = np.memmap(path, "<u2", "r")
    return tokens


def _read_bytes(path: Path) -> Array:
    text_bytes = np.fromfile(path, np.uint8)
    if not text_bytes.size:
        raise TEXT.malformed(path, "it is empty")
    return text_bytes


def _split(files: list[Path]) -> dict[str, Array]:
    joined = np.concatenate([_read_bytes(path) for path in files])
    twentieth = len(joined) // 20
    return dict(zip(_PARTS, np.split(joined, [18 * twentieth, 19 * twentieth]), strict=True))
