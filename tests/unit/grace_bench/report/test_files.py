import re

import msgspec
import pytest

from grace_bench.report.contents import page_document, report_of
from grace_bench.report.files import draw_comparison, draw_report
from grace_bench.report.read import LoadedRuns
from grace_bench.runs.config import RunConfig
from tests.unit.grace_bench.documents import document, point
from tests.unit.grace_bench.report.samples import METHODS, codecs, run, run_of


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Two links, two seeds, the limit, procedural data; and names that are odd in a file."""
    methods = ("none", "topk:ratio=0.01", "no-communication")
    documents = [
        run(method, link=link, seed=seed, procedural=True, lower=True, target=130.0)
        for method in methods for link in ("1gbit", "10gbit") for seed in (0, 1)
    ]  # fmt: skip
    documents += [run("$mine_$", link="1gbit", task="_odd/task")]
    runs = [run_of(document, f"{k}.json") for k, document in enumerate(documents)]
    report = report_of(LoadedRuns(runs, codecs(sizes=(10,), threads=(1,))["rows"]))
    return draw_report(page_document(report, "results"), tmp_path_factory.mktemp("figures"))


def test_every_figure_is_a_file_twice(written):
    names = {path.stem for path in written if path.suffix == ".svg"}
    per_task = {"quality-epoch-time", "quality-throughput", "quality-bytes", "step-time", "links", "prediction"}
    odd = {f"_odd_task-{name}" for name in per_task - {"links"}}
    assert names == {f"digits-{name}" for name in per_task} | odd | {"codec-latency"}
    assert {path.stem for path in written if path.suffix == ".png"} == names
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in written if path.suffix == ".png")


def test_procedural_data_are_marked_in_every_figure_that_shows_them(written):
    for path in written:
        if path.suffix == ".svg":
            marked = "procedural data: shapes" in path.read_text(encoding="utf-8")
            assert marked == path.name.startswith("digits-"), path.name


def test_a_name_with_dollars_is_a_name(written):
    (path,) = [path for path in written if path.name == "_odd_task-quality-bytes.svg"]
    assert "$mine_$" in path.read_text(encoding="utf-8")


def test_every_figure_says_what_it_is_without_being_seen(written):
    for path in written:
        if path.suffix == ".svg":
            assert re.match(r'<svg role="img" aria-label="[^"]{20,}"', path.read_text()), path.name


def test_the_parts_of_a_step_add_up_to_it(tmp_path):
    documents = [run("topk", link="1gbit"), run("qsgd", link="1gbit")]
    documents[1]["time"].update(codec_ms=50.0, exposed_ms=7.0)  # a codec that mostly hides behind the backward pass
    report = report_of(LoadedRuns([run_of(document, f"{k}.json") for k, document in enumerate(documents)], []))
    draw_report(page_document(report, "results"), tmp_path)
    told = (tmp_path / "digits-step-time.svg").read_text()
    for group in report.groups:
        parts = [float(ms) for ms in re.findall(rf'aria-label="{group.label}: [a-z ]+ ([-\d.]+) ms"', told)]
        assert len(parts) == 3
        assert min(parts) >= 0
        assert sum(parts) == pytest.approx(group.median("compute_ms") + group.median("exposed_ms"), rel=0.01)


def result(method="none", final=0.9, **changes):
    curve = [point(final if k else 0.1, step=10 * k) for k in range(3)]
    return document(RunConfig("digits", method), final=final, curve=curve, **changes)


@pytest.mark.parametrize(
    "results",
    [
        [result(), result("topk", 0.8), result("signsgd", None, why="lr x 0.02")],
        [result(name) for name in sorted(METHODS)],
    ],
)
def test_a_comparison_is_drawn_with_what_each_came_to(tmp_path, results):
    svg, png = draw_comparison(results, tmp_path)
    assert png.read_bytes().startswith(b"\x89PNG")
    text = svg.read_text()
    assert all(f">{result.method}{'*' if result.optimizer.why else ''}</" in text for result in results)
    assert text.count("of the bytes</") == len(results)
    assert ("diverged" in text) == any(result.final is None for result in results)
    assert "per byte sent" in text
    if any(result.method == "none" for result in results):
        assert all(f">over {link}</" in text for link in ("100 Mbit/s", "1 Gbit/s", "10 Gbit/s"))
    else:
        assert "per second here" in text


def test_what_sends_nothing_has_no_panel_of_bytes(tmp_path):
    drawn = result()
    nothing = msgspec.structs.replace(drawn.traffic, sent_bytes_per_step=0.0)
    svg, _ = draw_comparison([msgspec.structs.replace(drawn, traffic=nothing)], tmp_path)
    assert "per byte sent" not in svg.read_text()


def test_the_same_results_give_the_same_figure(tmp_path):
    first = [path.read_bytes() for path in draw_comparison([result(), result("topk")], tmp_path / "a")]
    assert first == [path.read_bytes() for path in draw_comparison([result(), result("topk")], tmp_path / "b")]


def names_in(svg):
    return re.findall(r">([^<>]+)</text>", svg.read_text(encoding="utf-8"))


def test_names_are_beside_the_lines_and_points(written):
    there = {path.name: names_in(path) for path in written if path.suffix == ".svg"}
    for figure, times in (("links", 1), ("quality-epoch-time", 4)):  # no legend: once in each panel
        assert there[f"digits-{figure}.svg"].count("topk:ratio=0.01") == times
    assert there["digits-quality-bytes.svg"].count("topk:ratio=0.01") == 3  # two panels and the legend


def test_a_pareto_front_is_named_where_one_is_drawn(tmp_path):
    def draw(*documents):
        report = report_of(LoadedRuns([run_of(document, f"{k}.json") for k, document in enumerate(documents)], []))
        draw_report(page_document(report, "results"), tmp_path)
        return (tmp_path / "digits-quality-bytes.svg").read_text()

    text = "broad line: the Pareto front, the points that no other clearly beats"
    both = [run(method, seed=seed) for method in ("none", "randomk:ratio=0.01") for seed in (0, 1)]
    assert text in draw(*both)
    ends = {"topk:ratio=0.01": 0.95, "none": 0.9}
    svg = draw(*(run(method, seed=seed, final=final) for method, final in ends.items() for seed in (0, 1)))
    assert "Pareto" not in svg
    assert "no Pareto front, which takes several seeds" in draw(run("none"), run("randomk:ratio=0.01"))


def test_seeds_are_told(written, tmp_path):
    (links,) = [path for path in written if path.name == "digits-links.svg"]
    assert "4 workers, medians and ranges over 2 seeds" in links.read_text()
    documents = [run("topk", seed=7), run("none", seed=7, final=None)]
    report = report_of(LoadedRuns([run_of(document, f"{k}.json") for k, document in enumerate(documents)], []))
    draw_report(page_document(report, "results"), tmp_path)
    svg = (tmp_path / "digits-quality-epoch-time.svg").read_text()
    assert "4 workers, one run each, seed 7" in svg
    assert "marks: the last evaluation; diverged: none" in svg


def test_one_slow_method_does_not_flatten_the_others(tmp_path):
    documents = [run(name) for name in ("none", "topk", "qsgd", "dgc")]
    for evaluation in documents[0]["curve"]:
        evaluation["seconds"] *= 50
    report = report_of(LoadedRuns([run_of(document, f"{k}.json") for k, document in enumerate(documents)], []))
    draw_report(page_document(report, "results"), tmp_path)
    assert "seconds of training (log)" in names_in(tmp_path / "digits-quality-epoch-time.svg")


def test_no_comparison_of_qualities_is_drawn_where_none_was_measured(tmp_path):
    synthetic = run("topk", final=None, data={"name": "random batches", "source": "synthetic"})
    assert draw_comparison([run_of(synthetic).document], tmp_path) == []
    assert list(tmp_path.iterdir()) == []
