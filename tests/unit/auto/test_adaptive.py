"""Bits of each layer under one budget, in training between threads."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

import grace
from grace.adapters.choosing import Choosing
from grace.auto import adaptive as adaptive_module
from grace.auto.settings import wanted
from grace.errors import ConfigurationError
from grace.registry import spell
from grace.registry.adaptive import Adaptive
from grace.run.checkpoint import Checkpoint
from grace.run.options import Options
from grace.run.session import Session
from grace.run.steps import Steps
from grace.transports.alone import Alone
from tests.unit.networks import in_threads

LIKE = {"large": torch.empty(128, 64), "bias": torch.empty(64), "small": torch.empty(64, 32)}


class Handle(Choosing):
    """A rank's training: the small layer has much larger gradients."""

    def __init__(self, transport: Any, adaptive: Adaptive, **options: Any):
        super().__init__(Steps(Session(LIKE, "none", transport, Options(**options))))
        self._begin_auto(adaptive)
        self.draw = torch.Generator().manual_seed(self.rank)

    def detach(self) -> None: ...

    def train(self, steps: int, spoiled: bool = False) -> None:
        for _ in range(steps):
            gradients = {name: torch.randn(x.shape, generator=self.draw) for name, x in LIKE.items()}
            gradients["small"] *= 100
            if spoiled:
                gradients["small"][0, 0] = torch.nan
            self._exchange_bucket({"small": gradients["small"]}, False)
            self._exchange_bucket({"bias": gradients["bias"], "large": gradients["large"]}, True)

    def methods(self) -> list[str]:
        return [spell(self._session.policy.method_for(name, x, 0)) for name, x in LIKE.items()]


@pytest.mark.parametrize("how", ["program", "filling"])
def test_who_has_larger_gradients_gets_more_bits_and_all_ranks_alike(how: Any) -> None:
    def job(member: Any, rank: int) -> Handle:
        handle = Handle(member, grace.Policy.adaptive("qsgd", budget=4.5, every=5, how=how))
        assert handle.methods() == ["qsgd:bits=4", "none", "qsgd:bits=4"]
        handle.train(3)
        return handle

    first, second = in_threads(2, job)
    assert first.methods() == second.methods()
    large, bias, small = first.methods()
    assert bias == "none"
    assert int(small.partition("=")[2]) > int(large.partition("=")[2])
    explained = first.explain()
    assert explained.bits <= 4.5
    assert "qsgd:bits=" in str(explained)
    assert explained.as_dict()["step"] == 2
    assert first._log_values() == {"adaptive/bits": explained.bits}


def test_memories_are_handed_over_and_states_are_gone_on_from() -> None:
    handle = Handle(Alone(), grace.Policy.adaptive("topk", budget=2.0, every=3))
    handle.train(8)
    saved = handle.state_dict()
    again = Handle(Alone(), grace.Policy.adaptive("topk", budget=2.0, every=3))
    again.load_state_dict(saved)
    assert again.methods() == handle.methods()
    debts = [
        sum(float(x.double().sum()) for x in rank._session.worker.state.debts().values()) for rank in (handle, again)
    ]
    assert debts[0] == pytest.approx(debts[1])
    handle.switch("none")
    handle.train(1)
    assert handle.methods() == ["none"] * 3


def test_a_checkpoint_keeps_the_choices_for_other_workers_and_for_auto() -> None:
    def save(member: Any, rank: int) -> tuple[dict[str, Any], list[str]]:
        handle = Handle(member, grace.Policy.adaptive("qsgd", budget=4.5, every=3))
        handle.train(4)
        return Checkpoint(handle._session, chooser=handle._chooser).state_dict(), handle.methods()

    saved, methods = in_threads(2, save)[0]
    assert methods[0] != methods[2]

    def load(member: Any, rank: int) -> list[str]:
        handle = Handle(member, grace.Policy.adaptive("qsgd", budget=4.5, every=3))
        assert handle.methods() != methods
        Checkpoint(handle._session, chooser=handle._chooser).load_state_dict(saved)
        return handle.methods()

    assert in_threads(3, load) == [methods] * 3


def test_a_nan_says_nothing() -> None:
    handle = Handle(Alone(), grace.Policy.adaptive("qsgd", budget=4.5, every=2))
    before = handle.methods()
    handle.train(4, spoiled=True)
    assert handle.methods() == before
    assert "nothing is measured yet" in str(handle.explain())


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: grace.Policy.adaptive("efsignsgd"), "method='efsignsgd'; legal: 'qsgd', 'topk' or 'powersgd'"),
        (lambda: grace.Policy.adaptive(budget=-1.0), "budget"),
        (lambda: grace.Policy.adaptive(every=0), "every"),
        (lambda: Handle(Alone(), Adaptive(budget=0.5)), "budget=0.5 bits a number is less than qsgd:bits=2 takes"),
        (lambda: Handle(Alone(), Adaptive(), granularity="model"), "granularity='model'; legal: 'parameter'"),
    ],
)
def test_what_is_refused(made: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        made()


def test_it_is_asked_for_in_place_of_a_method() -> None:
    first = grace.Policy.adaptive("powersgd", budget=3.0)
    assert wanted(first) is first
    assert first.choices[0] == "powersgd:rank=1"


def test_layers_that_lose_more_than_they_keep_are_named_once_where_nothing_remembers() -> None:
    handle = Handle(Alone(), grace.Policy.adaptive("qsgd", budget=2.5, every=2))
    with pytest.warns(grace.GraceWarning, match=r"adaptive: 1 of 2 layers lose more than they keep, 'large'") as told:
        handle.train(6)
    assert len(told) == 1
    assert [layer.lost > 0.5 for layer in handle.explain().layers] == [True, False]
    remembering = Handle(Alone(), grace.Policy.adaptive("topk", budget=0.5, every=2))
    remembering.train(4)  # its memory sends later what is lost: no warning, which would be an error here
    assert max(layer.lost for layer in remembering.explain().layers) > 0.5


def test_what_was_chosen_can_be_saved(tmp_path: Any) -> None:
    handle = Handle(Alone(), grace.Policy.adaptive("qsgd", budget=4.5, every=2))
    handle.train(3)
    handle.explain().save(tmp_path / "chosen.json")
    explained = json.loads((tmp_path / "chosen.json").read_text())
    assert explained == json.loads(json.dumps(handle.explain().as_dict()))
    assert explained["layers"][0]["name"] == "large"


def test_ranks_tell_on_the_device_of_what_they_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL takes no tensors of the processor's."""
    devices = []

    class Noted(adaptive_module.Probe):
        def __init__(self, *given: Any, device: torch.device, **more: Any):
            devices.append(device)
            super().__init__(*given, device=device, **more)

    monkeypatch.setattr(adaptive_module, "Probe", Noted)

    def job(member: Any, rank: int) -> torch.device:
        handle = Handle(member, grace.Policy.adaptive("qsgd", budget=4.5, every=5))
        handle.train(3)
        return handle._session.device

    assert devices == in_threads(2, job)
