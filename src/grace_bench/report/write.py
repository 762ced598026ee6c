"""Writes a report: one HTML page that needs no network, and its figures as files."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from grace.errors import ConfigurationError
from grace_bench.files import write_atomically
from grace_bench.report.contents import command_for, page_document, report_of
from grace_bench.report.read import read
from grace_bench.report.render import runtime
from grace_bench.report.theme import TONES, tone_rule

_SCRIPTS = ("core.js", "figures.js", "table.js", "main.js")


def page(document: Mapping[str, Any]) -> str:
    """The page as text. Everything is in it: styles, data, Vega.

    Raises:
        MissingExtraError: vl-convert is not installed.
    """
    parts = files("grace_bench.report") / "page"

    def text(name: str) -> str:
        return (parts / name).read_text(encoding="utf-8")

    data = json.dumps(document, separators=(",", ":"), allow_nan=False)
    fill = {
        "tones": "\n".join(tone_rule(tone) for tone in TONES),
        "css": text("page.css"),
        "data": data.replace("<", "\\u003c"),  # so that no name in a result can end the element
        "script": "\n".join(text(name) for name in _SCRIPTS),
        "vega": runtime().replace("</script", "<\\/script"),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: fill[match[1]], text("page.html"))


def write_report(directory: Path, out: Path | None = None, *, figures: bool = True) -> dict[str, Any]:
    """Writes the report of a directory of results; says what was written and what was left out.

    Args:
        directory: holds ``runs/*.json`` and, optionally, ``codecs*.json``.
        out: the page's file; ``report.html`` in the directory by default.
        figures: whether to draw the files in ``directory/figures`` too.

    Raises:
        ConfigurationError: nothing to report, or a place that cannot be written.
        MissingExtraError: vl-convert is not installed.
    """
    report = report_of(read(directory))
    out = out or directory / "report.html"
    document = page_document(report, str(directory))
    text = page(document)
    drawn: list[Path] = []
    try:
        write_atomically(out, text)
        if figures:
            from grace_bench.report.files import draw_report

            drawn = draw_report(document, directory / "figures")
    except OSError as error:
        raise ConfigurationError(
            f"cannot write {error.filename or out}: {error.strerror}; name another place for the page with --out, and leave "
            "the files out with --no-figures"
        ) from error
    return {
        "page": str(out),
        "bytes": len(text.encode()),
        "runs": sum(len(group.runs) for group in report.groups),
        "failed": [{"file": file, "method": run.method, "error": run.error} for file, run in report.failed],
        "skipped": [{"file": name, "reason": why} for name, why in report.skipped],
        "shown": [figure.name for figure in report.figures],
        "missing": [
            {"figure": figure.name, "needs": figure.needs, "command": command_for(figure, report, str(directory))}
            for figure in report.missing
        ],
        "figures": [str(path) for path in drawn],
    }
