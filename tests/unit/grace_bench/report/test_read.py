import json

import pytest

from grace.errors import ConfigurationError
from grace_bench.report.contents import is_baseline
from grace_bench.report.read import codec_rows, read
from tests.unit.grace_bench.report.samples import codecs, run, run_of, write


def test_a_directory_is_read_with_a_reason_for_every_file_that_is_not(tmp_path):
    write(tmp_path, [run(), run("qsgd:bits=4", error="rank 0: RuntimeError: no space left")], codecs(sizes=(10,)))
    runs = tmp_path / "runs"
    (runs / "cut.json").write_text('{"schema": "grace.result", ')
    (runs / "bytes.json").write_bytes(b"\xff\xfe\x00")
    (runs / "list.json").write_text("[1, 2]")
    (runs / "deep.json").write_text("[" * 100_000)
    (runs / "nan.json").write_text(json.dumps({**run(), "final": float("nan")}))
    (runs / "digits.json").write_text('{"schema": "grace.result", "version": ' + "9" * 5000 + "}")
    (runs / "huge.json").write_text(json.dumps({**run(), "final": 10**400}))
    (runs / "foreign.json").write_text('{"name": "package", "version": "1.0"}')
    (runs / "later.json").write_text(json.dumps({**run(), "version": 99}))
    (runs / "field.json").write_text(json.dumps({**run(), "time": {"step_ms": {"median": "fast"}}}))
    (runs / "kind.json").write_text(json.dumps({**run(), "time": 3}))
    (runs / "curve.json").write_text(json.dumps({**run(), "curve": [{"step": 1, "epoch": 0}]}))
    (runs / "seed.json").write_text(json.dumps({**run(), "seed": -1}))
    (tmp_path / "results.json").write_text('{"schema": "grace.comparison", "version": 1}')  # repeats the runs
    (runs / "folder.json").mkdir()
    loaded = read(tmp_path)
    assert [run.document.method for run in loaded.runs] == ["topk:ratio=0.01", "qsgd:bits=4"]
    assert loaded.runs[1].document.error == "rank 0: RuntimeError: no space left"
    assert len(loaded.codecs) == 2 * 2 * 13
    why = {name.removeprefix("runs/").removesuffix(".json"): reason for name, reason in loaded.skipped}
    for name, part in {
        "cut": "not JSON", "bytes": "not JSON", "list": "expected `object`, got `array`", "nan": "not JSON", "huge": "final",
        "foreign": "schema is None; legal: grace.result, grace.codecs", "later": "version 99; this Grace reads 3",
        "field": "time.step_ms.median: expected `float`, got `str`", "kind": "time: expected `object`, got `int`",
        "curve": "curve[0]: object missing required field `seconds`", "seed": "seed: expected `int` >= 0",
        "folder": "directory", "deep": "", "digits": "",
    }.items():  # fmt: skip
        assert part in why.pop(name), name
    assert why == {}


def test_an_empty_directory_is_an_error_that_says_what_to_do(tmp_path):
    with pytest.raises(ConfigurationError, match=r"no results; make results with: grace bench train .* --out"):
        read(tmp_path)


def test_a_directory_of_strangers_is_an_error_that_says_why(tmp_path):
    (tmp_path / "package.json").write_text("{}")
    with pytest.raises(
        ConfigurationError, match=r"1 files, none of which can be used:\n  package.json: not a document"
    ):
        read(tmp_path)


@pytest.mark.parametrize("name", ["nowhere", "file"])
def test_what_is_no_directory_is_an_error(tmp_path, name):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="is not a directory; legal"):
        read(tmp_path / name)


def test_a_document_is_read_whole():
    document = run("ddp-bf16", link="1gbit", procedural=True, seed=7)
    decoded = run_of(document).document
    assert is_baseline(decoded)
    assert (decoded.family, decoded.link.name, decoded.link.bits_per_second, decoded.seed) == (
        "baseline",
        "1gbit",
        1e9,
        7,
    )
    assert (decoded.data.procedural, decoded.data.name, decoded.target.value) == (True, "shapes", 0.9)
    assert decoded.time.exposed_ms == document["time"]["exposed_ms"]
    assert decoded.prediction.step_ms == document["prediction"]["step_ms"]
    assert len(decoded.curve) == 25


def test_uncompressed_training_is_a_baseline_of_the_report():
    assert is_baseline(run_of(run("none")).document)
    assert not is_baseline(run_of(run("dgc")).document)


def test_rows_of_codecs_without_a_time_are_left_out():
    rows = [
        {"operation": "copy", "method": None, "size": 5, "threads": 1, "ratio": 1.0},
        {"operation": "x", "size": 5, "threads": 1},
    ]
    (row,) = codec_rows(json.dumps({"version": 1, "rows": rows}))
    assert (row["method"], row["ratio"], row["microseconds"]) == ("", 1.0, None)
    with pytest.raises(ValueError, match=r"rows\[0\]: object missing required field `operation`"):
        codec_rows('{"version": 1, "rows": [{}]}')
