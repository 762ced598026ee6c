"""``grace simulate-decoupled``: the same deaths for all kinds of training, and who is stopped by them."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from grace.cli.app import app
from grace.errors import ConfigurationError
from grace_bench.simulation.decoupled import DecoupledSetting, simulate_decoupled
from grace_bench.simulation.show import sheet_decoupled, view_decoupled

SMALL: dict[str, Any] = {"workers": 4, "steps": 40, "batch": 4, "hidden": 16, "kill_every": 10.0}


def rows(methods: list[str], **more: Any) -> dict[tuple[str, str], dict[str, Any]]:
    document = simulate_decoupled(DecoupledSetting(**{**SMALL, **more}), methods, lambda *_: None)
    return {(row["kind"], row["method"]): row for row in document["rows"]}


def test_deaths_stop_all_but_decoupled_learners():
    got = rows(["none", "topk:ratio=0.1"], victims=1)
    decoupled, compressed = got["decoupled", "none"], got["decoupled", "topk:ratio=0.1"]
    assert decoupled["survivors"] == got["decoupled, undisturbed", "none"]["survivors"]
    assert decoupled["stopped"] == 0
    assert got["decoupled, undisturbed", "none"]["goodput"] >= 0.97  # 39 of 40 steps: the last ends too late
    assert decoupled["goodput"] > got["elastic", "none"]["goodput"] > got["synchronous", "none"]["goodput"]
    assert got["synchronous", "none"]["stopped"] > got["elastic", "none"]["stopped"] > 0
    assert compressed["sent"] < decoupled["sent"]
    assert decoupled["loss"] < got["synchronous", "none"]["loss"]


def test_a_slow_learner_costs_the_others_nothing():
    got = rows(["none"], kill_every=0.0, slow=0.25)
    assert got["decoupled", "none"]["goodput"] >= 0.96  # 39 of 40 steps, 19 of 20
    assert got["synchronous", "none"]["goodput"] < 0.7


def test_the_same_setting_gives_the_same_numbers():
    assert rows(["qsgd:bits=8"], spread=0.3) == rows(["qsgd:bits=8"], spread=0.3)


def test_training_in_which_somebody_dies_in_each_step_says_that_it_makes_no_progress():
    setting = DecoupledSetting(**{**SMALL, "workers": 8, "steps": 6, "kill_every": 1.0})
    document = simulate_decoupled(setting, ["none"], lambda *_: None)
    got = {row["kind"]: row for row in document["rows"]}
    for kind in ("synchronous", "elastic"):
        assert got[kind]["goodput"] == 0
        assert got[kind]["stopped"] <= setting.duration
    assert got["decoupled"]["goodput"] > 0
    shown = io.StringIO()
    Console(file=shown, width=200).print(view_decoupled(document))
    assert [line.split()[:4] for line in shown.getvalue().splitlines() if "no progress" in line] == [
        ["synchronous", "none", "no", "progress"],
        ["elastic", "none", "no", "progress"],
    ]


def test_many_learners_run():
    got = rows(["none"], workers=24, steps=12, every=5, kill_every=1.0, quorum=8)
    assert got["decoupled", "none"]["merges"] >= 2


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"workers": 1025}, "workers=1025"),
        ({"quorum": 5}, "quorum=5 of learners=4"),
        ({"victims": 5}, "victims=5"),
        ({"alpha": 0.0}, "alpha=0.0"),
        ({"repair": 0.0}, "repair=0.0"),
    ],
)
def test_settings_out_of_range_are_refused(more: dict[str, Any], text: str):
    with pytest.raises(ConfigurationError, match=text):
        DecoupledSetting(**{**SMALL, **more})


def test_the_command(monkeypatch: pytest.MonkeyPatch):
    arguments = ["simulate-decoupled", "-w", "2", "--steps", "20", "--hidden", "8", "--batch", "2"]
    shown = CliRunner().invoke(app, [*arguments, "--kill-every", "8"], env={"COLUMNS": "200"})
    assert shown.exit_code == 0, shown.output
    assert "one dies every 8 s" in shown.output
    assert "synchronous" in shown.output
    written = CliRunner().invoke(app, [*arguments, "--json"])
    assert json.loads(written.stdout)["schema"] == "grace-simulate-decoupled/1"
    refused = CliRunner().invoke(app, [*arguments, "--methods", "powersgd"])
    assert refused.exit_code != 0


def test_the_figure_has_goodput_and_loss_of_each_kind(tmp_path: Path):
    out = tmp_path / "goodput.svg"
    arguments = ["simulate-decoupled", "-w", "2", "--steps", "20", "--hidden", "8", "--batch", "2", "--kill-every", "8"]
    drawn = CliRunner().invoke(app, [*arguments, "--json", "--out", str(out)])
    assert drawn.exit_code == 0, drawn.output
    document = json.loads(drawn.stdout[drawn.stdout.index("{") :])
    text = out.read_text(encoding="utf-8")
    for row in document["rows"]:
        assert f"{row['goodput']:.0%}" in text
        assert f"{row['loss']:.3f}" in text
    for kind in ("synchronous", "elastic", "decoupled, undisturbed", "decoupled, topk:ratio=0.1"):
        assert f">{kind}<" in text
    assert out.with_suffix(".png").is_file()
    refused = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "goodput.pdf")])
    assert refused.exit_code != 0
    document["rows"][1]["loss"] = None
    assert [row["ends"] for row in sheet_decoupled(document)["hconcat"][0]["data"]["values"]][1] == "diverged"
