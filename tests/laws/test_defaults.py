"""Torch's default dtype and default device change no bit, with and without plans."""

from __future__ import annotations

import pytest

from tests.laws.cases import CASES
from tests.laws.under_defaults import Bits, bits_under
from tests.unit.kernels.native_checks import needs_native

FIRST = list({spec.partition(":")[0]: spec for spec in reversed(CASES)}.values())  # one of each method
# Those whose memory once broke or whose means once changed.
NAMED = {
    "acpsgd", "adaq", "dgc", "gradzip", "powersgd", "qsgd", "qsparse", "randomk", "sketchedsgd", "thc", "threshold", "topk",
}  # fmt: skip
FEW = [spec for spec in FIRST if spec.partition(":")[0] in NAMED]
DTYPES = ("bfloat16", "float16", "float64")
DEVICES = ("device:meta", "device:cpu")
NIGHT = pytest.mark.night("a tensor of the default dtype")


_usual: Bits = {}  # as far as they were asked for


def usual_bits(specs: list[str]) -> Bits:
    """The bits of these cases under torch's own defaults."""
    missing = [spec for spec in specs if (spec, True) not in _usual]
    bits, wrong = bits_under("float32", missing) if missing else ({}, "")
    assert not wrong, wrong
    _usual.update(bits)
    return _usual


def find_differences(default: str, specs: list[str], defect: str | None = None) -> str:
    """Differences from the usual bits, or an error; "" if there are none."""
    usual, (bits, wrong) = usual_bits(specs), bits_under(default, specs, defect)
    if not wrong and len(bits) < 2 * len(specs):
        wrong = f"{len(bits)} answers of {2 * len(specs)}"
    differ = [
        f"{spec}, plans {int(plans)}: other bits" for (spec, plans), bits in bits.items() if bits != usual[spec, plans]
    ]
    return "\n".join([*differ, *([wrong] if wrong else [])])


def test_every_case_under_bfloat16() -> None:
    assert find_differences("bfloat16", list(CASES)) == ""


@pytest.mark.parametrize("default", [*DTYPES[1:], *DEVICES])
def test_some_cases_under_other_defaults(default: str) -> None:
    assert find_differences(default, FEW) == ""


@pytest.mark.parametrize("default", [pytest.param(default, marks=NIGHT) for default in (*DTYPES[1:], *DEVICES)])
def test_every_case_under_other_defaults(default: str) -> None:
    assert find_differences(default, list(CASES)) == ""


@needs_native
@pytest.mark.parametrize(
    ("defect", "default", "spec", "why"),
    [
        pytest.param("rounded", "bfloat16", "powersgd", "other bits", id="a tensor of the default dtype"),
        ("placed", "device:meta", "qsgd", "qsgd"),
        ("crash", "float32", "randomk", "the process died with -"),
    ],
)
def test_mutants_are_caught(defect: str, default: str, spec: str, why: str) -> None:
    (case,) = (first for first in FIRST if first.partition(":")[0] == spec)
    told = find_differences(default, [case], defect)
    assert why in told
    assert case in told
