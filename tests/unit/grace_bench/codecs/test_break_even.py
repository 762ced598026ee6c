import json

import pytest
from typer.testing import CliRunner

from grace.cli.app import app
from grace.collectives import Tally, ring_bytes
from grace.predict.break_even import break_even
from grace.predict.costs import HOP
from grace.predict.links import link, parse_links
from grace_bench.codecs.bench import Bench
from grace_bench.codecs.break_even import BreakEvenBench, Exchange, step_of
from grace_bench.codecs.clock import OPERATIONS
from grace_bench.codecs.figure import draw
from grace_bench.codecs.plan import plan_of
from grace_bench.codecs.table import view
from tests.benchmarks.codecs.test_views import line_of, text_of

SMALL = ("--methods", "topk,qsgd", "--sizes", "4K", "--threads", "1", "--samples", "3")


def call(*arguments):
    return CliRunner().invoke(app, ["bench", "codecs", *arguments])


@pytest.mark.parametrize("codec", [0.05, 0.5])
def test_both_take_as_long_where_they_break_even(codec):
    step = step_of(1_000_000, 1, 0.2e-9)
    dense, method = (
        Exchange(time, {"AllGather": Tally(1, size)}, step, 4) for time, size in ((1e-4, 8e6), (codec, 1e5))
    )
    speed = break_even(method.seconds, dense.seconds)
    between = link(f"{speed / 1e6:.6f}mbit")
    assert method.seconds(between) == pytest.approx(dense.seconds(between))
    slower, faster = link(f"{0.5 * speed / 1e6:.6f}mbit"), link(f"{2 * speed / 1e6:.6f}mbit")
    assert method.seconds(slower) < dense.seconds(slower)
    assert method.seconds(faster) > dense.seconds(faster)


@pytest.fixture(scope="module")
def document():
    plan = plan_of("topk,threshold,none", "4K,8K", [1], 3, workers=3)
    return BreakEvenBench(plan, parse_links("100mbit,1gbit"), eviction=1 << 16).measure()


def test_each_method_and_size_has_a_row(document):
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert {row["operation"] for row in document["rows"]} == set(OPERATIONS)
    assert [(row["method"], row["size"]) for row in document["worth"]] == [
        (name, size) for size in (4096, 8192) for name in ("bf16", "threshold", "topk")
    ]
    for row in document["worth"]:
        assert row["codec_microseconds"] > 0
        assert [entry["link"] for entry in row["links"]] == ["100mbit", "1gbit"]
    topk = document["worth"][2]
    wire = topk["moved_bytes"] / 2
    assert topk["relative_to_fp32"] == pytest.approx(topk["moved_bytes"] / ring_bytes(4 * 4096, 3), rel=1e-4)
    hops = 2 * 1e6 * HOP
    assert topk["links"][0]["microseconds"] == pytest.approx(
        topk["codec_microseconds"] + hops + 1e6 * 2 * wire * link("100mbit").seconds_per_byte, rel=1e-3
    )
    assert [row["payloads"] for row in document["rows"] if row["operation"] == "decode and sum"] == [1, 3, 3] * 2


def test_the_codec_of_a_recipe_with_a_memory_is_that_with_a_memory(document):
    times = {row["operation"]: row["microseconds"] for row in document["rows"] if row["method"] == "topk"}
    microseconds = [row["codec_microseconds"] for row in document["worth"] if row["method"] == "topk"]
    assert microseconds[-1] == pytest.approx(times["encode with error feedback"] + times["decode and sum"], rel=1e-3)


def test_the_table_says_where_it_is_worth_it(document):
    text = text_of(view(document))
    assert "4K elements, 3 workers, 1 thread" in text
    assert "8K elements, 3 workers, 1 thread" in text
    assert text.count("bit/s") >= 2
    assert "left out, 4K: the gradient itself travels: nothing is encoded: none" in text
    document["environment"].update(load_before=9.0, cores=2)
    assert line_of(text_of(view(document)), "the machine was busy (load 9.0 on 2 cores)")


def test_the_figure_says_never_where_nothing_is_gained(document, tmp_path):
    document["worth"][0].update(faster_than_fp32_below=0.0, faster_than_bf16_below=None)
    svg, png = draw(document, tmp_path)
    assert png.read_bytes().startswith(b"\x89PNG")
    for words in ("than fp32", "than bf16", ">never<", "4K elements", "8K elements", ">1gbit<", "topk"):
        assert words in svg.read_text()
    assert draw({**document, "worth": []}, tmp_path) == []


def test_the_command_writes_json_and_files(tmp_path):
    done = call(*SMALL, "--json", "--out", str(tmp_path))
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert document == json.loads((tmp_path / "codecs.json").read_text())
    assert "measuring 3 methods: about 1 s\n" in done.stderr  # after a word on a busy machine, if it is
    assert {path.name for path in tmp_path.iterdir()} == {"codecs.json", "codecs.svg", "codecs.png"}
    assert {row["method"] for row in document["worth"]} == {"bf16", "qsgd", "topk"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--methods", "topkk"], "did you mean 'topk'?"),
        (["--methods", ","], "one method or more"),
        (["--links", "none"], "name one or more speeds"),
        (["--links", ","], "name one or more speeds"),
        (["--sizes", "4X"], "legal: such as 4096, 256K or 6.5M"),
        (["--workers", "1"], "workers=1 is out of range"),
        (["--limit", "nan"], "limit=nan is out of range"),
        (["--out", "/etc/passwd/timings"], "/etc/passwd is not a folder"),
    ],
)
def test_errors_are_told_before_anything_is_measured(arguments, message, monkeypatch):
    monkeypatch.setattr(Bench, "measure", lambda *_, **__: pytest.fail("measured"))
    done = call(*arguments)
    assert done.exit_code == 1, done.output
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 2
    assert done.stdout == ""
