"""The suite tests itself: small runs of everything, each document checked, and the report written."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from grace.predict.links import link
from grace_bench.extras import MissingExtraError
from grace_bench.network.namespaces import why_not
from grace_bench.runs.plan import SweepPlan, check, check_memory
from grace_bench.runs.record import file_name
from grace_bench.runs.results import SCHEMA, VERSION, DocumentError, Failure, decode
from grace_bench.workers.sweep import Watcher, sweep

METHODS = ("none", "topk:ratio=0.01", "qsgd:bits=4", "powersgd:rank=2")
LINKS = ("none", "1gbit")
TASKS = ("digits", "grace_bench.tasks.digits:DigitsWide")  # by its name, and as a task of a user's own is named
STEPS, WORKERS = 12, 2


def run(out: Path, watch: Callable[[int], AbstractContextManager[Watcher]]) -> dict[str, Any]:
    """Runs the checks; returns what was checked, and what is wrong, as lists of lines. Methods run over every link, the
    baselines and the second task without one.

    Args:
        out: folder of results.
        watch: makes the watcher of that many runs.
    """
    refused = why_not(link(LINKS[1]))
    links = LINKS[:1] if refused else LINKS
    common = {"steps": STEPS, "evaluations": 2}
    plans = [
        SweepPlan(TASKS[:1], (), (WORKERS,), LINKS[:1], common=common),
        SweepPlan(TASKS[:1], METHODS, (WORKERS,), links, baselines=(), common=common),
        SweepPlan(TASKS[1:], METHODS[:1], (WORKERS,), LINKS[:1], baselines=(), common=common),
    ]
    configs = [config for plan in plans for config in plan.runs()]
    check(configs)
    check_memory(configs)
    with watch(len(configs)) as watcher:
        runs = sweep(configs, out, watcher, command=["smoke"])
    summary, wrong = _make_report(out, len(runs))
    for ended in runs:
        name = file_name(ended.config)
        wrong += [f"{name}: {problem}" for problem in _find_problems(out / "runs" / name)]
    checked = [
        f"{len(runs)} runs, {len(links)} links: each document has the form of {SCHEMA}, version {VERSION}",
        summary,
    ]
    if refused:
        checked.append(f"no link was made: {refused}")
    return {"checked": checked, "problems": wrong}


def _find_problems(file: Path) -> list[str]:
    try:
        document = decode(file.read_bytes())
    except DocumentError as error:
        return [str(error)]
    if isinstance(document, Failure):
        return [document.error]
    if document.kind == "baseline" or document.link.name == LINKS[0]:
        return []
    # the interface must have counted at least what the collectives say they moved
    told = document.traffic.sent_bytes_per_step
    seen = 0.0 if document.nic is None else document.nic.sent_bytes_per_step
    return [] if seen >= told else [f"the interface counted {seen:.0f} bytes a step, the collectives {told:.0f}"]


def _make_report(out: Path, runs: int) -> tuple[str, list[str]]:
    """Writes the report; returns a remark about it, and what is wrong with it."""
    from grace_bench.report.write import write_report

    try:
        report = write_report(out, None, figures=False)
    except MissingExtraError as error:
        return f"no report: {error}", []
    wrong = [f"report: {report['runs']} of {runs} runs are in it"] if report["runs"] != runs else []
    wrong += [f"report: {entry['file']} was left out: {entry['reason']}" for entry in report["skipped"]]
    if "<html" not in Path(report["page"]).read_text()[:2000].lower():
        wrong.append(f"report: {report['page']} is no page")
    return f"report: {report['page']}", wrong
