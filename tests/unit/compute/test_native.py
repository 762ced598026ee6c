"""Finding, calling and sharing of the native kernels between threads and processes; not what they compute."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import grace
from grace import kernels
from grace.compute import backends, native
from grace.errors import ConfigurationError, InputError, KernelsWarning, PayloadError
from grace.random import Stream

STREAM = Stream(1, "test", "w", None, 2)
BUILT = len(backends.available()) > 1
needs_native = pytest.mark.skipif(not BUILT, reason=native.library())
LARGE = 3_000_000  # several threads work on as many numbers


@pytest.fixture
def undecided(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Nothing is chosen yet, and the environment says nothing."""
    monkeypatch.setattr(backends, "current", backends.UNDECIDED)
    monkeypatch.delenv(backends.VARIABLE, raising=False)
    return monkeypatch


def work() -> bytes:
    """Several kernels on several threads; the same bytes everywhere."""
    x = torch.arange(LARGE, dtype=torch.float32).sin_()[None]
    levels = kernels.Levels(7, 256, "l2")
    wire, finite = kernels.quantize(x, levels, STREAM)
    assert finite
    out = torch.empty_like(x)
    kernels.dequantize_sum([wire, wire], out, levels, 0.5)
    kernels.add_subset([kernels.take_subset(x, 50_000, STREAM)], out, 0.5, STREAM)
    return out.numpy().tobytes()


# ---- the library -----------------------------------------------------------------------------------------------------
class OldLibrary:
    """A library whose sources had another list of functions, or none."""

    _name = "libold.so"

    def __init__(self, signatures: str | None):
        if signatures is not None:
            self.grace_signatures = type("Function", (), {"__call__": lambda _: signatures.encode()})()

    def grace_best(self) -> int:
        return 0


@pytest.mark.parametrize(("signatures", "told"), [
    (None, "it does not say what it has"),
    ("sum_finite(const float*, const float*, float*, int64_t, int)\n", "it has no 'finite'"),
    ("finite(const float*, int64_t)\n", "it has finite(const float*, int64_t), called otherwise"),
    ("finite(const float*, int, int)\n", "it has finite(const float*, int, int), called otherwise"),
])  # fmt: skip
def test_a_library_older_than_its_sources_is_told(
    undecided: pytest.MonkeyPatch, signatures: str | None, told: str
) -> None:
    undecided.setattr(native, "_loaded", OldLibrary(signatures))
    expected = f"libold.so is older than its sources: {told}; run `make setup`, or install Grace again"
    with pytest.raises(ConfigurationError, match=re.escape(expected)):
        kernels.all_finite(torch.zeros(3))


@needs_native
def test_the_bindings_are_those_of_the_list() -> None:
    """Every function of the library's list has a binding that passes what it takes, and the other way round."""
    sources = Path(grace.__file__).parents[1]
    for file in sources.glob("grace/**/native.py"):
        importlib.import_module(".".join(file.relative_to(sources).with_suffix("").parts))
    library = native._library()
    assert not isinstance(library, str)
    assert native.interface(library).keys() == native._signatures.keys()
    for name in native._signatures:
        assert callable(getattr(native.Functions("base"), name))


def test_a_file_that_is_no_library_is_told(undecided: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / native._NAMES[0]).write_text("this is text")
    undecided.setattr(native.resources, "files", lambda package: tmp_path)
    undecided.setattr(native, "Path", lambda file: tmp_path / "kernels" / "native.py")
    problem = native._load()
    assert isinstance(problem, str)
    assert "cannot be loaded" in problem


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """A copy of the sources that the library was built from."""
    here = native._SOURCES
    if not here.is_dir():
        pytest.skip("an installed package has no sources")
    return Path(shutil.copytree(here, tmp_path / "native", ignore=shutil.ignore_patterns("tests")))


@needs_native
def test_a_library_is_of_the_sources_that_lie_here(sources: Path) -> None:
    library = native._library()
    assert not isinstance(library, str)
    assert not native.is_older(library, sources)
    assert not native.is_older(library, sources / "nowhere"), "an installed package has no sources: nobody can know"
    assert not native.is_older(library, sources / "kernels"), "another folder of this name"
    assert native.is_older(OldLibrary(None), sources), "a library from before it had a digest"  # type: ignore[arg-type]


def test_sources_that_may_not_be_read_are_as_none(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    assert native.digest(sources) is not None
    monkeypatch.setattr(Path, "is_file", refuse)
    assert native.digest(sources) is None


@needs_native
@pytest.mark.parametrize("change", ["a line", "a file more", "a file less", "another name"])
def test_a_library_of_other_sources_is_left_alone_and_told(
    undecided: pytest.MonkeyPatch, sources: Path, change: str
) -> None:
    """It may write bytes that nobody reads: plain torch computes, and one is told how to build it again."""
    if change == "a line":
        (sources / "kernels/affine.cc").write_text("// more\n" + (sources / "kernels/affine.cc").read_text())
    elif change == "a file more":
        (sources / "kernels/more.cc").write_text("")
    elif change == "a file less":
        (sources / "kernels/affine.cc").unlink()
    else:
        (sources / "kernels/affine.cc").rename(sources / "kernels/another.cc")
    undecided.setattr(native, "_SOURCES", sources)
    undecided.setattr(native, "_loaded", None)
    told = re.escape(f"was not built from the sources in {sources}; run `make setup`")
    with pytest.warns(KernelsWarning, match=told):
        assert kernels.all_finite(torch.zeros(3))
    assert backends.active()[0] == "reference"
    with pytest.raises(ConfigurationError, match=told), backends.using("native"):
        pass


# ---- threads and processes ------------------------------------------------------------------------------------------
@needs_native
def test_several_python_threads_at_once() -> None:
    alone, got = work(), {}
    threads = [threading.Thread(target=lambda i=i: got.setdefault(i, work())) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [got[i] == alone for i in range(4)] == [True] * 4


@needs_native
def test_a_call_releases_the_interpreter() -> None:
    """While one thread is inside native code another one goes on: it counts, and stops at the end of the call."""
    x, inside, counts = torch.zeros(LARGE), threading.Event(), []
    backends.active()
    finite = native.c.finite

    def call() -> None:
        inside.set()
        for _ in range(20):
            finite(x.data_ptr(), LARGE, 1)
        inside.clear()

    other = threading.Thread(target=call)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(3600)  # nobody is interrupted: who does not let go of the interpreter keeps it
    try:
        other.start()
        inside.wait()
        while inside.is_set() and len(counts) < 1000:
            counts.append(inside.is_set())
    finally:
        sys.setswitchinterval(interval)
        other.join()
    assert len(counts) == 1000, "the other thread held the interpreter to its end"


@needs_native
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:os.fork.*JAX:RuntimeWarning")  # where other tests of the process have imported it
def test_a_forked_child_computes_too() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        expected, x = work(), torch.zeros(LARGE)  # the pool has threads now, which the child has not
        bad = x.clone()
        bad[-1] = torch.inf
        child = os.fork()
        if child == 0:
            same = False
            try:  # nothing of torch's that would use threads: those do not survive a fork
                same = kernels.all_finite(x) and not kernels.all_finite(bad)
            finally:
                os._exit(0 if same else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert work() == expected, "the parent's threads are still there"
    finally:
        torch.set_num_threads(before)


class Finite(torch.utils.data.Dataset[torch.Tensor]):
    """A dataset that calls kernels in the worker processes."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, i: int) -> torch.Tensor:
        x = torch.full((LARGE,), float(i))
        rows = torch.full((1, 5000), float(i))
        native_threads = native.threads
        try:
            native.threads = lambda: 4  # a DataLoader's workers have one thread by default
            return torch.tensor([float(kernels.all_finite(x)), float(kernels.take_subset(rows, 10, STREAM).sum())])
        finally:
            native.threads = native_threads


@needs_native
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:os.fork.*JAX:RuntimeWarning")  # where other tests of the process have imported it
@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")  # more than this machine has cores
def test_workers_of_a_data_loader() -> None:
    work()
    loader = torch.utils.data.DataLoader(Finite(), batch_size=None, num_workers=2, multiprocessing_context="fork")
    assert [item.tolist() for item in loader] == [[1, 10.0 * i] for i in range(4)]


# ---- bad arguments never reach native code --------------------------------------------------------------------------
GOOD = torch.zeros(2, 12)
LEVELS = kernels.Levels(7, 4)
WIRE = torch.zeros(2, LEVELS.payload(12), dtype=torch.uint8)


def encode(rows: torch.Tensor = GOOD, memory: torch.Tensor | None = None, rest: torch.Tensor | None = None) -> None:
    kernels.quantize(rows, LEVELS, STREAM, memory, rest)


def decode(wire: torch.Tensor = WIRE, out: torch.Tensor = GOOD) -> None:
    kernels.dequantize_sum([wire], out, LEVELS, 1.0)


@needs_native
@pytest.mark.parametrize(("call", "error", "told"), [
    (lambda: encode(GOOD.double()), InputError, "rows must be contiguous float32, got torch.float64"),
    (lambda: encode(torch.zeros(12, 2).t()), InputError, "not contiguous"),
    (lambda: encode(memory=torch.zeros(2, 11), rest=torch.zeros(2, 12)), InputError, r"memory .*\[2, 11\]"),
    (lambda: encode(rest=torch.zeros(2, 12, dtype=torch.bfloat16)), InputError, "rest .*bfloat16"),
    (lambda: encode(memory=GOOD.to("meta"), rest=torch.zeros(2, 12)), InputError, "memory .*on meta; use .cpu()"),
    (lambda: encode(rest=torch.zeros(24)), InputError, r"rest must be contiguous float32 \[2, 12\]"),
    (lambda: decode(WIRE[:, :-1]), PayloadError, "truncated payload"),
    (lambda: decode(WIRE[:1]), PayloadError, "payload: "),
    (lambda: decode(torch.cat((WIRE, WIRE), dim=1)), PayloadError, "payload: "),
    (lambda: decode(WIRE.view(torch.int8)), InputError, "must be uint8"),
    (lambda: decode(torch.cat((WIRE, WIRE), dim=1)[:, ::2]), InputError, "side by side"),
    (lambda: decode(out=GOOD.double()), InputError, "out must be contiguous float32"),
    (lambda: decode(out=torch.zeros(12, 2).t()), InputError, "not contiguous"),
    (lambda: kernels.take_subset(GOOD.double(), 3, STREAM), InputError, "rows must be"),
    (lambda: kernels.take_subset(GOOD[:, :5], 3, STREAM), InputError, "not contiguous"),
    (lambda: kernels.take_subset(GOOD, 13, STREAM), ValueError, "does not exist"),
    (lambda: kernels.add_subset([torch.zeros(2, 13)], GOOD, 1.0, STREAM), PayloadError, r"\[2, 13\]"),
    (lambda: kernels.add_subset([torch.zeros(2, 3), torch.zeros(2, 4)], GOOD, 1.0, STREAM), PayloadError, r"\[2, 4\]"),
    (lambda: kernels.add_subset([torch.zeros(2, 3).double()], GOOD, 1.0, STREAM), PayloadError, "float64"),
    (lambda: kernels.add_subset([torch.zeros(2, 3)], GOOD[:1], 1.0, STREAM), PayloadError, "for 1 rows"),
    (lambda: kernels.sum_finite(GOOD, torch.zeros(2, 11), torch.zeros(2, 12)), InputError, "memory must be"),
    (lambda: kernels.sum_finite(GOOD, None, torch.zeros(24)), InputError, "out must be"),
])  # fmt: skip
def test_a_wrong_argument_is_a_python_error(call: Callable[[], None], error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=told):
        call()


def test_another_device_takes_the_torch_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Addresses of another device never reach native code; tensors on the meta device have none at all."""
    backends.active()
    monkeypatch.setattr(native, "c", None, raising=False)
    assert STREAM.words(0, "meta").device.type == "meta"  # of no words, so that nothing else is done, either


def test_the_tests_use_this_checkout() -> None:
    assert Path(native.__file__).parents[1] == Path(grace.__file__).parent
