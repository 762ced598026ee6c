"""Presets and settings as a user writes them."""

from __future__ import annotations

from typing import Any

import pytest

from grace.adapters.outer.presets import PRESETS, OuterSettings, read_outer
from grace.errors import ConfigurationError, UnknownNameError
from grace.registry import method as make_method


@pytest.mark.parametrize("name", PRESETS)
def test_each_can_be_used(name: str) -> None:
    preset = PRESETS[name]
    settings, method = read_outer(name, **dict.fromkeys(preset.asks, 8))
    assert isinstance(method, str)
    make_method(method)
    assert settings.every == preset.knobs.get("every", 8)


@pytest.mark.parametrize(
    ("method", "given", "expected", "compressor"),
    [
        ("diloco", {}, OuterSettings(500, lr=0.7, momentum=0.9), "none"),
        ("diloco:every=32", {"lr": 0.5}, OuterSettings(32, lr=0.5, momentum=0.9), "none"),
        ("sparseloco:every=32,lr=0.4", {}, OuterSettings(32, lr=0.4), PRESETS["sparseloco"].method),
        ("diloco:method=(topk:ratio=0.01,memory=none)", {"every": 4}, OuterSettings(4, lr=0.7, momentum=0.9),
         "topk:ratio=0.01,memory=none"),
        ("topk:ratio=0.01", {"every": 4}, OuterSettings(4), "topk:ratio=0.01"),
        ("topk", {"preset": "diloco:every=6"}, OuterSettings(6, lr=0.7, momentum=0.9), "topk"),
        (None, {"every": 3, "momentum": 0.5, "nesterov": False}, OuterSettings(3, momentum=0.5, nesterov=False), "none"),
        ("streaming_diloco:every=32", {}, OuterSettings(32, 4, 1, 0.5, lr=0.7, momentum=0.9),
         PRESETS["streaming_diloco"].method),
        ("post_local_sgd:every=4,warmup_steps=9", {}, OuterSettings(4, warmup_steps=9), "none"),
    ],
)  # fmt: skip
def test_words_and_what_they_mean(method: Any, given: dict[str, Any], expected: OuterSettings, compressor: str) -> None:
    assert read_outer(method, **given) == (expected, compressor)


@pytest.mark.parametrize(
    ("method", "given", "error", "words"),
    [
        ("dilco:every=3", {}, UnknownNameError, "did you mean 'diloco'"),
        ("topk", {"preset": "dilco"}, UnknownNameError, "did you mean 'diloco'"),
        ("diloco:evry=3", {}, UnknownNameError, "knob of diloco 'evry'; did you mean 'every'"),
        ("diloco", {"preset": "diloco"}, ConfigurationError, "both presets; give one"),
        ("topk", {"preset": "diloco:method=qsgd"}, ConfigurationError, "another; give one"),
        ("local_sgd", {}, ConfigurationError, "has no every of its own; give it: local_sgd:every=8"),
        ("post_local_sgd:every=4", {}, ConfigurationError, "has no warmup_steps of its own"),
        ("topk", {}, ConfigurationError, "every=8"),
        ("streaming_diloco:every=30", {}, ConfigurationError, "every=30 is no multiple of fragments=4.*1, 2, 3, 5, 6"),
        ("diloco:every=8,fragments=2,delay=4", {}, ConfigurationError, r"delay=4 .* delay < every / fragments = 4"),
        ("diloco:alpha=1.5", {}, ConfigurationError, "alpha=1.5 is out of range; legal: 0 <= alpha <= 1"),
        ("diloco:momentum=1", {}, ConfigurationError, "momentum=1 is out of range; legal: 0 <= momentum < 1"),
        ("diloco:lr=0", {}, ConfigurationError, "lr=0 is out of range; legal: 0 < lr"),
        ("diloco:every=0", {}, ConfigurationError, "every=0 is out of range; legal: a whole number >= 1"),
        ("diloco:delay=-1", {}, ConfigurationError, "delay=-1 is out of range"),
        ("diloco:nesterov=1", {}, ConfigurationError, "nesterov=1 is out of range; legal: True, False"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told(method: Any, given: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        read_outer(method, **given)
