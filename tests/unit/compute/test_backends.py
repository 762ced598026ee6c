"""Choice of the backend, and what happens where there is none."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import warnings

import pytest
import torch

from grace import kernels
from grace.compute import backends, native
from grace.errors import ConfigurationError

BUILT = len(backends.available()) > 1


@pytest.fixture
def undecided(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Nothing is chosen yet, and the environment says nothing."""
    monkeypatch.setattr(backends, "current", backends.UNDECIDED)
    monkeypatch.delenv(backends.VARIABLE, raising=False)
    return monkeypatch


@pytest.mark.parametrize("choice", [choice for choice in backends.CHOICES if choice != "triton"])
def test_every_choice_is_had_or_refused_with_a_reason(choice: str, undecided: pytest.MonkeyPatch) -> None:
    undecided.setenv(backends.VARIABLE, choice)
    if choice in backends.available() or (choice == "native" and BUILT):
        name, why = backends.active()
        assert name == (choice if choice != "native" else backends.available()[-1])
        assert why == ("the best that this processor has" if choice == "native" else f"asked for ({backends.VARIABLE})")
        assert (backends.backend().functions is None) == (choice == "reference")
    else:
        with pytest.raises(ConfigurationError, match=choice):
            backends.active()


def test_an_unknown_choice_names_the_legal_ones(undecided: pytest.MonkeyPatch) -> None:
    undecided.setenv(backends.VARIABLE, "sse9")
    with pytest.raises(
        ConfigurationError, match=r"GRACE_KERNELS='sse9' .* reference, native, native-base, native-avx2"
    ):
        kernels.all_finite(torch.zeros(3))


def test_an_empty_variable_asks_for_nothing(undecided: pytest.MonkeyPatch) -> None:
    undecided.setenv(backends.VARIABLE, "")
    assert backends.active()[0] == backends.available()[-1]


def test_what_the_processor_cannot_run_is_refused(undecided: pytest.MonkeyPatch) -> None:
    class OldMachine:
        def grace_best(self) -> int:
            return 0

    undecided.setattr(native, "_loaded", OldMachine())
    assert backends.available() == ["reference", "native-base"]
    with pytest.raises(ConfigurationError, match="native-avx2, but this processor has no more than base"), \
         backends.using("native-avx2"):  # fmt: skip
        pass
    with backends.using("native"):
        assert backends.active()[0] == "native-base"


def test_using_ends_with_its_block() -> None:
    before = backends.active()
    with backends.using("reference"):
        assert backends.active()[0] == "reference"
    assert backends.active() == before
    with pytest.raises(ConfigurationError, match="legal"), backends.using("fastest"):
        pass
    assert backends.active() == before


# ---- without a library ----------------------------------------------------------------------------------------------
SAID_ONCE = """
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import torch
    from grace.compute import backends, native
    from grace.kernels import Levels, all_finite, quantize
    from grace.random import Stream
    native._loaded = "nothing was built"
    assert all_finite(torch.zeros(5)) and all_finite(torch.zeros(5))
    quantize(torch.ones(2, 9), Levels(7, 4), Stream(1, "m", "t", 0, 0))
said = [str(one.message) for one in caught if "Grace" in str(one.message)]
assert [text.partition(". Read on")[0] for text in said] == ["Grace uses its slower torch kernels: nothing was built"]
assert [one.filename for one in caught if "Grace" in str(one.message)] == ["<string>"], "the line that is not Grace's"
assert backends.active() == ("reference", "nothing was built")
"""


def test_the_fallback_speaks_once() -> None:
    environment = {name: value for name, value in os.environ.items() if name != backends.VARIABLE}
    done = subprocess.run([sys.executable, "-c", SAID_ONCE], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_choice_without_a_library_is_an_error(undecided: pytest.MonkeyPatch) -> None:
    undecided.setattr(native, "_loaded", "nothing was built")
    with pytest.raises(ConfigurationError, match="GRACE_KERNELS=native-avx2, but nothing was built"), \
         backends.using("native-avx2"):  # fmt: skip
        pass
    with backends.using("reference"), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert kernels.all_finite(torch.zeros(3)), "the reference was asked for: nothing to warn of"


def test_triton_in_its_interpreter_serves_the_cpu(undecided: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="needs the package triton")
    undecided.setenv(backends.VARIABLE, "triton")
    undecided.setenv(backends.INTERPRETER, "1")
    assert backends.active() == ("triton", "asked for (GRACE_KERNELS), in Triton's interpreter (TRITON_INTERPRET)")
    assert backends.backend().modules == {"cpu": "triton"}


def test_triton_with_a_gpu_leaves_the_cpu_as_it_is(undecided: pytest.MonkeyPatch) -> None:
    undecided.setattr(importlib.util, "find_spec", lambda name: name)
    undecided.setattr(torch.cuda, "is_available", lambda: True)
    undecided.setattr(backends.devices, "find_triton_problem", lambda: None)
    undecided.delenv(backends.INTERPRETER, raising=False)
    with backends.using("triton"):
        assert backends.active()[0] == backends.available()[-1]
        assert backends.backend().modules["cuda"] == "triton"


@pytest.mark.parametrize(
    ("installed", "what"), [(False, "is not installed; install"), (True, "set TRITON_INTERPRET=1")]
)
def test_triton_that_cannot_run_says_what_to_do(installed: bool, what: str, undecided: pytest.MonkeyPatch) -> None:
    undecided.setattr(importlib.util, "find_spec", lambda name: name if installed else None)
    undecided.setattr(torch.cuda, "is_available", lambda: False)
    undecided.delenv(backends.INTERPRETER, raising=False)
    undecided.setenv(backends.VARIABLE, "triton")
    with pytest.raises(ConfigurationError, match=what):
        backends.active()
