"""Options: checked once, wherever a user gave them; and every door hands them on."""

from __future__ import annotations

import ast
import inspect
from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from typing import Any

import pytest
import torch

import grace
from grace.adapters.trainers import AttachingCallback
from grace.errors import ConfigurationError, FingerprintMismatch
from grace.run.options import DEFAULTS, Options
from grace.run.plan import plan
from grace.run.session import Session
from grace.transports.alone import Alone
from tests.unit.networks import in_threads

SOURCES = Path(grace.__file__).parent
DOORS: list[Any] = [
    grace.attach, grace.local, grace.outer, grace.DistributedOptimizer, grace.Simulator, AttachingCallback, plan
]  # fmt: skip


@pytest.mark.parametrize(
    ("option", "value", "legal"),
    [
        ("seed", 1.5, "a whole number"),
        ("seed", True, "a whole number"),
        ("nonfinite", "ignore", "'propagate', 'skip', 'error'"),
        ("steps_per_epoch", 0, "a whole number >= 1, or none"),
        ("check", "yes", "True, False"),
        ("granularity", "layer", "'parameter', 'bucket', 'model'"),
        ("bucket_bytes", 2.5, "a whole number"),
        ("local_world_size", 0, "a whole number >= 1, or none"),
    ],
)
def test_what_is_not_legal_is_told(option: str, value: Any, legal: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        Options(**{option: value})
    assert str(raised.value) == f"grace: {option}={value!r} is out of range; legal: {legal}"


def test_they_do_not_change_underway() -> None:
    with pytest.raises(FrozenInstanceError):
        DEFAULTS.seed = 3  # type: ignore[misc]


@pytest.mark.parametrize("door", DOORS)
def test_a_door_has_these_defaults_and_no_others(door: Any) -> None:
    given = inspect.signature(door).parameters
    shared = {field.name for field in fields(Options)} & given.keys()
    assert shared
    assert {name: given[name].default for name in shared} == {name: getattr(Options, name) for name in shared}


def test_words_are_read_where_the_options_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a transport is there, and when a method is switched to later."""
    monkeypatch.setenv("GRACE_LOCAL_WORLD_SIZE", "3")
    spec = "topk:memory=none,machine=local"
    callback = AttachingCallback(spec, local_world_size=5)
    assert callback._method.method.machine == 5
    assert AttachingCallback(spec)._method.method.machine == 3
    session = Session({"w": torch.empty(64, 64)}, spec, Alone(), Options(local_world_size=1))
    assert session.policy.method.machine == 1  # type: ignore[union-attr]
    session.switch(f"{spec},ratio=0.5")
    assert session.policy.method.machine == 1  # type: ignore[union-attr]
    session.close()


def test_ranks_that_say_it_differently_are_told() -> None:
    def begin(transport: Any, rank: int) -> Any:
        return Session({"w": torch.empty(4)}, "none", transport, Options(local_world_size=1 + rank))

    for error in in_threads(2, begin):
        assert isinstance(error, FingerprintMismatch)
        assert "local_world_size: 1 on ranks [0], 2 on ranks [1]" in str(error)


@pytest.mark.parametrize("option", [{"seed": "x"}, {"nonfinite": "ignore"}, {"steps_per_epoch": 0}])
def test_doors_check_them_before_anything_is_sent(option: dict[str, Any]) -> None:
    (name,) = option
    with pytest.raises(ConfigurationError, match=f"{name}="):
        grace.Simulator("topk", 2, **option)
    with pytest.raises(ConfigurationError, match=f"{name}="):
        AttachingCallback("topk", **option)


def test_only_doors_take_the_options_one_by_one() -> None:
    """Behind them there is one object: an option more changes no signature inside."""
    names, doors = {field.name for field in fields(Options)}, set()
    for path in SOURCES.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                arguments = {argument.arg for argument in (*node.args.args, *node.args.kwonlyargs)}
                if len(arguments & names) >= 4:
                    doors.add((str(path.relative_to(SOURCES)), node.name))
    assert doors == {
        ("adapters/attach.py", "attach"), ("adapters/outer/door.py", "local"), ("adapters/outer/door.py", "outer"),
        ("gossip/door.py", "gossip"),
        ("adapters/torch_optimizer.py", "DistributedOptimizer"), ("adapters/trainers.py", "__init__"),
        ("jax/host.py", "compressed_mean_on_host"), ("keras/attach.py", "attach"), ("tensorflow/gradients.py", "__init__"),
    }  # fmt: skip
