"""``grace explain diloco``: an algorithm's settings, the line that uses it, and the page about it."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any

from grace.adapters.outer.presets import PRESETS, OuterSettings, read_outer
from grace.gossip.settings import GossipSettings, read_gossip
from grace.optim.text import GIVEN, OPTIMIZERS, parse
from grace.registry import spell
from grace.registry.algorithms import ALGORITHMS, name_of_algorithm

_ASKED = "must be given"


def describe_algorithms() -> list[dict[str, str]]:
    """All algorithms: name, kind, the line that uses it, and a summary."""
    return [
        {"name": name, "kind": algorithm.kind, "use": algorithm.use, "summary": algorithm.summary}
        for name, algorithm in ALGORITHMS.items()
    ]


def describe_algorithm(text: str) -> dict[str, Any] | None:
    """Everything about the algorithm that this text names, with or without settings; None: it names none.

    Raises:
        UnknownNameError, ConfigurationError: an unknown setting, or one out of range.
    """
    name = name_of_algorithm(text)
    if name is None:
        return None
    algorithm = ALGORITHMS[name]
    given = text.partition(":")[2].strip()
    settings = _SETTINGS[algorithm.kind](name, f"{name}:{given}" if given else "")
    plain = {key: "see the page" if value is None else str(value) for key, value in settings.items()}
    return {"name": name, **dataclasses.asdict(algorithm), "settings": plain}


def _describe_outer(name: str, text: str) -> Mapping[str, Any]:
    if text:
        chosen, method = read_outer(text)
        return {**dataclasses.asdict(chosen), "method": method}
    preset = PRESETS[name]
    return {
        **_defaults(OuterSettings), **dict.fromkeys(preset.asks, _ASKED), **preset.knobs, "method": preset.method,
    }  # fmt: skip


def _describe_optimizer(name: str, text: str) -> Mapping[str, Any]:
    given = parse(text).keywords if text else {}
    signature = inspect.signature(OPTIMIZERS[name]).parameters
    defaults = {
        key: _ASKED if parameter.default is parameter.empty else parameter.default
        for key, parameter in signature.items()
        if key not in GIVEN
    }
    return {**defaults, **given}


def _describe_gossip(name: str, text: str) -> Mapping[str, Any]:
    if text:
        chosen = read_gossip(text)
        settings = {field.name: getattr(chosen, field.name) for field in dataclasses.fields(chosen)}
        method = settings["compressor"] and spell(settings["compressor"])
    else:
        settings, method = _defaults(GossipSettings), _ASKED
    del settings["algorithm"], settings["compressor"]  # the name, and what a text calls its method
    return settings if name == "dpsgd" else {"method": method, **settings}


def _defaults(of: type) -> dict[str, Any]:
    missing = dataclasses.MISSING
    return {f.name: _ASKED if f.default is missing else f.default for f in dataclasses.fields(of)}


_SETTINGS = {"outer loop": _describe_outer, "optimizer": _describe_optimizer, "gossip": _describe_gossip}
