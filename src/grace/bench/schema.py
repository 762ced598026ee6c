"""The form of a run's document, ``grace.result`` version 2, as a JSON Schema, and a check against it."""

from __future__ import annotations

from typing import Any

from grace.bench.extras import need

_NUMBER, _TEXT, _COUNT = {"type": "number"}, {"type": "string"}, {"type": "integer", "minimum": 0}


def _or_null(form: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [form, {"type": "null"}]}


def _object(**fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": fields, "required": list(fields)}


_SOME = _or_null(_NUMBER)
_IDENTITY: dict[str, dict[str, Any]] = {
    "schema": {"const": "grace.result"},
    "version": {"const": 2},
    "created": _TEXT,
    "kind": {"enum": ["method", "baseline"]},
    "family": _TEXT,
    "task": _TEXT,
    "method": _TEXT,
    "recipe": _TEXT,
    "workers": {"type": "integer", "minimum": 1},
    "seed": _COUNT,
    "granularity": {"enum": ["parameter", "bucket", "model"]},
    "link": _object(name=_TEXT, bits_per_second=_SOME, latency_seconds=_SOME),
    "transport": _TEXT,
    "config": {"type": "object"},
    "command": {"type": "array", "items": _TEXT},
}
_QUARTILES = _object(median=_NUMBER, low=_NUMBER, high=_NUMBER)
_RESULT: dict[str, dict[str, Any]] = {
    "environment": _object(python=_TEXT, torch=_TEXT, cores=_or_null(_COUNT), threads_per_worker=_COUNT),
    "data": _object(
        name=_TEXT, procedural={"type": "boolean"}, digest=_TEXT, source={"enum": ["embedded", "official", "synthetic"]}
    ),
    "paper_row": _or_null(_TEXT),
    "optimizer": _object(name=_TEXT, peak_lr=_NUMBER, lr_scale=_NUMBER, momentum=_SOME, why=_or_null(_TEXT)),
    "steps": _COUNT,
    "steps_per_epoch": _COUNT,
    "batch_per_worker": _COUNT,
    "model": _object(parameters=_COUNT, tensors=_COUNT, compressed_parameters=_COUNT, compressed_tensors=_COUNT),
    "metric": _TEXT,
    "better": {"enum": ["higher", "lower"]},
    "final": _SOME,
    "best": _SOME,
    "target": _or_null(_object(value=_NUMBER, seconds=_SOME, epoch=_SOME, step=_or_null(_COUNT))),
    "replicas_agree": _or_null({"const": True}),
    "nonfinite": _COUNT,
    "traffic": _object(
        rounds_per_step=_NUMBER, sent_bytes_per_step=_NUMBER, received_bytes_per_step=_NUMBER,
        fp32_allreduce_bytes_per_step=_NUMBER, relative_to_fp32=_SOME,
    ),
    "nic": _or_null(_object(sent_bytes_per_step=_NUMBER, received_bytes_per_step=_NUMBER)),
    "time": _object(
        step_ms=_QUARTILES, codec_ms=_SOME, exchange_ms=_SOME, exposed_ms=_NUMBER, compute_ms=_NUMBER,
        samples_per_second=_NUMBER, total_seconds=_NUMBER,
    ),
    "memory": _object(peak_rss_bytes=_COUNT),
    "prediction": _or_null(_object(step_ms=_NUMBER, relative_error=_NUMBER, terms={"type": "object"})),
    "curve": {
        "type": "array",
        "items": _object(epoch=_NUMBER, step=_COUNT, seconds=_NUMBER, sent_bytes=_COUNT, train_loss=_SOME),
    },
}  # fmt: skip

SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "grace.result, version 2",
    "oneOf": [
        _object(status={"const": "ok"}, error={"type": "null"}, **_IDENTITY, **_RESULT),
        _object(
            status={"const": "failed"}, error=_TEXT, **_IDENTITY, curve={"const": []},
            **{name: {"type": "null"} for name in _RESULT if name != "curve"},
        ),
    ],
}  # fmt: skip


def problems(document: Any) -> list[str]:
    """Where a document departs from the schema, in words; empty if it does not.

    Raises:
        MissingExtraError: jsonschema is not installed.
    """
    jsonschema = need("jsonschema", extra="bench")
    failed = isinstance(document, dict) and document.get("status") == "failed"
    validator = jsonschema.Draft202012Validator(SCHEMA["oneOf"][1 if failed else 0])
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(document)]
