import json
import re
import sys

import pytest
from typer.testing import CliRunner

from grace.cli.app import app
from grace.errors import ConfigurationError
from grace_bench.report.write import write_report
from tests.unit.grace_bench.report.samples import run, write


def test_the_page_holds_everything_and_asks_for_nothing(tmp_path):
    nasty = "</script><script>alert(1)</script>"
    write(tmp_path, [run(nasty), run("dgc", error=nasty)])
    done = write_report(tmp_path, figures=False)
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert done["page"] == str(tmp_path / "report.html")
    assert done["bytes"] == len(text.encode())
    own, _, library = text.partition('<script type="module">')
    assert library
    assert nasty not in text
    assert not re.search(r"<(link|script|img|iframe)[^>]*\b(src|href)=\"(?!data:)", own)
    assert "@import" not in own
    assert "default-src 'none'" in own
    data = json.loads(re.search(r'id="data">(.*?)</script>', own, flags=re.DOTALL)[1])
    assert data["methods"][0]["name"] == nasty
    assert data["failed"][0]["error"] == nasty


def test_the_command_writes_the_page_and_says_what_is_not_in_it(tmp_path):
    write(tmp_path, [run(), run("dgc", error="Traceback\nValueError: no")])
    (tmp_path / "runs" / "broken.json").write_text("{")
    out = tmp_path / "pages" / "a.html"
    done = CliRunner().invoke(app, ["report", str(tmp_path), "--out", str(out), "--no-figures"])
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith(f"{out}: 1 runs, 4 figures")
    assert "failed: runs/0001.json (dgc): ValueError: no" in done.stderr
    assert "left out: runs/broken.json: not JSON" in done.stderr
    assert f"grace bench codecs --json > {tmp_path}/codecs.json" in done.stderr
    assert out.exists()
    assert not (tmp_path / "figures").exists()


def test_the_command_writes_json(tmp_path):
    write(tmp_path, [run()])
    done = CliRunner().invoke(app, ["report", str(tmp_path), "--json"])
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert (document["runs"], document["failed"], document["skipped"]) == (1, [], [])
    assert len(document["figures"]) == 2 * len(document["shown"]) == 8
    assert [row["figure"] for row in document["missing"]] == ["codec-latency", "links", "prediction"]


def test_nothing_to_report_is_an_error_in_a_line(tmp_path):
    done = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert done.exit_code == 1
    assert done.stderr.startswith(f"error: {tmp_path} holds no results")
    assert list(tmp_path.iterdir()) == []


def test_without_its_extra_the_command_says_what_to_install(tmp_path, monkeypatch):
    write(tmp_path, [run()])
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    done = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert done.exit_code == 1
    assert "pip install 'grace-dl[bench]'" in done.stderr
    assert not (tmp_path / "report.html").exists()


def test_a_place_that_cannot_be_written_is_an_error_with_the_remedy(tmp_path):
    write(tmp_path, [run()])
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match=r"cannot write .*file.*--out"):
        write_report(tmp_path, tmp_path / "file" / "page.html", figures=False)
