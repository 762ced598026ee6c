"""Which tests run when, and where: tiers by marker, groups for the processes of pytest-xdist.

- ``night(defect, ...)``: `make test` leaves the test out and `make night` runs it. It names the defects by which `make test`
  shows that it catches in its place what this test is for: each is in :data:`CAUGHT`.
- ``xdist_group(name)``: tests of a group run in one process, one after the other. Others go with their file, as their
  fixtures do; a file that says ``SPREAD = True`` shares nothing among its tests, and each of its functions goes alone.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
POOLS = "pools"
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
    """Nothing goes to the night without a defect that `make test` catches in its place.

    Raises:
        UsageError: a mark without a defect, or with one that is not in the list.
    """
    for item in items:
        for mark in item.iter_markers("night"):
            if not mark.args or not set(mark.args) <= CAUGHT.keys():
                raise pytest.UsageError(
                    f"{item.nodeid} goes to the night and names {list(mark.args)}: give defects that make test catches in "
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
