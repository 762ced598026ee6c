"""Documents of older versions, brought up to this one.

Version 1 knew no links, baselines, failures, targets or predictions. Version 2 kept an evaluation's metrics beside its
step, and gave a failed run every field of a successful one, each null.
"""

from __future__ import annotations

import functools
from typing import Any

import msgspec

from grace.errors import GraceError
from grace.registry import parse, recipe
from grace_bench.runs.results import SCHEMA, VERSION, Document, DocumentError, by_path, short

_OLDER = (1, 2)
_POINT = ("step", "epoch", "seconds", "sent_bytes", "train_loss")


def upgrade(document: dict[str, Any], version: object) -> Document:
    """The document of an older version as one of this version.

    Raises:
        DocumentError: no such version, or a field that is not as that version had it.
    """
    if version not in _OLDER or isinstance(version, bool):
        legal = ", ".join(map(str, (*_OLDER, VERSION)))
        raise DocumentError(
            f"{SCHEMA} of version {short(version)}; this Grace reads {legal}: read it with the one it is from"
        )
    changed = {**_identity(document), "version": VERSION}
    if isinstance(points := document.get("curve"), list):
        changed["curve"] = [_point(point) for point in points]
    prediction = document.get("prediction")
    if isinstance(prediction, dict) and not prediction.get("terms"):
        changed["prediction"] = {**prediction, "terms": None}
    if version == 1:
        changed["time"] = _times(document)
    try:
        upgraded: Document = msgspec.convert(changed, type=Document)
    except msgspec.ValidationError as error:
        raise DocumentError(by_path(error)) from error
    return upgraded


def _identity(document: dict[str, Any]) -> dict[str, Any]:
    method = document.get("method")
    known = {
        "status": "ok", "kind": "method", "recipe": method, "family": _family(method) if isinstance(method, str) else None,
        **{key: value for key, value in document.items() if value is not None or key in ("final", "best")},
    }  # fmt: skip
    if known["family"] == "baseline":
        known["kind"] = "baseline"
    return known


def _point(point: Any) -> Any:
    if not isinstance(point, dict):
        return point
    known = {"sent_bytes": 0, "train_loss": None, **{key: point[key] for key in _POINT if key in point}}
    return {**known, "metrics": {key: value for key, value in point.items() if key not in _POINT}}


def _times(document: dict[str, Any]) -> Any:
    """Adds the samples per second, which version 1 left to its reader."""
    times: Any = document.get("time")
    try:
        step = times["step_ms"]["median"]
        return {**times, "samples_per_second": 1000 * document["batch_per_worker"] * document["workers"] / step}
    except (KeyError, TypeError, ZeroDivisionError):  # the decoder says what is wrong with it
        return times


@functools.cache  # plug-ins are looked for in all installed packages each time
def _family(method: str) -> str:
    """Of a registered method; others, which version 1 does not describe, are ``other``."""
    try:
        return recipe(parse(method)[0]).family
    except GraceError:
        return "other"
