"""Measures the table of steps of the survey: a step of each task under each method, over its networks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from grace.compute import resources
from grace.predict.links import Link, link
from grace_bench import machine
from grace_bench.advise.run import advise
from grace_bench.advise.subject import of_task
from grace_bench.survey.row import SurveyRow
from grace_bench.survey.steps import LINKS, StepTable, TaskSteps, to_measure


def measure(
    rows: Iterable[SurveyRow], tell: Callable[[str], None] = lambda text: None, samples: int = 3, patience: float = 2.0
) -> StepTable:
    """Measures a step of each task in ``rows``, and what each method that ran on it adds, and plays both over the links.

    Args:
        rows: of the archive; runs on official data or on a GPU are left out.
        tell: is told what is being measured.
        samples: exchanges of each method that are timed.
        patience: seconds that one may take; of what takes longer only a part is measured.
    """
    over = {name: link(spec) for name, spec in LINKS.items()}
    tasks, busy = {}, False
    for (task, workers, batch), methods in to_measure(rows).items():
        tell(f"{task}: {len(methods)} methods")
        advice, seconds = advise(
            of_task(task, batch),
            list(over.values()),
            [workers],
            methods=methods,
            exactly=True,
            cores=1,
            samples=samples,
            patience=patience,
        )
        busy = busy or advice.busy
        known = {row.method for table in advice.tables for row in table.rows}
        tasks[task] = TaskSteps(
            workers, batch, advice.step_ms, _play(sorted(known & set(methods)), over, workers, seconds)
        )
    there = machine.versions()
    return StepTable(
        created=machine.now("minutes"),
        system=there["system"], cores=resources.cores(), grace=there["grace"],
        torch=there["torch"], busy=busy, tasks=tasks,
    )  # fmt: skip


def _play(
    methods: Iterable[str], over: Mapping[str, Link], workers: int, seconds: Callable[[str, Link, int], float]
) -> dict[str, dict[str, float]]:
    return {
        name: {link_name: float(f"{1000 * seconds(name, there, workers):.4g}") for link_name, there in over.items()}
        for name in methods
    }
