"""Judges the survey's findings by the archive: ``python -m docs.survey.findings`` writes docs/data/survey-findings.md, and
what an installed package knows of methods' quality.
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import grace
from benchmarks import verdicts
from benchmarks.comparison import SHARE, Compared, compare
from benchmarks.evidence import Source, chose_lr, gather, metrics_of, to_json, to_known
from benchmarks.verdicts import Verdict, name_of
from grace.auto import classes
from grace_bench.survey import evidence
from grace_bench.survey.archive import merge, read_archive
from grace_bench.survey.evidence import LOSS, SEEDS, TASKS, Quality
from grace_bench.survey.plan import Planned, read_plan
from grace_bench.survey.row import TRIAL, SurveyRow, is_algorithm
from grace_bench.survey.steps import LINKS, StepTable, read_steps

HERE = Path(__file__).parent
ARCHIVE, PLAN, STEPS = HERE / "archive.parquet", HERE / "plan.toml", HERE / "steps.json"
LONG = HERE / "long.parquet"  # runs of 5,000 steps, by long.toml
PAGE = HERE.parent / "data/survey-findings.md"
EVIDENCE = Path(evidence.__file__).with_name(evidence.FILE)


def judge(rows: Sequence[SurveyRow], steps: StepTable | None = None) -> list[Verdict]:
    """All verdicts. ``steps``: the table; what a busy machine measured decides nothing."""
    return verdicts.judge(compare(rows, steps), timed=steps is not None and not steps.busy)


def missing(rows: Sequence[SurveyRow], plan: Sequence[Planned]) -> list[str]:
    """A line of a table for each protocol and task of the plan: how many runs there are, and which methods have none."""
    there = {(row.protocol, row.task, row.method, row.seed) for row in rows}
    places: dict[tuple[str, str], list[tuple[str, int]]] = defaultdict(list)
    for run in (run for run in plan if not run.protocol.endswith(TRIAL)):
        method = grace.spell(grace.method(run.config.method))
        places[run.protocol, run.config.task].append((method, run.config.seed))
    lines = []
    for (protocol, task), wanted in places.items():
        have = [method for method, seed in wanted if (protocol, task, method, seed) in there]
        none = sorted({method for method, _ in wanted} - set(have))
        without = ", ".join(f"`{method}`" for method in none) if have else "all"
        lines.append(f"| {protocol} | `{task}` | {len(have)} of {len(wanted)} | {without or 'none'} |")
    return lines


def overturned(short: Sequence[SurveyRow], every: Sequence[SurveyRow]) -> list[str]:
    """A line for each method of which long runs say otherwise than ``short`` ones alone. ``every``: both."""
    tables = [(gather(rows), metrics_of(rows)) for rows in (short, every)]
    lines = []
    for name in sorted({name for of in tables[0][0].values() for name in of}):
        before, after = (evidence.judge(name, *table) for table in tables)
        if before is None or after is None or before.verdict == after.verdict:
            continue
        lines.append(
            f"- `{name}`: `{before.verdict}` by the shorter runs, as on {before.task} after {before.steps:,} steps; "
            f"`{after.verdict}` by those of {after.steps:,} steps, as on {after.task}."
        )
    return lines


def page(
    rows: Sequence[SurveyRow], plan: Sequence[Planned], steps: StepTable | None, every: Sequence[SurveyRow] = ()
) -> str:
    """The page, as Markdown. ``plan``: the runs that there are to be. ``every``: those of other archives too."""
    tasks = compare(rows, steps)
    otherwise = overturned(rows, every) if every else []
    hours = sum(row.cpu_seconds for row in rows) / 3600
    seeds = sum(compared.epochs.seeds >= SEEDS for of in tasks.values() for compared in of.values())
    trials = sum(row.protocol.endswith(TRIAL) for row in rows)
    lines = [
        "# Data: the survey's findings", "",
        "For judging methods by the quality and the bytes of many runs. `python -m docs.survey.findings` writes this page "
        "from [the archive](../survey/archive.parquet), which "
        "[`grace survey`](../concepts/survey.md) made from [the plan](../survey/plan.toml).", "",
        f"The archive has {len(rows)} runs, which took {hours:.2f} hours of one core; {trials} of them only chose a learning "
        f"rate. The plan has {len(plan)}; the others have not been run, and are not measured. In {seeds} places of the tables "
        f"a method has {SEEDS} seeds or more; one with fewer has no interval, and nothing is concluded from it. The plan was "
        "extended, and the rules of the verdicts were written, while the first runs were already there. `drive` and `eden` "
        "were run with what is now `rotation=shared`; with private rotations, the default since, decoding takes longer, and "
        "the error of the mean is smaller.", "",
        "## The survey's findings", "",
        "An interval is a 95 % bootstrap interval of the median over seeds. One method is better than another only where "
        "their intervals do not touch. Of three seeds the interval is their range, which holds the true median three times in "
        "four, not 95 times in a hundred, and of two equal methods one comes out as clearly better in one case of ten: it "
        f"takes more seeds to be surer. A finding about methods in general takes {TASKS} tasks. Of several lengths of a "
        f"task the longest counts of which both have {SEEDS} seeds, and of a pair of methods only a difference of more than "
        f"{100 * LOSS:g} % in the medians. The rules are in `benchmarks/verdicts.py`.", "",
        _about_steps(steps), "",
        "| finding | verdict | why |", "| --- | --- | --- |",
        *(f"| {verdict.finding} | **{verdict.verdict}** | {verdict.why} |" for verdict in judge(rows, steps)), "",
        *(["## Where long runs say otherwise", "", *otherwise, ""] if otherwise else []),
        "## How to read the tables", "",
        "Quality is that at the last evaluation: at equal epochs. *At equal bytes* is the quality when a worker had sent "
        f"{100 * SHARE:g} % of what fp32 sends in the whole run, on a line between two evaluations; whoever sends less in the "
        "whole run has its last quality. The schedule of the learning rate is that of the whole run for all. *Bytes* is what "
        "one worker sent in the whole run, as a share of fp32's. *To bf16's quality* is the time to the first evaluation "
        f"within {100 * LOSS:g} % of bf16's median.", "",
    ]  # fmt: skip
    for task, of in tasks.items():
        runs = [row for row in rows if (row.protocol, row.task, row.steps) == task]
        timed = any(compared.times for compared in of.values()) and steps is not None and not steps.busy
        heads = [f"to bf16's quality, {over}" for over in LINKS] if timed else []
        lines += [
            f"## {name_of(task)}",
            "",
            _about(runs[0]) + _rates(runs, rows),
            "",
            f"| {' | '.join(['method', 'quality', 'at equal bytes', 'bytes', *heads])} |",
            "| --- |" + " ---: |" * (3 + len(heads)),
        ]
        for name, compared in sorted(of.items(), key=lambda item: _place(item[0], item[1].epochs)):
            cells = [
                str(compared.epochs),
                str(compared.bytes),
                _share(compared.sent),
                *(_time(compared, over) for over in LINKS if timed),
            ]
            lines.append(f"| `{name}` | {' | '.join(cells)} |")
        lines.append("")
    lines += [
        "## What is not measured",
        "",
        "| protocol | task | runs | methods without any |",
        "| --- | --- | ---: | --- |",
    ]
    return "\n".join([*lines, *missing(rows, plan), ""])


def _place(name: str, quality: Quality) -> tuple[float, str]:
    return (-quality.median if quality.higher else quality.median), name


def _time(compared: Compared, over: str) -> str:
    wait = compared.times.get(over)
    if wait is None:
        return "-"
    if not math.isfinite(wait.median):
        return "not reached"
    if wait.low is None or wait.high is None:
        return f"{wait.median:.3g} s"
    ends = [f"{end:.3g}" if math.isfinite(end) else "not reached" for end in (wait.low, wait.high)]
    return f"{wait.median:.3g} s ({' to '.join(ends)})"


def _about_steps(steps: StepTable | None) -> str:
    if steps is None:
        return "No idle machine has measured the steps yet: of times nothing is decided."
    if steps.busy:
        return (
            "The machine that measured [the steps](../survey/steps.json) did other work: of times nothing is decided."
        )
    return (
        f"Times are those of [a table of steps](../survey/steps.json), which `grace survey steps` measured on "
        f"{steps.created[:10]} on an idle machine ({steps.system}, one core for each worker; Grace {steps.grace}, torch "
        f"{steps.torch}): the step without communication, the processor time of codecs, and the link model. They hold for "
        "such machines."
    )


def _about(row: SurveyRow) -> str:
    made = ", which a program makes" if row.procedural else ""
    epochs = row.steps / row.steps_per_epoch
    return (
        f"Protocol `{row.protocol}`: {row.workers} workers, {row.steps} steps of {row.batch} samples each ({epochs:.2g} "
        f"epochs). Quality is {row.metric}, {row.better} is better, on {row.data}{made} (digest `{row.digest}`). "
        f"Grace {row.grace}, "
        f"torch {row.torch}."
    )


def _rates(runs: Sequence[SurveyRow], rows: Sequence[SurveyRow]) -> str:
    """The learning rate that each method chose, if any, and whether a wider grid might have given a better one."""
    if not chose_lr(runs[0]) or runs[0].protocol.endswith(TRIAL):
        return ""
    tried = sorted(
        {row.peak_lr for row in rows if row.protocol == runs[0].protocol + TRIAL and row.task == runs[0].task}
    )
    words = []
    for rate in tried:
        methods = sorted({f"`{row.method}`" for row in runs if row.peak_lr == rate})
        edge = ", the least tried" if rate == tried[0] else ", the largest tried" if rate == tried[-1] else ""
        words += [f"{rate:.3g}{edge}, by {', '.join(methods)}"] if methods else []
    return f" Learning rates chosen: {'; '.join(words)}. Beyond the rates tried there may be a better one."


def _share(sent: float) -> str:
    return "-" if math.isnan(sent) else f"{sent:.3g}"


def read_all() -> tuple[list[SurveyRow], list[Source]]:
    """The rows of both archives, of which an installed package knows, and where they are from. Those of algorithms are left
    out: ``auto`` chooses methods.
    """
    archives = [(path, read_archive(path)) for path in (ARCHIVE, LONG) if path.exists()]
    every = [row for row in merge(*(rows for _, rows in archives)) if not is_algorithm(row.method)]
    return every, [Source.of(path, rows) for path, rows in archives]


if __name__ == "__main__":
    rows, (every, sources) = read_archive(ARCHIVE), read_all()
    written = (
        (PAGE, page(rows, read_plan(PLAN), read_steps(STEPS), every)),
        (EVIDENCE, to_json(every)),
        (classes.PATH, to_known(every, sources)),
    )
    for file, text in written:
        file.write_text(text, encoding="utf-8")
        sys.stdout.write(f"{file}\n")
