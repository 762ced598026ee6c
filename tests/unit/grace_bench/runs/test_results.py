import json

import pytest

from grace_bench.runs.config import RunConfig
from grace_bench.runs.record import failure_of
from grace_bench.runs.results import VERSION, DocumentError, Nic, decode, encode, quartiles, schema
from tests.unit.grace_bench.documents import document

FAILED = failure_of(RunConfig("digits", "topk", link="1gbit"), "why", ["grace"])


def plain(**changes):
    return {**json.loads(encode(document())), **changes}


@pytest.mark.parametrize("fine", [document(), FAILED, document(nic=Nic(1.0, 2)), document(final=None)])
def test_a_document_is_read_as_it_was_written(fine):
    assert decode(encode(fine)) == fine


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"time": None}, "time: expected `object`"), ({"workers": 0}, "workers: "), ({"link": {"name": 3}}, "link.name: "),
        ({"curve": [{"step": -1}]}, "curve[0].step: "), ({"replicas_agree": 1}, "replicas_agree: "),
        ({"time": {"step_ms": {"median": "fast"}}}, "time.step_ms.median: expected `float`, got `str`"),
        ({"status": "fine"}, "status: "), ({"version": 99}, "grace.result of version 99; this Grace reads 3"),
        ({"version": True}, "grace.result of version True"), ({"schema": "x"}, "not a result: its schema is 'x'"),
        ({"final": 10**400}, "final: "),
    ],
)  # fmt: skip
def test_what_departs_from_the_form_is_named(change, where):
    with pytest.raises(DocumentError) as told:
        decode(json.dumps(plain(**change)))
    assert str(told.value).startswith(where)


@pytest.mark.parametrize("text", [b"", b"{", b"\xff\xfe", b"[1]", b"3", b"[" * 100_000, b'{"schema": NaN}'])
def test_what_is_no_document_is_an_error(text):
    with pytest.raises(DocumentError):
        decode(text)


def test_a_missing_field_is_named():
    broken = plain()
    del broken["traffic"]
    with pytest.raises(DocumentError, match="missing required field `traffic`"):
        decode(json.dumps(broken))


def test_the_schema_is_that_of_the_types():
    form = schema()
    assert form["title"] == f"grace.result, version {VERSION}"
    required = form["$defs"]["Result"]["required"]
    assert {"task", "traffic", "time", "curve"} <= set(required)
    assert form["$defs"]["Result"]["properties"]["workers"] == {"type": "integer", "minimum": 1}


def test_quartiles():
    assert quartiles([1.0, 2.0, 3.0, 4.0, 5.0]) == {"low": 2.0, "median": 3.0, "high": 4.0}
    assert quartiles([7.0]) == {"low": 7.0, "median": 7.0, "high": 7.0}
