"""Penn Treebank in Mikolov's form."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np

from grace_bench.tasks.embedded.chunks import Array
from grace_bench.tasks.files.finding import Published

PTB = Published(
    "Penn Treebank",
    "ptb.train.txt, ptb.valid.txt and ptb.test.txt, a sentence a line, in the folder, in data or in simple-examples/data",
    "https://www.fit.vutbr.cz/~imikolov/rnnlm/simple-examples.tgz (text: https://catalog.ldc.upenn.edu/LDC99T42)",
)
_UNKNOWN = "<unk>"


def read_ptb(root: Path, vocabulary: int) -> dict[str, Array]:
    """``train``, ``valid`` and ``test``, int32: words by falling frequency in ``train``, the ends of lines as ``<eos>``.

    Words beyond the ``vocabulary`` most frequent, or not in ``train``, are ``<unk>``. The whole files have 929,589, 73,760
    and 82,430 tokens and 10,000 words.

    Raises:
        DataError: files that are not there, not UTF-8, or empty.
    """
    folder = PTB.folder(root, "ptb.train.txt", ["data", "simple-examples/data"])
    text = {part: _read_words(folder / f"ptb.{part}.txt") for part in ("train", "valid", "test")}
    frequent = [word for word, _ in sorted(Counter(text["train"]).items(), key=lambda item: (-item[1], item[0]))]
    known = frequent[:vocabulary]
    if _UNKNOWN not in known and len(frequent) > vocabulary:
        known[-1] = _UNKNOWN
    ids = {word: number for number, word in enumerate(known)}
    other = ids.get(_UNKNOWN)
    tokens = {}
    for part, words in text.items():
        numbers = (ids.get(word, other) for word in words)
        tokens[part] = np.array([n for n in numbers if n is not None], np.int32)
    return tokens


def _read_words(path: Path) -> list[str]:
    if not path.is_file():
        raise PTB.missing(path)
    try:
        words = path.read_text(encoding="utf-8").replace("\n", " <eos> ").split()
    except UnicodeDecodeError as error:
        raise PTB.malformed(path, f"it is not UTF-8: {error}") from error
    if not words:
        raise PTB.malformed(path, "it is empty")
    return words
