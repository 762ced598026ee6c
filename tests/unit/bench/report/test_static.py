import pytest

from grace.bench.report.contents import report_of
from grace.bench.report.read import Found, run_of
from grace.bench.report.static import draw_report
from tests.unit.bench.report.samples import codecs, run


@pytest.fixture
def report():
    methods = ("none", "topk:ratio=0.01", "no-communication")
    documents = [
        run(method, link=link, seed=seed, procedural=True, lower=True, target=130.0)
        for method in methods for link in ("1gbit", "10gbit") for seed in (0, 1)
    ]  # fmt: skip
    documents += [run("$mine_$", link="1gbit", task="_odd/task")]
    runs = [run_of(document, f"{k}.json") for k, document in enumerate(documents)]
    return report_of(Found(runs, codecs(sizes=(10,), threads=(1,))["rows"]))


def test_every_figure_is_a_file_twice(tmp_path, report):
    written = draw_report(report, tmp_path)
    names = {path.stem for path in written if path.suffix == ".svg"}
    per_task = {"quality-epoch-time", "quality-throughput", "quality-bytes", "step-time", "links", "prediction"}
    assert names == {f"digits-{name}" for name in per_task} | {"codec-latency"} | {
        f"_odd_task-{name}" for name in per_task - {"links"}
    }  # fmt: skip
    assert {path.stem for path in written if path.suffix == ".png"} == names
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in written if path.suffix == ".png")


def test_procedural_data_are_marked_in_every_figure_that_shows_them(tmp_path, report, monkeypatch):
    import matplotlib

    monkeypatch.setitem(matplotlib.rcParams, "svg.fonttype", "none")  # text stays text
    for path in draw_report(report, tmp_path):
        if path.suffix == ".svg" and path.name.startswith("digits-"):
            assert "procedural data: shapes" in path.read_text(encoding="utf-8"), path.name
        if path.suffix == ".svg" and path.name.startswith("codec"):
            assert "procedural" not in path.read_text(encoding="utf-8")
