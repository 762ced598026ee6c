"""Settings of ``auto``."""

from __future__ import annotations

import pytest

from grace.auto.settings import Auto, wanted
from grace.errors import ConfigurationError
from grace.registry.policy import Policy
from grace_bench.runs.config import RunConfig


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("auto", Auto()),
        ("auto:quality=exact", Auto(quality="exact")),
        ("auto:quality=0.05", Auto(quality=0.05)),
        ("auto:goal=time", Auto(goal="time")),
        ("auto:goal=steps", Auto()),
        ("auto:error=0.1", Auto(error=0.1)),
        ("auto:error=none", Auto()),
        (
            "auto:methods=(topk;qsgd:bits=4,communicator=scatterreduce)",
            Auto(methods=("topk", "qsgd:bits=4,communicator=scatterreduce")),
        ),
        ("auto:keep=(embed*=bf16;*.norm*=none)", Auto(keep=(("embed*", "bf16"), ("*.norm*", "none")))),
        ("auto:share=0,margin=0.1,seed=3", Auto(share=0.0, margin=0.1, seed=3)),
    ],
)
def test_strings(text: str, made: Auto) -> None:
    assert wanted(text) == made
    assert Auto.read(str(made)) == made
    assert wanted(made) is made


def test_other_methods_are_not_meant() -> None:
    assert wanted("topk") is None
    assert wanted("automatic") is None
    assert wanted(3) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "auto:quality=best",
            "quality='best' is out of range; legal: 'exact', 'safe', or the share of .*, 0 < quality <= 1",
        ),
        ("auto:quality=fast", r"is a number now: write quality=0.25 for methods .* or goal=time"),
        ("auto:quality=0", "quality=0.0 is out of range"),
        ("auto:quality=5", "quality=5.0 is out of range"),
        ("auto:quality=nan", "quality='nan' is out of range"),
        ("auto:goal=epochs", "goal='epochs' is out of range; legal: 'steps', 'time'"),
        ("auto:goal=time,quality=0.05", "goal=time weighs .* and quality= bounds .*; give one"),
        ("auto:goal=time,error=0.1", "and error= bounds"),
        ("auto:quality=0.05,error=0.1", "error= takes the place of quality="),
        ("auto:error=-1", "error"),
        ("auto:share=0.9", "share"),
        ("auto:margin=x", "margin=x; legal: a number"),
        ("auto:qualty=safe", "no knob 'qualty'; nearest: 'quality'"),
        ("auto:share=0.1,share=0.2", "given twice"),
        ("auto:quality", "expected knob=value"),
        ("auto:methods=topk", r"legal: several in parentheses, methods=\(a;b\)"),
        ("auto:methods=(topc)", "unknown method 'topc'"),
        ("auto:keep=(embed*)", "keep has|a method is a name|unknown"),
    ],
)
def test_what_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        wanted(text)


def test_lists_are_lists() -> None:
    with pytest.raises(ConfigurationError, match="methods='topk'; legal: a list"):
        Auto(methods="topk")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="legal: pairs of a pattern and a method"):
        Auto(keep=(("embed*",),))  # type: ignore[arg-type]


@pytest.mark.parametrize("given", ["auto", "auto:goal=time", Auto()])
def test_where_a_method_is_wanted_it_is_refused_with_what_to_write(given: object) -> None:
    with pytest.raises(
        ConfigurationError,
        match=r"is no method: .* grace.attach\(model, 'auto'\) .*grace.keras.attach.*Here, name one; grace advise",
    ):
        Policy.of(given)  # type: ignore[arg-type]


def test_the_bench_runs_it_on_torch_only() -> None:
    assert RunConfig("digits", "auto:goal=time").kind == "method"
    with pytest.raises(ConfigurationError, match="legal: --toolkit torch and granularity 'parameter', not jax"):
        RunConfig("digits", "auto", toolkit="jax")
    with pytest.raises(ConfigurationError, match="not torch and 'model'"):
        RunConfig("digits", "auto", granularity="model")
    with pytest.raises(ConfigurationError, match="no knob"):
        RunConfig("digits", "auto:knob=3")
