import json
from dataclasses import replace

import pytest

import grace
from grace.cli.explain import describe, explain, list_, sections_of, traffic_row, warnings_of
from grace.collectives import ring_bytes
from grace.errors import ConfigurationError


def test_sections_of_a_docstring():
    sections = sections_of("One line.\n\nAn equation.\n\nArgs:\n    a: first\n        more.\nBias:\n    none.")
    assert sections == {"": "One line.\n\nAn equation.", "Args": "a: first\n    more.", "Bias": "none."}


def test_none_moves_what_a_ring_all_reduce_moves():
    line = traffic_row(grace.method("none"), (1024, 1024), 4)
    assert line["sent_bytes"] == ring_bytes(4 << 20, 4)
    assert line["relative_to_fp32"] == 1
    assert line["relative_to_bf16"] == 2


@pytest.mark.parametrize(("method", "world", "warned"), [("topk:ratio=0.5", 2, False), ("topk:ratio=0.5", 8, True)])
def test_more_than_dense_is_said(method, world, warned):
    line = traffic_row(grace.method(method), (1024, 1024), world)
    assert any("fp32" in warning for warning in warnings_of([line])) == warned


def test_traffic_that_depends_on_the_data_is_not_invented():
    assert traffic_row(grace.method("threshold"), (1024, 1024), 4)["sent_bytes"] is None


def test_a_root_that_sends_more_counts():
    lone = grace.method("topk:communicator=parameterserver")
    line = traffic_row(lone, (1024, 1024), 8)
    assert (
        line["sent_bytes"] > traffic_row(grace.method("topk:communicator=scatterreduce"), (1024, 1024), 8)["sent_bytes"]
    )


def test_facts_are_those_of_the_method():
    fact = describe("topk:ratio=0.5")["facts"][0]
    assert fact["contraction"] == 0.5
    assert not fact["unbiased"]


def test_what_auto_chose_is_shown_from_a_file(tmp_path, capsys):
    from grace.auto.explain import Explanation
    from grace.cli.explain import explain
    from grace.errors import ConfigurationError, InputError

    explained = Explanation(
        "auto", 2, "gloo", 1.0, "measuring", 3, None, (), (), None, None, (), (), None, None, {}, 5.0, {}, {}
    )
    assert "auto, 4 workers, 2 replicas of 2 shards, over gloo" in str(replace(explained, workers=4, replicas=2))
    explained.save(tmp_path / "auto.json")
    explain(None, run=tmp_path / "auto.json")
    assert "auto, 2 workers over gloo: measuring" in capsys.readouterr().out
    explain(None, run=tmp_path / "auto.json", as_json=True)
    assert '"schema": "grace.auto"' in capsys.readouterr().out
    (tmp_path / "other.json").write_text("[]")
    with pytest.raises(InputError, match="no explanation of auto"):
        explain(None, run=tmp_path / "other.json")
    for both in ({"method": "topk", "run": tmp_path / "auto.json"}, {"method": None}):
        with pytest.raises(ConfigurationError, match="one of the two"):
            explain(**both)


def test_auto_is_explained_and_named_by_the_list(capsys):
    explain("auto:quality=exact")
    out = capsys.readouterr().out
    assert "auto:quality=exact" in out
    assert "share: of the run's time" in out
    explain("auto", as_json=True)
    assert json.loads(capsys.readouterr().out)["settings"] == "auto"
    list_()
    assert "grace explain auto" in capsys.readouterr().out


def test_a_setting_that_auto_does_not_have_is_refused():
    with pytest.raises(ConfigurationError, match="quality"):
        explain("auto:quality=best")
