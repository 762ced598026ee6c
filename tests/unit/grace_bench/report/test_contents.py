import json
import math

import pytest

from grace_bench.report.contents import FIGURES, is_share, network_name, networks, page_document, report_of
from grace_bench.report.marks import has_outlier, stretch
from grace_bench.report.read import LoadedRuns
from grace_bench.report.theme import sign
from tests.unit.grace_bench.report.samples import BASELINES, METHODS, codecs, run, run_of, sweep


def report(*documents, rows=()):
    return report_of(LoadedRuns([run_of(document, f"{k}.json") for k, document in enumerate(documents)], list(rows)))


def names(figures):
    return [figure.name for figure in figures]


def test_everything_is_shown_where_there_are_data_for_everything():
    assert names(report(*sweep(seeds=(0,)), rows=codecs()["rows"]).figures) == names(FIGURES)


def test_a_figure_without_data_is_left_out_with_the_command_that_makes_them():
    contents = report(run())
    assert names(contents.figures) == ["quality-epoch-time", "quality-throughput", "quality-bytes", "step-time"]
    assert names(contents.missing) == ["codec-latency", "links", "prediction"]
    missing = {row["title"]: row for row in page_document(contents, "here/it is")["missing"]}
    assert missing["Codec latency"]["command"] == "grace bench codecs --json > here/it is/codecs.json"
    assert missing["Transports and links"]["survey"] == "9 and 10"


def test_a_report_of_codecs_alone_is_a_report():
    contents = report(rows=codecs()["rows"])
    assert names(contents.figures) == ["codec-latency"]
    assert page_document(contents, "d")["groups"] == []


def test_the_limit_alone_makes_no_figure_of_quality():
    assert names(report(run("no-communication")).figures) == ["step-time"]


def test_links_are_in_the_order_of_their_speed_and_named_by_what_differs():
    groups = report(*(run(link=link) for link in ("none", "25gbit", "100mbit", "1gbit"))).groups
    assert [network_name(network, networks(groups)) for network in networks(groups)] == [
        "100mbit",
        "1gbit",
        "25gbit",
        "no limit",
    ]
    slow = {"name": "1gbit", "bits_per_second": 1e9, "latency_seconds": 0.001}
    both = report(run(link="1gbit"), run(link=None, transport="mpi") | {"link": slow}).groups
    assert [network_name(network, networks(both)) for network in networks(both)] == ["1gbit, 1 ms, mpi", "1gbit, gloo"]


def test_the_document_of_the_page_is_small_and_is_json():
    document = page_document(report(*sweep()), "d")
    text = json.dumps(document, allow_nan=False)
    assert len(text) < 3030 * len(document["groups"])
    assert document["runs"] == 3 * 3 * 3 * len({**METHODS, **BASELINES})
    group = document["groups"][0]
    assert group["final_low"] <= group["final"] <= group["final_high"]
    assert len(group["curve"]["quality"]) == len(group["curve"]["epoch"]) == len(group["curve"]["high"]) == 25
    assert all(len(repr(value).replace(".", "").lstrip("0")) <= 4 for value in (group["final"], group["final_high"]))


def test_a_long_curve_is_thinned():
    document = page_document(report(run(points=3000)), "d")
    assert len(document["groups"][0]["curve"]["quality"]) <= 120
    assert document["groups"][0]["evaluations"] > 120


def test_procedural_data_are_marked():
    first, second = page_document(report(run(), run(task="resnet20", procedural=True)), "d")["tasks"]
    assert (first["procedural"], second["procedural"], second["data"]) == (False, True, "shapes")


def test_failures_keep_their_error_and_their_command():
    (failed,) = page_document(report(run(), run("dgc", error="rank 0\nValueError: no")), "d")["failed"]
    assert (failed["method"], failed["error"]) == ("dgc", "rank 0\nValueError: no")
    assert failed["command"] == "grace bench train --task digits"


def test_baselines_are_ink_and_methods_have_signs_of_their_own():
    signs = report(*(run(name) for name in {**METHODS, **BASELINES})).signs
    assert {name for name, mark in signs.items() if mark.color < 0} == {"none", *BASELINES}
    assert len(set(signs.values())) == len(signs)
    assert len({sign(k) for k in range(30)}) == 30
    assert len({(mark.color, mark.marker) for mark in (sign(k) for k in range(100))}) == 100


def test_without_communication_looks_like_nothing_that_trains():
    signs = report(*(run(name) for name in BASELINES)).signs
    for tone in ("light", "dark"):
        assert signs["no-communication"].paint(tone)["stroke"] != signs["ddp-fp32"].paint(tone)["stroke"]
    assert signs["no-communication"].shape["dash"] != signs["ddp-fp32"].shape["dash"]


def test_one_outlier_stretches_its_axis():
    fourteen = [0.92 + 0.001 * k for k in range(14)]
    assert stretch([*fourteen, 0.1], share=True)["type"] == "pow"
    assert stretch([100 * value for value in fourteen] + [9000.0]) == {"type": "log"}
    assert stretch(fourteen, share=True) == stretch([*range(15)]) == stretch([0.0] + [5.0] * 9) == stretch([]) == {}
    assert has_outlier([*fourteen, 90.0])
    assert not has_outlier([*fourteen, 3.0])


def test_signs_of_a_method_do_not_depend_on_the_order_of_files():
    documents = [run(name) for name in METHODS]
    assert report(*documents).signs == report(*reversed(documents)).signs


def test_palettes_can_be_told_apart_and_from_their_ground():
    """At least 2.0 in contrast with the card behind: large shapes, which also differ in dash and marker."""
    from grace_bench.report.theme import COLORS, COLORS_ON_DARK

    def luminance(text):
        parts = [int(text[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else math.pow((part + 0.055) / 1.055, 2.4) for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    def contrast(a, b):
        high, low = sorted((luminance(a), luminance(b)), reverse=True)
        return (high + 0.05) / (low + 0.05)

    assert len(set(COLORS)) == len(COLORS) == len(COLORS_ON_DARK) == len(set(COLORS_ON_DARK))
    assert min(contrast(color, "#ffffff") for color in COLORS) > 1.7
    assert min(contrast(color, "#1a1f28") for color in COLORS_ON_DARK) > 4.5


@pytest.mark.parametrize("metric", ["accuracy", "top1", "hr10", "paper_iou"])
def test_parts_of_one_are_told_in_per_cent(metric):
    assert is_share(metric)


@pytest.mark.parametrize("metric", ["perplexity", "bits_per_byte", "loss", "stop10"])
def test_other_metrics_are_not(metric):
    assert not is_share(metric)


def test_commands_and_headings_are_of_this_sweep():
    document = page_document(report(run("topk", task="lstm_small", points=2)), "/somewhere/else/results")
    assert document["directory"] == "results"
    assert document["missing"]
    commands = [figure["command"] for figure in document["missing"]]
    assert all("--task lstm_small" in command for command in commands if "bench train" in command)
    assert document["measured"] == 1
    synthetic = run("topk", final=None, data={"name": "random batches", "source": "synthetic"})
    assert page_document(report(synthetic), "d")["measured"] == 0
