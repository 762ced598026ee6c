"""Triton kernels that a step launches, and questions to the host: the tables of docs/data/launches.md, the
only place of these numbers.

``python -m tests.laws.launches`` counts them anew and writes them there; what is beside a number stays. A new line of the
table is written by hand, with any numbers.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs/data/launches.md"
HEAD = "| method | launches | questions | of them |\n| --- | --- | --- | --- |\n"
HOPS = "| method, `communicator=scatterreduce` | launches | where W does not divide a tensor |\n| --- | --- | --- |\n"
SHARDED = "| method, under `fully_shard` | launches |\n| --- | --- |\n"
ROW = r"\| `(?P<spec>\S+)` \| (?P<launches>\d+) \| (?P<questions>\d+) \|"
# Those whose kernels have to run, since they tell the host how much they send.
RUN = (
    "threshold:v=1.5,index=rice", "threshold:v=1.5,index=delta", "dgc:index=delta", "strom:index=rice",
    "adaq:index=rice", "varsparse:alpha=0.5,index=rice", "gspar:ratio=0.7,index=rice", "gspar:ratio=0.7,index=delta",
    "atomo:ratio=0.3,index=rice", "atomo:ratio=0.3,index=delta", "sketchml:index=rice", "sketchml:index=delta",
    "adaq:sample=4", "adaq:sample=4,joint=true,index=rice",
)  # fmt: skip


def read(page: str) -> dict[str, tuple[int, int]]:
    """The page's table: of a bucket of any number of tensors, launches and questions by spec."""
    lines = page.partition(HEAD)[2].partition("\n\n")[0].splitlines()
    rows = [re.match(ROW, line) for line in lines]
    assert rows
    assert all(rows), lines
    return {row["spec"]: (int(row["launches"]), int(row["questions"])) for row in rows if row}


def write(page: str, counts: dict[str, tuple[int, int]]) -> str:
    """The page with these numbers."""

    def fill(row: re.Match[str]) -> str:
        launches, questions = counts[row["spec"]]
        return f"| `{row['spec']}` | {launches} | {questions} |"

    before, head, rest = page.partition(HEAD)
    table, end, after = rest.partition("\n\n")
    return before + head + re.sub(ROW, fill, table) + end + after


def read_hops(page: str | None = None) -> list[tuple[str, int, int]]:
    """The page's table of launches over two hops: spec, of tensors that W divides, of others."""
    table = (page or PAGE.read_text(encoding="utf-8")).partition(HOPS)[2].partition("\n\n")[0]
    return [(spec, int(even), int(odd)) for spec, even, odd in re.findall(r"\| `(\S+)` \| (\d+) \| (\d+) \|", table)]


def read_rows() -> list[tuple[str, int]]:
    """The page's table of launches of a reduce-scatter of rows: spec, launches."""
    table = PAGE.read_text(encoding="utf-8").partition(SHARDED)[2].partition("\n\n")[0]
    return [(spec, int(launches)) for spec, launches in re.findall(r"\| `(\S+)` \| (\d+) \|", table)]


LAUNCHES = read(PAGE.read_text(encoding="utf-8"))


def main() -> None:
    """Counts, with buckets of three tensors, and writes the page."""
    import pytest

    os.environ["TRITON_INTERPRET"] = "1"  # triton reads it when it is imported
    from grace.compute import backends
    from tests.laws.test_counted import count_work

    os.environ[backends.INTERPRETER] = "1"
    counts = {spec: count_work(spec, ((3, 5),) * 3, pytest.MonkeyPatch(), runs=spec in RUN) for spec in LAUNCHES}
    PAGE.write_text(write(PAGE.read_text(encoding="utf-8"), counts), encoding="utf-8")


if __name__ == "__main__":
    main()
