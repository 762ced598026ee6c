import json

import pytest

from benchmarks.codecs.baseline import compare, read
from grace.errors import ConfigurationError
from tests.benchmarks.codecs.samples import document, row


def test_slower_is_what_lies_beyond_the_spread_of_both():
    then = document(row("a"), row("b"), row("c"), row("d"), row("gone"))
    now = document(row("a", ratio=2.0), row("b", ratio=1.05), row("c", ratio=0.5), row("d", ratio=1.2), row("new"))
    comparison = compare(now, then)
    assert [(c.method, c.verdict) for c in comparison.changes] == [
        ("a", "slower"), ("b", "same"), ("c", "faster"), ("d", "slower")
    ]  # fmt: skip
    assert [c.method for c in comparison.slower()] == ["a", "d"]
    assert [c.method for c in comparison.slower(30)] == ["a"]
    assert comparison.slower(100) == []
    assert [c.method for c in comparison.faster()] == ["c"]
    assert comparison.changes[0].percent == 100
    assert comparison.missing == ("encode, gone, 1000000 elements, 1 threads",)
    assert comparison.new == ("encode, new, 1000000 elements, 1 threads",)


def test_a_run_against_itself_has_no_changes():
    same = document(row("a"), row("a", threads=2), row("a", size=4096))
    comparison = compare(same, same)
    assert {change.verdict for change in comparison.changes} == {"same"}
    assert comparison.differs == {}


def test_other_machines_are_told():
    then, now = document(row()), document(row())
    then["environment"]["kernels"] = "reference"
    assert compare(now, then).differs == {"kernels": ("reference", "native-avx512")}
    assert compare(now, then).document()["differs"] == {"kernels": ["reference", "native-avx512"]}
    json.dumps(compare(now, then).document())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot be read: No such file"),
        ("{", "is not JSON"),
        ("[]", "is not a grace.codecs document of version 1"),
        ('{"schema": "grace.codecs", "version": 99}', "is not a grace.codecs document of version 1"),
        (json.dumps(document({**row(), "ratio": None})), "rows need operation, method, size, threads, ratio"),
        (json.dumps({**document(row()), "rows": [3]}), "rows need operation"),
    ],
)
def test_baselines_that_are_none(tmp_path, text, message):
    file = tmp_path / "codecs.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigurationError, match=message):
        read(file)


def test_a_baseline_is_read_as_it_was_written(tmp_path):
    (tmp_path / "codecs.json").write_text(json.dumps(document(row())))
    assert read(tmp_path / "codecs.json") == document(row())
