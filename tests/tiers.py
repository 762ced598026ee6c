"""Tiers of tests by path, groups for the processes of pytest-xdist.

- Each test belongs to one tier, which is named like its command: `make test`, `make triton`, `make doors`, `make laws` and
  `make bench-test`. Its path says which (:data:`TIERS`); what runs in Triton's interpreter is of ``triton`` wherever it is,
  and what nothing names, of ``test``. ``tier(name)`` moves a single test or case. `make gate`, which CI calls, runs them all.
- ``night(defect, ...)``: no tier runs the test, and `make night` does. It names the defects by which the gate shows that it
  catches in its place what this test is for: each is in :data:`CAUGHT`.
- ``xdist_group(name)``: tests of a group run in one process, one after the other. Others go with their file, as their
  fixtures do; a file that says ``SPREAD = True`` shares nothing among its tests, and each of its functions goes alone.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
POOLS = "pools"
DEFAULT = "test"
# Tests by the beginning of their paths; the longest that fits counts.
TIERS = {
    DEFAULT: (),
    "triton": (
        "tests/unit/kernels/test_triton",
        "tests/unit/methods/common/test_waiting_bucket.py",
        "tests/laws/test_asked_at_once",
        "tests/laws/test_compositions",
        "tests/laws/test_counted",
        "tests/laws/test_every_size",
        "tests/laws/test_factors",
        "tests/laws/test_launches",
        "tests/laws/test_many",
        "tests/laws/test_nonfinite_factors",
        "tests/laws/test_operations",
        "tests/laws/test_single_tensors",
        "tests/laws/test_triton",
    ),
    "doors": ("tests/adapters/", "tests/distributed/", "tests/grace_dl/", "tests/unit/transports/test_mpi.py"),
    "laws": ("tests/fidelity/", "tests/laws/test_defaults.py"),
    "bench-test": ("tests/benchmarks/", "tests/additions/", "tests/unit/grace_bench/", "tests/docs/test_site.py"),
}
_TIER_BY_PATH = {start: tier for tier, starts in TIERS.items() for start in starts}
# By these texts in a file one knows, without importing it, that tests in it may be of another tier than its path says: by the
# first of any tier, by the others of one.
MOVES, INTERPRETER = "mark.tier(", "interpreter"
MOVES_TO = {"triton": INTERPRETER, "laws": "by_tier("}  # the latter is of tests/laws/cases.py
# What a test that stays catches: the defect, and the test that shows it.
CAUGHT = {
    "raw gradient": "tests/adapters/test_same_answer.py::test_a_door_with_a_defect_is_caught",
    "last tensor skipped": "tests/adapters/test_same_answer.py::test_a_door_with_a_defect_is_caught",
    "means of the step before": "tests/adapters/test_same_answer.py::test_a_door_with_a_defect_is_caught",
    "mean without 1/W": "tests/distributed/test_transport.py::test_a_transport_with_a_defect_is_caught",
    "rows in another order": "tests/distributed/test_transport.py::test_a_transport_with_a_defect_is_caught",
    "maximum that adds": "tests/distributed/test_transport.py::test_a_transport_with_a_defect_is_caught",
    "another root": "tests/distributed/test_transport.py::test_a_transport_with_a_defect_is_caught",
    "a rank that leaves and says nothing": (
        "tests/distributed/test_transport.py::test_a_transport_without_the_alarm_is_caught_by_its_deadline"
    ),
    **dict.fromkeys(
        ("Hasty", "Hidden", "Neighborly", "RestCosts", "Seedless", "Sensitive"),
        "tests/laws/test_mutants.py::test_the_law_catches_the_mutant",
    ),
    "NeverUpdated": "tests/laws/test_mutants.py::test_the_law_catches_the_mutant",
    "Unscaled": "tests/laws/test_mutants.py::test_the_law_catches_the_mutant",
    "SumInsteadOfMean": "tests/laws/test_mutants.py::test_the_law_catches_the_mutant",
    "another training": "tests/unit/grace_bench/toolkits/test_toolkits.py::test_a_toolkit_with_a_defect_is_caught",
    "another model": "tests/unit/grace_bench/toolkits/test_toolkits.py::test_a_toolkit_with_a_defect_is_caught",
    "fused products": "tests/unit/kernels/test_triton.py::test_the_compiler_takes_every_kernel_and_changes_no_bits",
    "a Triton kernel that leaves out the memory": "tests/unit/kernels/test_triton_lists.py::test_mutants_are_caught",
    "a Triton kernel that does not run": (
        "tests/unit/kernels/test_triton_skipped.py::test_a_kernel_that_does_not_run_is_missed"
    ),
    "a sum that is written too far": "tests/laws/test_many_sanitized.py::test_mutants_are_caught",
    "a pass too few": "tests/unit/kernels/test_triton_passes.py::test_a_pass_too_few_is_noticed",
    "asks at some size": "tests/laws/test_no_sync.py::test_mutants_are_caught",
    **dict.fromkeys(
        ("a dropped exchange that stays", "an accumulated exchange that is undone"),
        "tests/laws/test_unapplied.py::test_mutants_are_caught",
    ),
    "padding_not_zeroed": "tests/laws/test_plans.py::test_each_mutant_is_caught",
    "a gradient in fresh memory": "tests/benchmarks/overhead/test_handing_over.py::test_rows_with_a_defect_are_caught",
    "a checksum of the first half": "tests/laws/test_checksums.py::test_the_law_catches",
    "a memory that overflowed": "tests/laws/test_overflow.py::test_mutants_are_caught",
    "a tensor of the default dtype": "tests/laws/test_defaults.py::test_mutants_are_caught",
    "a digest that misses a bit": "tests/laws/test_drift.py::test_the_law_catches",
    "a run half written": "tests/unit/grace_bench/survey/test_runs.py::test_a_run_half_written_is_no_run",
    "a page that shows runs over other links, too": (
        "tests/unit/grace_bench/report/test_page.py::test_a_page_with_a_defect_is_caught"
    ),
    "a worker that outlives its command": "tests/unit/grace_bench/test_scratch.py::test_who_does_not_watch_is_caught",
    "a checkpoint of sums": "tests/distributed/test_sharded_checkpoints.py::test_a_checkpoint_with_a_defect_is_caught",
    "a wrong number in the table of additions": "tests/additions/test_additions.py::test_a_table_that_undercounts_is_caught",
    "a killed rank that nobody hears of": (
        "tests/distributed/test_sharded_kills.py::test_when_a_worker_is_killed_no_other_hangs"
    ),
    "a kernel that differs on another processor": "tests/unit/kernels/test_arm.py::test_a_kernel_that_differs_is_named",
    "lines that decide alone": "tests/unit/predict/test_probe.py::test_lines_that_decide_alone_are_caught",
    "a step that counts on some only": "tests/unit/run/test_elastic.py::test_a_step_with_a_defect_is_caught",
}
# Groups that take longest begin first, so that none is left to one process at the end; by the beginning of their names.
FIRST = (
    POOLS, "tests/adapters/test_same_answer", "tests/adapters/", "tests/distributed/", "toolkits", "tests/fidelity/",
    "tests/unit/kernels/test_triton", "tests/docs/", "tests/unit/grace_bench/", "tests/laws/",
)  # fmt: skip


@cache
def find_tier_of_file(file: Path) -> str:
    """The tier of the tests in a file."""
    name = file.relative_to(ROOT).as_posix()
    return _TIER_BY_PATH.get(
        max((start for start in _TIER_BY_PATH if name.startswith(start)), key=len, default=""), DEFAULT
    )


def find_tier(item: pytest.Item) -> str:
    """The tier of a test: its mark's, that of Triton's interpreter if it runs in it, its file's.

    Raises:
        UsageError: the mark names no tier.
    """
    mark = item.get_closest_marker("tier")
    if mark is not None:
        if len(mark.args) != 1 or mark.args[0] not in TIERS:
            raise pytest.UsageError(f"{item.nodeid}: tier{mark.args} names none of {list(TIERS)}")
        return str(mark.args[0])
    return "triton" if INTERPRETER in getattr(item, "fixturenames", ()) else find_tier_of_file(item.path)


@cache
def leaves_out(file: Path, tier: str) -> bool:
    """Tells of a file of another tier that no test in it is of this one, so that it need not be read."""
    if file.suffix != ".py" or find_tier_of_file(file) == tier:
        return False
    text = file.read_text(encoding="utf-8")
    return MOVES not in text and MOVES_TO.get(tier, MOVES) not in text


def keep(items: list[pytest.Item], tier: str | None) -> list[pytest.Item]:
    """The tests of a tier (of all, if it is None). Each carries its tier to the report.

    Raises:
        UsageError: a test is of a tier for which :func:`leaves_out` would not read its file.
    """
    kept = []
    for item in items:
        tier_of_item = find_tier(item)
        if leaves_out(item.path, tier_of_item):
            raise pytest.UsageError(f"{item.nodeid} is of {tier_of_item}: say so in its file, by pytest.{MOVES}...)")
        item.user_properties.append(("tier", tier_of_item))
        if tier in (None, tier_of_item):
            kept.append(item)
    return kept


def count(stats: dict[str, list[Any]]) -> dict[str, dict[str, int]]:
    """Numbers of tests of each tier that passed, failed and so on, from the reports of a run."""
    counts: dict[str, dict[str, int]] = {}
    for outcome in ("failed", "error", "passed", "skipped", "xfailed"):
        for report in stats.get(outcome, []):
            tier = dict(getattr(report, "user_properties", ())).get("tier")
            if tier is not None:
                of_tier = counts.setdefault(tier, {})
                of_tier[outcome] = of_tier.get(outcome, 0) + 1
    return {tier: counts[tier] for tier in TIERS if tier in counts}


def find_group(item: pytest.Item) -> str:
    """The group of a test: its mark's, that of the pools if it uses them, its function's, its file's."""
    mark = item.get_closest_marker("xdist_group")
    if mark is not None:
        return str(mark.args[0])
    if "pools" in getattr(item, "fixturenames", ()):
        return POOLS
    file = item.path.relative_to(ROOT).as_posix()
    if getattr(getattr(item, "module", None), "SPREAD", False):
        return f"{file}::{getattr(item, 'originalname', item.name)}"
    return file


def arrange(items: list[pytest.Item]) -> dict[str, str]:
    """Puts the longest groups first, and says which group each test is in."""
    groups = {item.nodeid: find_group(item) for item in items}
    items.sort(key=lambda item: _rank(groups[item.nodeid]))
    return groups


def _rank(group: str) -> int:
    return next((i for i, start in enumerate(FIRST) if group.startswith(start)), len(FIRST))


def check_marks(items: list[pytest.Item]) -> None:
    """Nothing goes to the night without a defect that the gate catches in its place.

    Raises:
        UsageError: a mark without a defect, or with one that is not in the list.
    """
    for item in items:
        for mark in item.iter_markers("night"):
            if not mark.args or not set(mark.args) <= CAUGHT.keys():
                raise pytest.UsageError(
                    f"{item.nodeid} goes to the night and names {list(mark.args)}: give defects that the gate catches in "
                    f"its place. There are {sorted(CAUGHT)}; a new one comes with its test, in tests/tiers.py"
                )


def make_scheduler(config: pytest.Config, log: Any, file: Path) -> Any:
    """A scheduler for pytest-xdist that keeps groups together, which a worker has written into a file.

    Its own reads them from the names of tests, where they no longer are under pytest 9.2.
    """
    from xdist.scheduler import LoadScopeScheduling

    class Grouped(LoadScopeScheduling):  # type: ignore[misc, unused-ignore]
        groups: dict[str, str] | None = None

        def _split_scope(self, nodeid: str) -> str:
            if self.groups is None:
                self.groups = json.loads(file.read_text(encoding="utf-8"))
            return self.groups.get(nodeid) or self.groups[nodeid.rpartition("@")[0]]

    return Grouped(config, log)
