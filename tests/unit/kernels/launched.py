"""The ways in which tests in Triton's interpreter launch kernels, for a compiler to take: ``compiled_ways.json``, beside.

A way is what the compiler sees of a launch: the type of each argument, the value of each constant. Every two of them that any
test launches together are in a way of the file, which names a test that launches it. So the file is what is launched: a test
fails that launches what no way has, and one that does not launch the ways that name it (:func:`check`).

``python -m tests.unit.kernels.launched`` runs the tests, and writes the file anew; with names of tests, it keeps what the
others launched (minutes).
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

FILE = Path(__file__).with_name("compiled_ways.json")
ROOT = Path(__file__).parents[3]
RECORD = "GRACE_TEST_RECORD_LAUNCHES"  # a folder: launches are written there, and not checked
COMMAND = "python -m tests.unit.kernels.launched"
OPTIONS = ("num_warps", "num_stages", "maxnreg")  # of the compiler, not of a kernel
POINTERS = {
    torch.float32: "*fp32", torch.float64: "*fp64", torch.float16: "*fp16", torch.int16: "*i16", torch.int32: "*i32",
    torch.int64: "*i64", torch.uint8: "*u8", torch.bool: "*i1",
}  # fmt: skip
NUMBER, WORD, FLOAT = "int", "word", "fp32"  # a word has 32 bits, and may be negative as an int32
# The constant that says whether tensors lie at multiples of 16 bytes, and its value here: where they lie no test can promise.
PLACED, EITHER = "EVEN", "either"
Way = tuple[tuple[str, Any], ...]  # (name, type or value) of each argument, and of options


class Launch(NamedTuple):
    """A kernel, and the way it is launched in."""

    kernel: str
    way: Way


class Known(NamedTuple):
    """Contents of the file. ways: of each kernel, with the test that launches it. words: arguments of 32 bits."""

    words: frozenset[str]
    ways: dict[str, list[tuple[Way, str]]]


def describe(function: Any, args: Iterable[Any], constants: dict[str, Any]) -> Launch:
    """A launch of a kernel as the interpreter has it."""
    kernel = f"{function.fn.__module__.removeprefix('grace.').replace('.triton', '')}.{function.fn.__name__}"
    given = {**dict(zip(function.arg_names, args, strict=False)), **constants}
    kinds = function.fn.__annotations__
    return Launch(
        kernel,
        tuple(
            (name, _see(name, value, "constexpr" in str(kinds.get(name)) or name in OPTIONS))
            for name in (*function.arg_names, *OPTIONS)  # in one order, however they are given
            for value in ([given[name]] if name in given else [])
        ),
    )


def _see(name: str, value: Any, constant: bool) -> Any:
    if constant:
        return EITHER if name == PLACED else value
    if isinstance(value, Tensor):
        return POINTERS[value.dtype]
    if isinstance(value, float):
        return FLOAT
    return WORD if value < 0 else NUMBER


@contextmanager
def recorded() -> Iterator[set[Launch]]:
    """Launches in the interpreter, whether they then run or not."""
    launches, module = set[Launch](), importlib.import_module("triton.runtime.interpreter")
    run = module.InterpretedFunction.run

    def note(self: Any, *args: Any, **how: Any) -> Any:
        if self.fn.__module__.startswith("grace."):
            launches.add(describe(self, args, how))
        return run(self, *args, **how)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module.InterpretedFunction, "run", note)
        yield launches


def name_of(test: pytest.Item) -> str:
    """The name of a test, whatever pytest-xdist appends to it."""
    return f"{test.path.relative_to(ROOT).as_posix()}::{test.name}"


def check(test: str, launches: set[Launch], known: Known | None = None) -> None:
    """Checks that the file has what a test launches, and nothing that this test should have launched.

    Raises:
        Failed: it has not, or has more.
    """
    if (folder := os.environ.get(RECORD)) is not None:
        with Path(folder, f"{os.getpid()}.jsonl").open("a", encoding="utf-8") as file:
            file.writelines(json.dumps([test, *launch]) + "\n" for launch in launches)
        return
    known = known or read()
    told = f"{FILE.name} is not what is launched: `{COMMAND} {test.partition('[')[0]}` writes it"
    for launch in launches:
        way = _plain(launch.way, known.words)
        if lacking := _pairs(way) - _pairs_of(launch.kernel, known):
            pytest.fail(f"{told}; {launch.kernel} is launched with {sorted(lacking)[0]}, which no way of it has")
    plain = {(launch.kernel, _plain(launch.way, known.words)) for launch in launches}
    for kernel, ways in known.ways.items():
        for way, by in ways:
            if by == test and (kernel, way) not in plain:
                pytest.fail(f"{told}; {kernel} is not launched in the way {dict(way)}")


def _plain(way: Way, words: Iterable[str]) -> Way:
    """The way, with the same type for an argument whatever its value is; what is no word, and negative, stays."""
    return tuple(
        (name, (WORD if name in words else value) if value in (NUMBER, WORD) else value) for name, value in way
    )


def _pairs(way: Way) -> set[tuple[str, str]]:
    each = [f"{name}: {value!r}" for name, value in way]
    return {(first, second) for i, first in enumerate(each) for second in each[i:]}


def _pairs_of(kernel: str, known: Known) -> set[tuple[str, str]]:
    if known is not read():
        return set().union(*(_pairs(way) for way, _ in known.ways.get(kernel, [])))
    return _known_pairs(kernel)


@cache
def _known_pairs(kernel: str) -> set[tuple[str, str]]:
    return set().union(*(_pairs(way) for way, _ in read().ways.get(kernel, [])))


def cover(ways: Iterable[Way], *, pairs: bool = True) -> list[Way]:
    """Some of these ways, in which there is all that any two arguments (without ``pairs``, any one) are; the fullest first."""
    has = {way: {pair for pair in _pairs(way) if pairs or pair[0] == pair[1]} for way in sorted(set(ways), key=repr)}
    left, chosen = set().union(*has.values()), list[Way]()
    while left:
        chosen.append(max(has, key=lambda way: len(has[way] & left)))
        left -= has.pop(chosen[-1])
    return chosen


def derive(records: Iterable[tuple[str, Launch]]) -> Known:
    """Contents of the file, from (test, launch)."""
    records = sorted(set(records), key=lambda record: (len(record[0]), repr(record)))  # short names before long ones
    words = frozenset(name for _, launch in records for name, value in launch.way if value == WORD)
    ways_of: dict[str, dict[Way, str]] = {}
    for test, launch in records:
        ways_of.setdefault(launch.kernel, {}).setdefault(_plain(launch.way, words), test)
    return Known(words, {kernel: [(way, ways[way]) for way in cover(ways)] for kernel, ways in sorted(ways_of.items())})


@cache
def read() -> Known:
    """The file."""
    known = json.loads(FILE.read_text(encoding="utf-8"))
    return Known(
        frozenset(known["words"]),
        {
            kernel: [
                (
                    tuple((name, value) for name, value in zip(names, row, strict=True) if value is not None),
                    known["tests"][by],
                )
                for by, *row in rows
            ]
            for kernel, (names, rows) in known["kernels"].items()
        },
    )


def write(known: Known) -> str:
    """The file's text: of each kernel the names of its arguments, and a line for each way, which begins with its test."""
    tests = sorted({test for ways in known.ways.values() for _, test in ways})
    kernels = []
    for kernel, ways in known.ways.items():
        names = list(dict.fromkeys(name for way, _ in ways for name, _ in way))
        rows = [[tests.index(test), *(dict(way).get(name) for name in names)] for way, test in ways]
        lines = ",\n   ".join(map(json.dumps, rows))
        kernels.append(f'  "{kernel}": [{json.dumps(names)}, [\n   {lines}\n  ]]')
    listed = ",\n  ".join(map(json.dumps, tests))
    return (
        f'{{\n "words": {json.dumps(sorted(known.words))},\n "tests": [\n  {listed}\n ],\n "kernels": {{\n'
        + ",\n".join(kernels)
        + "\n }\n}\n"
    )


def _launches_in(folder: Path) -> Iterator[tuple[str, Launch]]:
    for file in folder.glob("*.jsonl"):
        for line in file.read_text(encoding="utf-8").splitlines():
            test, kernel, way = json.loads(line)
            yield test, Launch(kernel, tuple((name, value) for name, value in way))


def main(tests: list[str]) -> None:
    """Runs these tests, or all that run in the interpreter, and writes the file."""
    files = [
        str(file)
        for file in ROOT.glob("tests/**/test_*.py")
        if "interpreter" in file.read_text(encoding="utf-8") and file.name != "test_launched.py"  # which makes its own
    ]
    command = [sys.executable, "-m", "pytest", "-q", "-n", "auto", "-m", "not night", *(tests or files)]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(command, cwd=ROOT, env={**os.environ, RECORD: folder}, check=True)
        records = set(_launches_in(Path(folder)))
    if tests:  # ways of tests that ran are theirs to give again
        ran = {test for test, _ in records}
        records |= {
            (test, Launch(kernel, way)) for kernel, ways in read().ways.items() for way, test in ways if test not in ran
        }
    derived = derive(records)
    for kernel, ways in read().ways.items():
        lost = (
            set[tuple[str, str]]()
            .union(*(_pairs(way) for way, _ in ways))
            .difference(*(_pairs(way) for way, _ in derived.ways.get(kernel, [])))
        )
        if lost:
            sys.stdout.write(f"{kernel}: no longer launched, unless by tests that did not run: {sorted(lost)}\n")
    FILE.write_text(write(derived), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
