"""Judges the survey's findings by the archive: ``python docs/survey/findings.py`` writes docs/concepts/survey-findings.md, and
what an installed package knows of methods' quality.
"""

from __future__ import annotations

import itertools
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import grace
from grace.auto import classes
from grace_bench.survey import evidence
from grace_bench.survey.archive import read_archive
from grace_bench.survey.evidence import SEEDS, TASKS, Table, Task, gather
from grace_bench.survey.plan import Planned, read_plan
from grace_bench.survey.row import TRIAL, Row

HERE = Path(__file__).parent
ARCHIVE, PLAN = HERE / "archive.parquet", HERE / "plan.toml"
PAGE = HERE.parent / "concepts/survey-findings.md"
EVIDENCE = Path(evidence.__file__).with_name(evidence.FILE)
CONFIRMED, REFUTED, OPEN = "confirmed", "refuted", "not decidable here"


@dataclass(frozen=True)
class Verdict:
    """What the archive says of a finding, and why."""

    finding: str
    verdict: str
    why: str


def _pair(finding: str, better: str, worse: str, other: str = "") -> Callable[[Table], Verdict]:
    """The finding that one method is better than another on every task. ``other``: why what is
    here is another method than the survey's, which nothing here can judge.
    """
    better, worse = (grace.spell(grace.method(name)) for name in (better, worse))

    def judge(qualities: Table) -> Verdict:
        there = {task: (of[better], of[worse]) for task, of in qualities.items() if better in of and worse in of}
        against = [task for task, (one, two) in there.items() if two.beats(one)]
        judged = {task[1] for task, (one, two) in there.items() if one.low is not None and two.low is not None}
        said = [f"{_name(task)}: `{better}` {one}, `{worse}` {two}" for task, (one, two) in there.items()]
        if other:
            return Verdict(finding, OPEN, f"{other}: what is here is another method. {_join(said)}")
        if against:
            return Verdict(finding, REFUTED, f"the opposite holds clearly on {_names(against)}. " + _join(said))
        if len(judged) < TASKS:
            return Verdict(
                finding,
                OPEN,
                f"{SEEDS} seeds of both ended on {_count(len(judged), 'task')}; it takes {TASKS}. {_join(said)}",
            )
        if all(one.beats(two) for one, two in there.values() if one.low is not None and two.low is not None):
            return Verdict(finding, CONFIRMED, "clearly so on every task measured. " + _join(said))
        return Verdict(finding, OPEN, "the intervals touch on some tasks. " + _join(said))

    return judge


def _no_winner(qualities: Table) -> Verdict:
    finding = "No method wins everywhere"
    judged = _judged(qualities)
    if len({task[1] for task in judged}) < TASKS:
        return Verdict(
            finding, OPEN, f"methods with {SEEDS} seeds ended on {_count(len(judged), 'task')}; it takes {TASKS}"
        )
    names = set.intersection(*(set(of) for of in judged.values()))
    beaten = {name for of in judged.values() for name in names if any(of[o].beats(of[name]) for o in names)}
    for name in sorted(names):
        if all(of[name].beats(of[other]) for of in judged.values() for other in names - {name}):
            return Verdict(finding, REFUTED, f"`{name}` clearly beats all others on {_names(list(judged))}")
    if beaten == names:
        return Verdict(
            finding, CONFIRMED, f"each of {len(names)} methods is clearly beaten on one of {_names(list(judged))}"
        )
    rest = ", ".join(f"`{name}`" for name in sorted(names - beaten))
    return Verdict(finding, OPEN, f"on no task of {_names(list(judged))} is any method clearly better than {rest}")


def _architecture(qualities: Table) -> Verdict:
    finding = "The architecture decides which method is better"
    judged = _judged(qualities)
    for (here, one), (there, other) in itertools.combinations(judged.items(), 2):
        if here[1] == there[1]:
            continue
        for a, b in itertools.permutations(sorted(set(one) & set(other)), 2):
            if one[a].beats(one[b]) and other[b].beats(other[a]):
                why = f"`{a}` clearly beats `{b}` on {_name(here)}, and is clearly beaten by it on {_name(there)}"
                return Verdict(finding, CONFIRMED, why)
    return Verdict(
        finding, OPEN, f"no two methods with {SEEDS} seeds change places clearly between {_count(len(judged), 'task')}"
    )


def _open(finding: str, why: str) -> Callable[[Table], Verdict]:
    return lambda qualities: Verdict(finding, OPEN, why)


_TIMES = "the archive has qualities and bytes, and no times; [what was measured](results.md) has some, of one machine"
FINDINGS: tuple[Callable[[Table], Verdict], ...] = (
    _pair("Error feedback lifts top-k at 1 %", "topk", "topk:memory=none"),
    _pair("Error feedback lifts random-k at 1 %", "randomk", "randomk:scale=false,memory=none"),
    _pair(
        "Error feedback hurts QSGD",
        "qsgd:bits=4",
        "qsgd:bits=4,memory=residual",
        other="around a memory Grace scales QSGD down to a contraction (`shrink=true`), which the survey did not",
    ),
    _open(
        "Error feedback hurts sign methods",
        "signs without a scale are refused a memory, whose error would grow without bound: there is nothing to compare",
    ),
    _no_winner,
    _architecture,
    _open("Compression ratio and speed-up do not go together", _TIMES),
    _open("At 10 Gbit/s few methods pay", _TIMES),
    _open("At 1 Gbit/s random-k, threshold, DGC, top-k and PowerSGD rank in this order", _TIMES),
)


def judge(rows: Sequence[Row]) -> list[Verdict]:
    """All verdicts."""
    qualities = gather(rows)
    return [finding(qualities) for finding in FINDINGS]


def _judged(qualities: Table) -> Table:
    """The methods with an interval, of the tasks that have two."""
    kept = {task: {name: one for name, one in of.items() if one.low is not None} for task, of in qualities.items()}
    return {task: of for task, of in kept.items() if len(of) > 1}


def missing(rows: Sequence[Row], plan: Sequence[Planned]) -> list[str]:
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
        said = ", ".join(f"`{method}`" for method in none) if have else "all"
        lines.append(f"| {protocol} | `{task}` | {len(have)} of {len(wanted)} | {said or 'none'} |")
    return lines


def page(rows: Sequence[Row], plan: Sequence[Planned]) -> str:
    """The page, as Markdown. ``plan``: the runs that there are to be."""
    tasks = gather(rows)
    hours = sum(row.cpu_seconds for row in rows) / 3600
    seeds = sum(one.seeds >= SEEDS for of in tasks.values() for one in of.values())
    lines = [
        "# What the runs say", "",
        "`python docs/survey/findings.py` writes this page from [the archive](../survey/archive.parquet), which "
        "[`grace survey`](survey.md) made from [the plan](../survey/plan.toml).", "",
        f"The archive has {len(rows)} runs, which took {hours:.2f} hours of one core. The plan has {len(plan)}; the others "
        f"have not been run, and are not measured. In {seeds} places of the tables a method has {SEEDS} seeds; one with fewer "
        "has no interval, and nothing is concluded from it. The plan was extended, and the rules of the verdicts were "
        "written, while the first runs were already there.", "",
        "## The survey's findings", "",
        f"An interval is a 95 % bootstrap interval of the median over seeds. One method is better than another only where "
        f"their intervals do not touch. Of three seeds the interval is their range, which holds the "
        "true median three times in four, not "
        "95 times in a hundred: it takes more seeds to be surer. A "
        f"finding about methods in general takes {TASKS} tasks.", "",
        "| finding | verdict | why |", "| --- | --- | --- |",
        *(f"| {one.finding} | **{one.verdict}** | {one.why} |" for one in judge(rows)), "",
    ]  # fmt: skip
    for task, of in tasks.items():
        runs = [row for row in rows if (row.protocol, row.task, row.steps) == task]
        lines += [
            f"## {_name(task)}",
            "",
            _about(runs[0]),
            "",
            "| method | quality | bytes, of fp32's |",
            "| --- | ---: | ---: |",
        ]
        order = sorted(of.items(), key=lambda item: (-item[1].median if item[1].higher else item[1].median, item[0]))
        lines += [f"| `{name}` | {one} | {_share(one.sent)} |" for name, one in order] + [""]
    lines += [
        "## What is not measured",
        "",
        "| protocol | task | runs | methods without any |",
        "| --- | --- | ---: | --- |",
    ]
    return "\n".join([*lines, *missing(rows, plan), ""])


def _about(row: Row) -> str:
    made = ", which a program makes" if row.procedural else ""
    epochs = row.steps / row.steps_per_epoch
    return (
        f"Protocol `{row.protocol}`: {row.workers} workers, {row.steps} steps of {row.batch} samples each ({epochs:.2g} "
        f"epochs). Quality is {row.metric}, {row.better} is better, on {row.data}{made} (digest `{row.digest}`). "
        f"Grace {row.grace}, "
        f"torch {row.torch}."
    )


def _share(sent: float) -> str:
    return "-" if np.isnan(sent) else f"{sent:.3g}"


def _name(task: Task) -> str:
    return f"{task[1]}, {task[2]} steps"


def _names(tasks: Sequence[Task]) -> str:
    return "; ".join(map(_name, tasks))


def _join(parts: Sequence[str]) -> str:
    return "; ".join(parts)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


if __name__ == "__main__":
    rows = read_archive(ARCHIVE)
    written = (
        (PAGE, page(rows, read_plan(PLAN))),
        (EVIDENCE, evidence.to_json(rows)),
        (classes.PATH, evidence.to_known(rows)),
    )
    for file, text in written:
        file.write_text(text, encoding="utf-8")
        sys.stdout.write(f"{file}\n")
