"""Logic alone: codec times and traffic are given, and no clock is asked."""

import io
import json
import math

import pytest
from rich.console import Console

import grace
from grace.collectives import Tally
from grace.contract.method import Method
from grace.predict.break_even import break_even, speed_text
from grace.predict.costs import Cost, Step
from grace.predict.links import Link, link
from grace.predict.replay import Replay, Replayer
from grace.registry import method
from grace_bench.advise.advice import BASELINES, Advice, candidates, compose, rank
from grace_bench.advise.run import advise
from grace_bench.advise.show import _choose_drawn, _label_links, draw, view
from grace_bench.advise.subject import AdvisedModel
from grace_bench.report.direct_labels import Axis
from grace_bench.survey.evidence import Evidence
from tests.unit.cli.test_app import call

NUMBERS = 10_000_000
STEP = Step(0.1, (0.9,), (NUMBERS,), cores=2.0, add=0.2e-9)


def cost(kind: str, bits: float, adds: float) -> Cost:
    size = NUMBERS * bits / 8
    return Cost(lambda world: Replay(world, (adds,), ({kind: Tally(1, size)},), size))


def costs():
    return {
        "none": cost("AllReduce", 32, 0.1), "bf16": cost("AllReduce", 16, 2), "topk": cost("AllGather", 0.4, 6),
        "signsgd": cost("AllGather", 1, 6), "atomo": cost("AllGather", 0.1, 1000),
    }  # fmt: skip


KNOWN = {
    "topk": Evidence("keeps", "ncf", "survey", 100, "hit rate", 0.44, 0.45, 3, 2, 6),
    "signsgd": Evidence("less", "lstm", "survey", 100, "perplexity", 99.5, 16.5, 3, 2, 6),
    "dgc": Evidence("unsure", "lstm", "survey", 100, "perplexity", None, 16.5, 1, 1, 1),
}


@pytest.fixture(autouse=True)
def known(monkeypatch):
    """Evidence of the survey, fixed here, as the archive grows."""
    monkeypatch.setattr("grace_bench.advise.advice.evidence_for", KNOWN.get)


def test_a_slow_link_wants_few_bytes_and_a_fast_one_none_saved():
    slow, fast = rank(STEP, costs(), link("100mbit"), 4), rank(STEP, costs(), link("400gbit"), 4)
    assert (slow.best, slow.fastest) == ("topk", "topk")
    assert [row.rank for row in slow.rows] == [1, 2, 3, 4, 5]
    assert [row.step_ms for row in slow.rows] == sorted(row.step_ms for row in slow.rows)
    by_method = {row.method: row for row in slow.rows}
    assert by_method["topk"].over_fp32 > by_method["topk"].over_bf16 > 1
    assert by_method["none"].over_fp32 == by_method["bf16"].over_bf16 == 1
    assert by_method["signsgd"].needs.optimizer.startswith("momentum 0")
    assert by_method["topk"].quality == KNOWN["topk"]
    assert by_method["atomo"].quality is None
    expensive = {**costs(), "topk": cost("AllGather", 0.4, 300), "signsgd": cost("AllGather", 1, 300)}
    none = rank(STEP, expensive, link("400gbit"), 4)
    assert (none.best, none.fastest) == (None, None)
    assert none.verdict.startswith("none pays here: use bf16")
    assert not any(row.pays for row in none.rows)
    assert fast.rows[0].step_ms < slow.rows[0].step_ms


def test_what_is_not_measured_to_keep_the_quality_is_not_advised():
    tied = {**costs(), "topk": cost("AllGather", 0.4, 6), "signsgd": cost("AllGather", 0.4, 5.9)}
    table = rank(STEP, tied, link("1gbit"), 4)
    assert (table.best, table.close, table.fastest) == ("topk", [], "signsgd")
    assert table.verdict.startswith("topk: ")
    assert "; not seen to learn less on 2 tasks, in 6 runs" in table.verdict
    assert "; faster, but measured to learn less: signsgd (" in table.verdict
    apart = rank(STEP, {**tied, "signsgd": cost("AllGather", 0.4, 100)}, link("1gbit"), 4)
    assert (apart.best, apart.close, apart.fastest) == ("topk", [], "topk")
    assert "faster" not in apart.verdict
    only = rank(STEP, {name: tied[name] for name in ("none", "bf16", "signsgd")}, link("1gbit"), 4)
    assert (only.best, only.close, only.fastest) == (None, [], "signsgd")
    assert only.verdict.startswith("use bf16, ")
    assert (
        "nothing that pays is measured not to learn less; faster, but measured to learn less: signsgd" in only.verdict
    )


@pytest.mark.parametrize("name", ["dgc", "randomk"])  # one run; none at all
def test_what_nobody_measured_well_never_counts_as_good(name):
    given = {**costs(), name: cost("AllGather", 0.1, 1)}
    table = rank(STEP, given, link("1gbit"), 4)
    assert (table.best, table.fastest) == ("topk", name)
    assert f"; faster, but not measured well enough: {name} (" in table.verdict
    del given["topk"]
    assert rank(STEP, given, link("1gbit"), 4).best is None


def test_the_fastest_is_not_crowned_where_a_prediction_cannot_tell(monkeypatch):
    monkeypatch.setattr("grace_bench.advise.advice.evidence_for", lambda name: KNOWN["topk"])
    many = {f"topk:ratio=0.0{k}": cost("AllGather", 0.4, 6) for k in range(1, 8)}
    table = rank(STEP, {**costs(), **many}, link("1gbit"), 4)
    assert len(table.close) >= 7
    assert "; not told apart from it (at most 10% longer, the error of a prediction): " in table.verdict
    assert f" and {len(table.close) - 4} more" in table.verdict


def test_as_many_bytes_as_bf16_is_said_so():
    given = {**costs(), "fp16": cost("AllReduce", 16, 3), "fp8": cost("AllGather", 8, 3)}
    by_method = {row.method: row for row in rank(STEP, given, link("10gbit"), 4).rows}
    assert by_method["fp16"].reason == "sends as many bytes as bf16 with this many workers"
    more = {row.method: row for row in rank(STEP, {**given, "fp8": cost("AllGather", 32, 3)}, link("10gbit"), 4).rows}
    assert more["fp8"].reason == "sends 2 times as many bytes as bf16 with this many workers"


def test_below_its_break_even_a_method_pays_and_above_it_does_not():
    row = next(row for row in rank(STEP, costs(), link("1gbit"), 4).rows if row.method == "atomo")
    speed = row.break_even_bits_per_second
    assert 1e6 < speed < 400e9

    def gain(rate):
        there = Link("", rate)
        took = {name: cost.seconds(STEP, STEP.over(there), 4) for name, cost in costs().items()}
        return min(took["none"], took["bf16"]) - took["atomo"]

    assert gain(0.99 * speed) > 0 > gain(1.01 * speed)


def test_break_even_of_lines():
    assert break_even(lambda at: 2.0, lambda at: 1e9 / at.bits_per_second) == pytest.approx(5e8, rel=1e-4)
    assert break_even(lambda at: 2.0, lambda at: 1.0) is None
    assert break_even(lambda at: 1.0, lambda at: 2.0) == math.inf
    assert [speed_text(speed) for speed in (None, math.inf, 4e11, 2.44e9, 5e8)] == [
        "none",
        "any",
        "any",
        "2.4 Gbit/s",
        "500 Mbit/s",
    ]


def test_every_registered_method_is_a_candidate_once():
    names = candidates(None, 8)
    assert names[:2] == list(BASELINES)
    assert len({method(name) for name in names}) == len(names) == len(grace.methods())
    assert all(isinstance(method(name), Method) for name in names)
    assert candidates(["topk", "topk:ratio=0.01", "none"], 8) == ["none", "bf16", "topk"]


@pytest.mark.parametrize(
    ("name", "world", "composed"),
    [
        ("qsgd", 4, "qsgd"), ("qsgd", 64, "qsgd:communicator=scatterreduce"), ("topk", 8, "topk"),
        ("powersgd", 64, "powersgd"), ("signsgd", 64, "signsgd"), ("threshold", 64, "threshold"), ("none", 64, "none"),
    ],
)  # fmt: skip
def test_what_gathers_more_than_bf16_sums_is_scattered_where_it_may(name, world, composed):
    assert compose(name, world) == composed


@pytest.mark.parametrize("name", [*grace.methods(), "qsgd:bits=4"])
def test_a_method_that_is_asked_for_is_composed_as_by_default(name):
    by_default = {method(candidate) for candidate in candidates(None, 64)} | {method(compose("qsgd:bits=4", 64))}
    assert {method(candidate) for candidate in candidates([name], 64)} <= by_default


def test_a_communicator_that_is_written_stays_and_so_does_all_that_is_meant_exactly():
    assert candidates(["qsgd"], 64)[2:] == ["qsgd:communicator=scatterreduce"]
    assert candidates(["topk:ratio=0.001"], 8)[2:] == ["topk:ratio=0.001"], "which sends little"
    assert candidates(["qsgd:communicator=allgather"], 64)[2:] == ["qsgd:communicator=allgather"]
    assert candidates(["qsgd"], 64, exactly=True)[2:] == ["qsgd"]


def test_the_verdict_is_the_same_with_the_winner_alone(monkeypatch):
    """A gather of natural moves more than bf16's sum among so many workers, over scatter-reduce it moves half."""
    monkeypatch.setattr("grace_bench.advise.advice.evidence_for", lambda name: KNOWN["topk"])

    def replay(self, spec, world):
        bits = {"none": 32, "bf16": 16, "natural:communicator=scatterreduce": 8}.get(spec, 64)
        return cost("AllReduce", bits, 2).at(world)

    monkeypatch.setattr(Replayer, "run", replay)
    monkeypatch.setattr(Replayer, "add_seconds", 1e-9 * 4096)
    subject = AdvisedModel("mine", {"w": (64, 64)}, None)

    def ask(methods, exactly=False):
        advice = advise(subject, [link("1mbit")], [64], methods=methods, exactly=exactly, step_ms=1)[0]
        return advice.tables[0].best, advice.tables[0].verdict.partition(";")[0]

    best, verdict = ask(None)
    assert best == "natural:communicator=scatterreduce"
    assert ask(["natural", "qsgd:bits=4"]) == (best, verdict)
    assert ask(["natural"], exactly=True)[0] is None, "composed otherwise, it has another verdict"


def test_what_is_advised_is_drawn_where_many_are_faster():
    worse = {f"qsgd:bits={k}": cost("AllGather", 0.3, 5) for k in range(2, 14)}
    table = rank(STEP, {**costs(), **worse}, link("1gbit"), 4)
    assert (table.best, table.rows[0].method) == ("topk", table.fastest)
    assert sum(row.rank < 10 for row in table.rows if row.method == "topk") == 0, "nine others are faster"
    drawn = _choose_drawn([table])
    assert drawn[:2] == ["topk", table.fastest]
    assert len(set(drawn)) == 9


def test_the_figure_has_names_beside_its_lines(tmp_path):
    known_costs = costs()
    tables = [rank(STEP, known_costs, link(name), world) for world in (2, 8) for name in ("1gbit", "10gbit")]
    advice = Advice(
        model="mine", parameters=NUMBERS, buckets=[NUMBERS], step_ms=100.0, measured=True, cores=2.0, ready=[0.9],
        add_ns=0.2, busy=False, load=None, tables=tables,
    )  # fmt: skip
    page, svg, _ = draw(
        advice, lambda name, at, world: known_costs[name].seconds(STEP, STEP.over(at), world), tmp_path / "a.html"
    )
    text = io.StringIO()
    Console(file=text, width=120).print(view(advice))
    assert max(map(len, text.getvalue().splitlines())) <= 120
    assert "lstm 99.5 (16.5)" in text.getvalue()
    drawn = svg.read_text()
    for name in known_costs:
        assert drawn.count(f">{name}</text>") == 2, "once in each panel"
    assert drawn.count(">no communication: 100 ms</text>") == 2
    assert drawn.count(">10gbit</text>") == 2
    assert "predicted, not measured" in drawn
    assert drawn in page.read_text()


def test_the_command(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import torch\ndef make():\n    model = torch.nn.Linear(64, 64)\n"
        "    return model, torch.zeros(2, 64), lambda model, batch: model(batch).sum()\n"
    )
    where = f"{tmp_path}/mine.py:make"
    done = call("advise", "--model", where, "--methods", "topk", "--samples", "1", "--workers", "2,64", "--json")
    assert done.exit_code == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["schema"], document["parameters"], document["measured"]) == ("grace.advice", 4160, True)
    assert [(table["workers"], table["link"]) for table in document["tables"]] == [
        (2, "1gbit"),
        (2, "10gbit"),
        (64, "1gbit"),
        (64, "10gbit"),
    ]
    assert all({row["method"] for row in table["rows"]} == {"none", "bf16", "topk"} for table in document["tables"])


def test_a_loss_that_fails_says_what_it_is_given(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import torch\ndef make():\n    return torch.nn.Linear(4, 4), torch.zeros(2, 4), torch.nn.functional.mse_loss\n"
    )
    done = call("advise", "--model", f"{tmp_path}/mine.py:make", "--methods", "topk")
    assert done.exit_code == 1
    assert "it is given the model and the batch" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--model module:function, or --task"),
        (["--task", "digits", "--out", "x.pdf"], "no figure; legal: a file name that ends in .svg or .html"),
        (["--task", "digits", "--workers", "2000"], "legal: 2 to 1,024"),
        (["--task", "digits", "--methods", "nome"], "unknown method 'nome'"),
        (["--model", "math:pi"], "legal: a torch.nn.Module, or (model, batch, loss)"),
    ],
)  # fmt: skip
def test_errors(arguments, message):
    done = call("advise", *arguments)
    assert done.exit_code == 1
    assert message in done.stderr


def test_names_of_links_do_not_run_into_each_other():
    def labels(*names):
        tables = [rank(STEP, costs(), link(name), 4) for name in names]
        return {label["name"]: label["y"] for label in _label_links(tables, Axis(1e7, 4e11, 430, 0))}

    assert labels("100mbit", "10gbit") == {"100mbit": 0, "10gbit": 0}
    assert labels("1gbit", "1.5gbit", "2gbit", "10gbit") == {"1gbit": 0, "1.5gbit": 13, "2gbit": 26, "10gbit": 0}
