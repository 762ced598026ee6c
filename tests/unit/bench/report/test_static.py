import pytest

from grace.bench.report.contents import report_of
from grace.bench.report.read import Found
from grace.bench.report.static import _part, draw_report
from grace.bench.report.style import RC
from tests.unit.bench.report.samples import codecs, run, run_of


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Two links, two seeds, the limit, procedural data; and names that matplotlib would read as mathematics."""
    methods = ("none", "topk:ratio=0.01", "no-communication")
    documents = [
        run(method, link=link, seed=seed, procedural=True, lower=True, target=130.0)
        for method in methods for link in ("1gbit", "10gbit") for seed in (0, 1)
    ]  # fmt: skip
    documents += [run("$mine_$", link="1gbit", task="_odd/task")]
    runs = [run_of(document, f"{k}.json") for k, document in enumerate(documents)]
    report = report_of(Found(runs, codecs(sizes=(10,), threads=(1,))["rows"]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(RC, "svg.fonttype", "none")  # text stays text
        return draw_report(report, tmp_path_factory.mktemp("figures"))


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


def test_the_parts_of_a_step_add_up_to_it():
    documents = [run("topk", link="1gbit"), run("qsgd", link="1gbit")]
    documents[1]["time"].update(codec_ms=50.0, exposed_ms=7.0)  # a codec that mostly hides behind the backward pass
    report = report_of(Found([run_of(document, f"{k}.json") for k, document in enumerate(documents)], []))
    for group in report.groups:
        parts = [_part(group, name) for name in ("compute_ms", "codec_ms", "exposed_ms")]
        assert min(parts) >= 0
        assert sum(parts) == pytest.approx(group.compute_ms.median + group.exposed_ms.median)
