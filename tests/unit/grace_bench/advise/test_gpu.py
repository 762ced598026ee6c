"""Advice for GPUs: by a document of codecs, by rates that are given, and refused where there is neither."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from grace.errors import ConfigurationError, InputError
from grace.predict.costs import NCCL_CALL, Cost, Step
from grace.predict.links import link
from grace.predict.rates import Rate
from grace.predict.timeline import Host
from grace_bench.advise.gpu import GPUReplayer, of_document
from grace_bench.advise.run import advise
from grace_bench.advise.show import view
from grace_bench.advise.subject import AdvisedModel
from grace_bench.codecs.break_even import read_times
from grace_bench.codecs.clock import ADD
from tests.unit.cli.test_app import call

SHAPES = {"first": (1024, 1024), "bias": (1024,), "second": (1024, 1024)}
SUBJECT = AdvisedModel("mine", SHAPES, None)


def row(method: str, operation: str, size: int, busy: float) -> dict[str, Any]:
    return {
        "method": method,
        "operation": operation,
        "size": size,
        "microseconds": 10 * busy,
        "busy_microseconds": busy,
    }


def document(**changes: Any) -> dict[str, Any]:
    """Codecs of two methods: 10 us and 10 us more for each million numbers, encoding and decoding each."""
    rows = [
        row(method, operation, size, 10 + size / 1e5)
        for method in ("bf16", "qsgd:bits=4")
        for operation in ("encode", "encode with error feedback", "decode and sum")
        for size in (1_000_000, 3_000_000)
    ]
    adds = [{"operation": ADD, "size": size, "microseconds": size / 1e5} for size in (1_000_000, 3_000_000)]
    return {
        "schema": "grace.codecs", "version": 1, "environment": {"device": "Some GPU"}, "plan": {"workers": 4},
        "rows": rows, "yardsticks": adds, **changes,
    }  # fmt: skip


def written(folder: Path, **changes: Any) -> Path:
    path = folder / "codecs.json"
    path.write_text(json.dumps(document(**changes)))
    return path


def test_a_document_says_what_the_device_takes(tmp_path: Path) -> None:
    buckets = [["second"], ["bias", "first"]]
    codecs = read_times(written(tmp_path))
    replayer = of_document(SHAPES, buckets, codecs, [4])
    assert list(codecs.times) == ["bf16", "qsgd:bits=4"]
    replay = replayer.run("qsgd:bits=4", 4)
    add = replayer.add_seconds / sum(torch.Size(shape).numel() for shape in SHAPES.values())
    assert add == pytest.approx(1e-11)
    expected = 2 * (10e-6 + (1 << 20) / 1e11)  # a small tensor goes as it is
    assert [adds * replayer.add_seconds for adds in replay.codec] == pytest.approx([expected, expected], rel=1e-3)
    assert replay.host == (0.0, 0.0)
    assert "of the host it says nothing" in replayer.told
    assert "AllReduce" in replay.moved[1]


def test_advice_by_a_document_names_what_is_assumed(tmp_path: Path) -> None:
    advice, seconds = advise(
        SUBJECT, [link("1gbit"), link("400gbit")], [4], step_ms=5, device="cuda", codecs=read_times(written(tmp_path))
    )
    slow, fast = advice.tables
    assert {row.method for row in slow.rows} == {"none", "bf16", "qsgd:bits=4"}
    assert slow.fastest == "qsgd:bits=4"
    assert (
        seconds("qsgd:bits=4", link("1gbit"), 4) < seconds("bf16", link("1gbit"), 4) < seconds("none", link("1gbit"), 4)
    )
    assert advice.device == "Some GPU"
    assert "assumed, not measured" in advice.note
    assert fast.rows[0].step_ms < slow.rows[0].step_ms
    assert view(advice)


def test_a_host_that_issues_for_longer_than_the_device_works_decides() -> None:
    def rates(name: str, world: int) -> Rate:
        return Rate(world, ((0.0, 1e-12), (0.0, 1e-12)), (("AllReduce", 0.0, 4.0),), host=(2e-3, 1e-3))

    replayer = GPUReplayer(SHAPES, [["second"], ["first"]], rates, 1e-12, "Some GPU", "")
    numbers = (1 << 20, 1 << 20)
    step = Step(2e-3, (0.5, 1.0), numbers, 1.0, 1e-12, host=Host())
    network = step.over(link("400gbit"))
    cost = Cost(lambda world: replayer.run("bf16", world))
    assert cost.seconds(step, network, 4) == pytest.approx(2 * (3e-3 + NCCL_CALL)), "two buckets of one tensor each"
    free = Cost(lambda world: replace(replayer.run("bf16", world), host=(0.0, 0.0)))
    assert cost.seconds(step, network, 4) > 2 * free.seconds(step, network, 4)
    assert cost.at(64).host == replayer.run("bf16", 8).host


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"schema": "grace.other"}, "schema 'grace.other'"),
        ({"environment": {"device": "cpu"}}, "measured on a processor"),
        ({"rows": []}, "bf16 is missing"),
        ({"yardsticks": []}, "ValueError"),
        ({"plan": {}}, "KeyError"),
        ({"rows": [{"method": "bf16"}]}, "KeyError"),
    ],
)
def test_other_documents_are_refused(changes: dict[str, Any], why: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"codecs.json has no codecs of a GPU") as error:
        read_times(written(tmp_path, **changes))
    assert why in str(error.value)


def test_what_cannot_be_answered_is_refused(tmp_path: Path) -> None:
    codecs = read_times(written(tmp_path))

    def ask(match: str, **arguments: Any) -> None:
        given: dict[str, Any] = {"step_ms": 5, "device": "cuda", "codecs": codecs, **arguments}
        with pytest.raises(ConfigurationError, match=match):
            advise(SUBJECT, [link("1gbit")], given.pop("workers", [4]), **given)

    ask("legal: --workers 4", workers=[8])
    ask("needs --step-ms", step_ms=None)
    ask("has not measured topk; legal: bf16, qsgd:bits=4", methods=["topk"])
    ask("legal: with --device cuda", device="cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_what_to_give() -> None:
    done = call("advise", "--task", "digits", "--device", "cuda", "--step-ms", "5")
    assert done.exit_code != 0
    told = str(done.exception) + done.stderr
    assert "finds 0 CUDA devices here" in told
    assert "--codecs FOLDER/codecs.json here" in told
