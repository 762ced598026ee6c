"""Every method over every communicator, with and without a memory: a bucket of 8 tensors takes as many launches of Triton
kernels as one of 3, and asks the host as often; or it is among those that go tensor by tensor, which this file and
docs/data/launches.md name.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

pytest.importorskip("triton", reason="needs the package triton")

import grace
from grace.errors import CompositionError
from grace.registry import COMMUNICATORS, recipe
from tests.laws.cases import AROUND, CASES, KNOBS, spell_case
from tests.laws.test_counted import count_work
from tests.laws.test_launches import PAGE
from tests.unit.kernels.triton_checks import interpreter, night

__all__ = ["interpreter"]

SPREAD = True  # over the test runner's processes
TWO_HOPS = ("scatterreduce", "parameterserver")
# How long their wires are depends on the data, so that each hop would have to ask for sizes of its own.
SIZED = ("3lc", "adaq", "atomo", "dgc", "gspar", "inceptionn", "sketchml", "strom", "threshold")
# And others: codes of gaps, which are as long as the data want, a compressed payload, a plan for each value of a knob, and
# singular value decompositions.
OTHERS = (
    "topk:ratio=0.2,index=rice,communicator=scatterreduce", "topk:ratio=0.2,index=rice,communicator=parameterserver",
    "qsparse:ratio=0.2,index=delta,communicator=scatterreduce", "qsparse:ratio=0.2,index=delta,communicator=parameterserver",
    "topk:lossless=zlib", "topk:ratio=linear(0.2->0.1, 100 steps)", "atomosvd:rank=2,min_rate=0.1",
)  # fmt: skip
# Beside the cases: pieces around a method, and wires of top-k that are as long as the data want.
MORE = (
    "topk:start=1",
    "topk:start=2",
    "topk:index=rice,communicator=broadcast",
    "qsparse:index=rice,communicator=broadcast",
)
# Whose kernels have to run, where they go tensor by tensor: nothing can be read of what has not been written.
RUN = ("adaq", "inceptionn", "sketchml", "topk:lossless", "topk:ratio=0.2,index", "qsparse")
TELLS = ("gspar:ratio=0.2,index=rice",)  # and where the host is told how many numbers are sent
FAR = {spec for spec in CASES if not re.match(r"[a-z0-9_]+(:|$)", spec) or spec.startswith("parameterserver")}


def combine() -> list[str]:
    """The cases, and the first one of each method over every communicator."""
    specs = dict.fromkeys(spec for spec in CASES if spec not in FAR)
    for name in grace.methods():
        for communicator in COMMUNICATORS.names() if recipe(name).communicator else ():
            for memory in ("", "memory=none"):
                spec = spell_case(name, KNOBS[name][0], f"communicator={communicator}", memory)
                try:
                    grace.method(spec)
                except CompositionError:  # pieces that do not fit
                    continue
                specs[spec] = None
    return [*dict.fromkeys((*specs, *MORE, *OTHERS))]


SPECS = combine()


def goes_singly(spec: str) -> bool:
    """True if it is named among those that go tensor by tensor."""
    hops = any(f"communicator={communicator}" in spec for communicator in TWO_HOPS)
    return spec in OTHERS or (hops and spec.partition(":")[0] in SIZED)


def is_quick(spec: str) -> bool:
    """True if `make test` counts its work: around what stands for all kinds of wires."""
    return not spec.startswith(RUN) and (spec in MORE or (spec.startswith(AROUND) and "communicator" in spec))


@pytest.mark.parametrize("spec", [spec if is_quick(spec) else pytest.param(spec, marks=night) for spec in SPECS])
def test_work_does_not_grow_with_the_bucket_or_is_named(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lasts = goes_singly(spec) and spec.startswith(RUN)  # and takes long
    shape, runs = (3,) if lasts else (3, 5), lasts or spec in TELLS
    few, many = (count_work(spec, (shape,) * T, monkeypatch, runs=runs) for T in (3, 8))
    assert (few != many) == goes_singly(spec), (few, many)


@pytest.mark.parametrize(
    ("where", "mutant", "spec"),
    [
        ("grace.communicators.one_hop.prepare", lambda *_, **__: None, "none:communicator=broadcast"),
        (f"{__name__}.OTHERS", ("topk:start=1",), "topk:start=1"),
    ],
)
def test_a_composition_at_the_wrong_place_is_told(where: str, mutant: Any, spec: str) -> None:
    with pytest.MonkeyPatch.context() as changed, pytest.MonkeyPatch.context() as counting:
        changed.setattr(where, mutant)
        with pytest.raises(AssertionError):
            test_work_does_not_grow_with_the_bucket_or_is_named(spec, counting)


def test_the_page_names_them() -> None:
    rows = PAGE.read_text().split("| composition | why |\n")[1].split("\n\n")[0]
    named = set(re.findall(r"`(?:communicator=)?([a-z0-9]+)[`:]", rows))
    assert {*SIZED, *TWO_HOPS, *(spec.partition(":")[0] for spec in OTHERS if not spec.startswith("atomosvd"))} == named
