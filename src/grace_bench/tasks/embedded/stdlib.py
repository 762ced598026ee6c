"""Text that is on every machine: the running interpreter's own standard library. Real data, which differ between versions
of Python; so results carry a digest.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import sysconfig
from collections import Counter
from pathlib import Path

import numpy as np

from grace.errors import DataError
from grace_bench.tasks.embedded.cache import load_or_build
from grace_bench.tasks.embedded.chunks import Array

# Tests, packages that distributions leave out, and tables.
_SKIP = {
    "test",
    "tests",
    "unittest",
    "idlelib",
    "lib2to3",
    "site-packages",
    "dist-packages",
    "lib-dynload",
    "__pycache__",
}
_SKIP |= {"turtledemo", "ensurepip", "pydoc_data", "encodings", "tkinter", "distutils", "_pyrepl"}
_SKIP_FILES = ("_sysconfigdata", "sitecustomize")
_WORD = re.compile(r"[A-Za-z_]\w*|\d[\w.]*|\n|[^\w\s]")
PARTS = ("train", "valid", "test")


def stdlib_bytes() -> dict[str, Array]:
    """The text as UTF-8, uint8: ``train``, ``valid`` and ``test``."""
    return load_or_build("stdlib-bytes", _version(), _bytes)


def stdlib_words(vocabulary: int) -> dict[str, Array]:
    """The text as words, int32: the ``vocabulary - 1`` most frequent ones of ``train`` from 1 on, all others are 0."""

    def build() -> dict[str, Array]:
        words = {part: _words(text) for part, text in _parts().items()}
        counts = Counter(words["train"])
        frequent = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[: vocabulary - 1]
        ids = {word: number for number, (word, _) in enumerate(frequent, start=1)}
        return {part: np.array([ids.get(word, 0) for word in text], np.int32) for part, text in words.items()}

    return load_or_build("stdlib-words", (vocabulary, _version()), build)


def _version() -> tuple[str, str]:
    return sys.version, sysconfig.get_path("stdlib")


def _bytes() -> dict[str, Array]:
    return {part: np.frombuffer(text.encode(), np.uint8) for part, text in _parts().items()}


def _parts() -> dict[str, str]:
    """Nine tenths of the files to train, a twentieth each to validate and to test: by a hash of the file's name, so that
    a file stays where it is from one version of Python to the next.
    """
    root = Path(sysconfig.get_path("stdlib"))
    texts: dict[str, list[str]] = {part: [] for part in PARTS}
    for folder, below, names in os.walk(root):
        below[:] = sorted(name for name in below if name not in _SKIP and not name.startswith(("config-", ".")))
        for name in sorted(names):
            if name.endswith(".py") and not name.startswith(_SKIP_FILES):
                file = Path(folder, name)
                place = hashlib.sha256(file.relative_to(root).as_posix().encode()).digest()[0] % 20
                part = "test" if place == 0 else "valid" if place == 1 else "train"
                texts[part].append(file.read_text(encoding="utf-8", errors="replace"))
    if not all(texts.values()):
        raise DataError(
            f"{root}: this interpreter comes without the source of its standard library, which is the embedded text; "
            "name a folder with text files instead (--data)"
        )
    return {part: "\n".join(pieces) for part, pieces in texts.items()}


def _words(text: str) -> list[str]:
    """As in Penn Treebank: names, N for a number, single punctuation marks, ``<eos>`` at the end of a line."""
    words, last = [], "\n"
    for word in _WORD.findall(text):
        if word != "\n":
            words.append("N" if word[0].isdigit() else word)
        elif last != "\n":
            words.append("<eos>")
        last = word
    return words
