"""A survey's archive: what is added, merged, read again, drawn, and refused."""

import json

import pyarrow.parquet as parquet
import pytest

from grace_bench.runs.results import DocumentError, encode
from grace_bench.survey.archive import add, join, merge, read_archive, read_runs, write_archive
from grace_bench.survey.plan import read_plan, shard
from grace_bench.survey.row import decode_row, same_run
from grace_bench.survey.run import run_all
from tests.unit.grace_bench.survey.tiny import HERE, assert_one_line, call, change


def test_two_shards_merged_are_the_whole(tmp_path, whole):
    runs, archive, other = read_plan(whole[0] / "plan.toml"), tmp_path / "parts.parquet", tmp_path / "whole.parquet"
    for part in ("1/2", "2/2"):
        run_all(shard(runs, part), tmp_path / part[0], lambda done: None)
        add(tmp_path / part[0], archive)
    assert add(whole[0], other) == (6, 6)
    assert all(map(same_run, read_archive(archive), read_archive(other)))
    assert add(tmp_path / "1", archive) == (0, 6), "a run that is there is not there twice"


def test_an_archive_gives_back_its_rows(tmp_path, whole):
    write_archive(tmp_path / "a.parquet", whole[1])
    assert sorted(map(encode, read_archive(tmp_path / "a.parquet"))) == sorted(map(encode, whole[1]))


def test_archives_and_folders_are_merged(tmp_path, whole):
    first, second = tmp_path / "1.parquet", tmp_path / "2.parquet"
    write_archive(first, whole[1][:4])
    write_archive(second, whole[1][3:])
    done = call("merge", first, second, whole[0], "--out", tmp_path / "all.parquet")
    assert done.stdout.endswith("all.parquet: 6 runs of 3 parts\n")
    add(whole[0], tmp_path / "other.parquet")
    assert (tmp_path / "all.parquet").read_bytes() == (tmp_path / "other.parquet").read_bytes()
    write_archive(second, [change(whole[1][0], final=0.5)])
    with pytest.raises(DocumentError, match="is there twice, and the two differ"):
        join([first, second], tmp_path / "new.parquet")
    assert not (tmp_path / "new.parquet").exists()


def test_an_archive_is_drawn_and_its_steps_are_measured(tmp_path, whole, monkeypatch):
    monkeypatch.setattr("grace_bench.report.write.runtime", lambda: "vega")
    archive, steps = tmp_path / "a.parquet", tmp_path / "steps.json"
    add(whole[0], archive)
    done = call("steps", archive, "--out", steps, "--samples", "1", "--json")
    assert done.exit_code == 0, done.output
    assert [*json.loads(steps.read_text())["tasks"]] == [f"{HERE}:Tiny"]
    for more in ((), ("--steps", steps)):
        done = call("report", archive, "--out", tmp_path / "a.html", *more)
        assert done.stdout.startswith(f"{tmp_path / 'a.html'}: 6 runs, ")
    (tmp_path / "b.json").write_text("{}")
    done = call("report", archive, "--out", tmp_path / "b.html", "--steps", tmp_path / "b.json")
    assert isinstance(done.exception, DocumentError) or "is no table of steps" in done.output
    assert not (tmp_path / "b.html").exists()


def test_what_cannot_be_added_is_one_line_and_nothing_is_written(tmp_path, whole):
    archive = tmp_path / "a.parquet"
    add(whole[0], archive)
    before, row = archive.read_bytes(), whole[1][0]
    other = json.dumps(json.loads(encode(row)) | {"version": 9})
    for text, named in (
        (encode(change(row, final=0.5)), "is there twice"),
        (encode(change(row, seed=7, digest="f" * 16)), "has embedded data ffff"),
        (encode(change(row, seed=7, method="topp")), "topp"),
        (other, "version 9"),
        ("{", "not JSON"),
    ):
        folder = tmp_path / named.replace(" ", "-")
        (folder / "runs").mkdir(parents=True)
        (folder / "runs" / "one.json").write_text(text)
        done = call("add", folder, "--archive", archive)
        assert_one_line(done, named)
        assert archive.read_bytes() == before


def test_runs_that_do_not_fit_are_refused_and_nothing_is_written(tmp_path, whole):
    archive, row = tmp_path / "a.parquet", whole[1][0]
    add(whole[0], archive)
    before = archive.read_bytes()
    for name, changed, match in (
        ("twice", change(row, final=0.5), "is there twice, and the two differ"),
        (
            "data",
            change(row, seed=7, digest="f" * 16),
            "has embedded data f+, where other runs of .* have 0123456789abcdef",
        ),
    ):
        (tmp_path / name / "runs").mkdir(parents=True)
        (tmp_path / name / "runs" / "one.json").write_text(encode(changed))
        with pytest.raises(DocumentError, match=match):
            add(tmp_path / name, archive)
        assert archive.read_bytes() == before


def test_official_data_are_rows_of_their_own(whole):
    official = change(whole[1][0], source="official", digest="f" * 16)
    assert len(merge(whole[1], [official])) == 7


def test_another_version_is_refused(tmp_path, whole):
    other = json.loads(encode(whole[1][0])) | {"version": 2}
    with pytest.raises(DocumentError, match=r"'grace.survey', version 2; legal: 'grace.survey', version 1"):
        decode_row(json.dumps(other))
    path = tmp_path / "a.parquet"
    write_archive(path, whole[1])
    table = parquet.read_table(path)
    parquet.write_table(table.replace_schema_metadata({"grace.survey": "2"}), path)
    with pytest.raises(DocumentError, match=r"an archive of grace.survey version 2; legal: 1"):
        read_archive(path)
    path.write_text("no")
    with pytest.raises(DocumentError, match="is no Parquet file"):
        read_archive(path)


def test_a_folder_without_runs(tmp_path):
    with pytest.raises(DocumentError, match="make them with grace survey run PLAN"):
        read_runs(tmp_path)
