"""``grace simulate``: who is there in a step, what each learns, and what comes out."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy
from typer.testing import CliRunner

from grace.cli.app import app
from grace.errors import ConfigurationError
from grace_bench.report.render import check_kind
from grace_bench.simulation.problem import DigitsProblem
from grace_bench.simulation.run import Setting, plan, simulate
from grace_bench.simulation.show import KINDS, sheet

SMALL: dict[str, Any] = {"workers": 12, "part": 5, "steps": 8, "batch": 4, "hidden": 16, "evaluations": 4}


def quiet(name: str, done: int, of: int) -> None:
    assert 1 <= done <= of, name


def test_steps_are_those_of_a_seed() -> None:
    setting = Setting(**SMALL, churn=0.2, late=0.4)
    steps = list(plan(setting))
    assert steps == list(plan(setting))
    assert steps != list(plan(Setting(**SMALL, churn=0.2, late=0.4, seed=1)))
    assert sum(len(step.gone) for step in steps) > 4
    for step in steps:
        assert (len(step.present), len(step.late)) == (3, 2)
        assert len({*step.present, *step.late}) == 5
        assert step.present == sorted(step.present)


def test_each_worker_has_its_mixture_of_classes() -> None:
    few, alike = DigitsProblem(0.05, 4, 8, 0), DigitsProblem(math.inf, 4, 8, 0)
    mixtures = np.stack([few.mixture(worker) for worker in range(50)])
    assert np.allclose(mixtures.sum(1), 1)
    assert float(np.median(mixtures.max(1))) > 0.7
    assert np.allclose(alike.mixture(3), 0.1)


def test_gradients_of_workers_are_those_of_one_after_the_other() -> None:
    problem = DigitsProblem(1.0, 6, 8, 0)
    model = problem.model()
    together = problem.gradients(model, [4, 9], 2)
    for place, worker in enumerate((4, 9)):
        alone = problem.gradients(model, [worker], 2)
        for name in model:
            torch.testing.assert_close(together[name][place], alone[name][0])
    test_x, test_y = problem._test
    hidden = (test_x @ model["hidden.weight"].T + model["hidden.bias"]).relu()
    loss = cross_entropy(hidden @ model["head.weight"].T + model["head.bias"], test_y)
    assert problem.evaluate(model)[0] == pytest.approx(float(loss), abs=1e-5)


@pytest.mark.parametrize("hands_over", [True, False])
def test_workers_come_and_go(hands_over: bool) -> None:
    setting = Setting(**SMALL, churn=0.2, late=0.2, hands_over=hands_over)
    document = simulate(setting, ["none", "topk:ratio=0.1"], quiet)
    dense, sparse = document["methods"]
    assert dense["left"] == sparse["left"] > 4
    assert (sparse["lost"] == 0) == hands_over
    assert sparse["owed"] > dense["owed"] > 0, "a late gradient is owed, whatever the method"
    assert dense["curve"]["step"] == [0, 2, 4, 6, 8]
    assert dense["loss"] < dense["curve"]["loss"][0]
    assert dense["bytes_per_worker_step"] == pytest.approx(2 * 3 / 4 * 4 * (64 * 16 + 16 + 160 + 10), rel=0.01)


def test_what_is_computed_is_applied_owed_or_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a model that stands still, every method has computed the same."""
    totals = {}
    for method in ("none", "topk:ratio=0.1"):
        monkeypatch.setattr(
            "grace_bench.simulation.run._norm", lambda x: {name: tensor.clone() for name, tensor in x.items()}
        )
        setting = Setting(**SMALL, churn=0.1, late=0.2, lr=1e-30)
        row = simulate(setting, [method], quiet)["methods"][0]
        parts = [row["applied"], row["owed"], row["lost"]]
        totals[method] = {name: sum(part[name] for part in parts if name in part) for name in row["applied"]}
    for name, total in totals["none"].items():
        torch.testing.assert_close(total, totals["topk:ratio=0.1"][name], atol=1e-5, rtol=1e-4)


def test_a_run_that_diverges_says_so() -> None:
    document = simulate(Setting(**SMALL, lr=1e30), ["none"], quiet)
    row = document["methods"][0]
    assert row["diverged"] == 2
    assert row["loss"] is None
    assert sheet(document)["layer"]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"workers": 0}, "workers=0 is out of range; legal: 1, 2, ..., 1024"),
        ({"workers": 1025}, "workers=1025"),
        ({"part": 13}, "part=13 is out of range; legal: 1 to workers"),
        ({"churn": 1.0}, "churn=1.0"), ({"late": -0.1}, "late=-0.1"), ({"alpha": 0.0}, "alpha=0.0"),
        ({"lr": math.inf}, "lr=inf"), ({"steps": 0}, "steps=0"),
    ],
)  # fmt: skip
def test_settings_out_of_range(given: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        Setting(**{**SMALL, **given})


def test_the_command(tmp_path: Path) -> None:
    small = ["--workers", "12", "--part", "4", "--steps", "5", "--hidden", "8", "--churn", "0.1", "--late", "0.3"]
    out = tmp_path / "loss.svg"
    done = CliRunner().invoke(app, ["simulate", "-m", "none,topk:ratio=0.1", *small, "--out", str(out), "--json"])
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert [row["method"] for row in document["methods"]] == ["none", "topk:ratio=0.1"]
    assert document["setting"]["workers"] == 12
    assert "Loss against bytes" in out.read_text()
    assert out.with_suffix(".png").exists()
    done = CliRunner().invoke(app, ["simulate", "-m", "none", *small])
    assert "12 workers, 4 take part in a step, 30% of them late" in done.stdout
    assert "sent, all" in done.stdout
    with pytest.raises(ConfigurationError, match=r"legal: a file name that ends in \.svg"):
        check_kind(Path("loss.pdf"), *KINDS)
