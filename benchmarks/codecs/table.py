"""The document on a terminal: goals first, then all methods, then what has changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from benchmarks.codecs.baseline import Change, Comparison
from benchmarks.codecs.goals import RATIO, SPEEDUP, position
from grace_bench.codecs.plan import size_text
from grace_bench.codecs.table import HEADINGS, footer, number, omissions
from grace_command.text import plain_table, plural

_MOST_CHANGES = 20


def view(document: dict[str, Any], comparison: Comparison | None = None) -> RenderableType:
    """All that a person wants to see of it."""
    parts: list[RenderableType] = []
    for count in document["plan"]["threads"]:
        rows = [row for row in document["rows"] if row["threads"] == count]
        if rows:
            parts += [_methods(rows, count), Text()]
    lines = sorted(goal_lines(document), key=lambda line: (line["size"], line["threads"], position(line["row"])))
    if lines:
        parts += [_goals(lines), _score(lines), Text()]
    parts += [_yardsticks(document["yardsticks"]), Text()]
    parts += list(omissions(document))
    if comparison is not None:
        parts += [Text(), _changes(comparison)]
    return Group(*parts, *footer(document))


def goal_lines(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every goal that was measured: its numbers, and where they come from."""
    for row in document["rows"]:
        where = {"size": row["size"], "threads": row["threads"], "method": row["method"]}
        others = {other["kernels"]: other for other in row["others"]}
        times = {name: others[name]["times"] for name in ("reference", "torch") if name in others}
        for goal in row["goals"]:
            yield {**goal, **where, "kernels": row["kernels"], "times": times if goal["unit"] == RATIO else {}}
        for other in row["others"]:
            for goal in other["goals"]:
                if goal["unit"] == RATIO:
                    yield {**goal, **where, "kernels": other["kernels"], "times": {}}


def _goals(lines: Sequence[dict[str, Any]]) -> RenderableType:
    table = plain_table("goals")
    table.add_column("row")
    for heading in (
        "elements",
        "threads",
        "measured",
        "quartiles",
        "unit",
        "goal",
        "bound by",
        "",
        "vs reference",
        "vs torch code",
    ):
        table.add_column(heading, justify="left" if heading in ("unit", "bound by", "") else "right", no_wrap=True)
    last = None
    for line in lines:
        place = (size_text(line["size"]), str(line["threads"]))
        if last not in (None, place):
            table.add_section()
        met = line["met"]
        beyond = met and line["stretch"] is not None and line["value"] <= line["stretch"]
        table.add_row(
            line["row"], *place, Text(number(line["value"]), style="green" if met else "red"),
            f"{number(line['low'])} to {number(line['high'])}", Text(line["unit"], style="dim"), number(line["goal"]),
            Text(line.get("binds") or "", style="dim"),
            Text("met, and stretch" if beyond else "met" if met else "not met", style="green" if met else "red"),
            *(_times(line["times"].get(name), name) for name in ("reference", "torch")),
        )  # fmt: skip
        last = place
    return table


def _times(factor: float | None, name: str) -> Text:
    """The factor by which the other code is slower; it should be large for plain torch code."""
    if factor is None:
        return Text()
    style = "" if name != "torch" else "green" if factor >= SPEEDUP else "red"
    return Text(f"{number(factor)}x", style=style)


def _score(lines: Sequence[dict[str, Any]]) -> RenderableType:
    met = sum(line["met"] for line in lines)
    return Text(f"{met} of {len(lines)} goals met", style="green" if met == len(lines) else "red")


def _methods(rows: Sequence[dict[str, Any]], count: int) -> RenderableType:
    """A line for each method; cold ones in multiples of ``add_``, small ones in microseconds."""
    table = plain_table(
        f"{plural(count, 'thread')}: microseconds where marked us, else multiples of y.add_(x); medians"
    )
    table.add_column("method", no_wrap=True)
    columns = sorted({(row["size"], list(HEADINGS).index(row["operation"])) for row in rows if row["method"]})
    names = list(HEADINGS)
    for size, index in columns:
        table.add_column(f"{size_text(size)}\n{HEADINGS[names[index]]}", justify="right")
    cells: dict[str, dict[tuple[int, int], Text]] = {}
    for row in rows:
        if row["method"] is None:
            continue
        goal = next((goal for goal in row["goals"]), None)
        style = "" if goal is None else "green" if goal["met"] else "red"
        shown = number(row["ratio"]) if row["cold"] else f"{number(row['microseconds'])} us"
        place = (row["size"], names.index(row["operation"]))
        cells.setdefault(row["method"], {})[place] = Text(shown, style=style)
    for name, by_column in cells.items():
        table.add_row(name, *(by_column.get(place, Text("-", style="dim")) for place in columns))
    return table


def _yardsticks(rows: Sequence[dict[str, Any]]) -> RenderableType:
    table = plain_table("yardsticks")
    for heading in ("operation", "elements", "threads", "microseconds", "x add_", "quartiles"):
        table.add_column(heading, justify="left" if heading == "operation" else "right")
    for row in rows:
        table.add_row(
            row["operation"], size_text(row["size"]), str(row["threads"]), number(row["microseconds"]),
            number(row["ratio"]), f"{number(row['low'])} to {number(row['high'])}",
        )  # fmt: skip
    return table


def _changes(comparison: Comparison) -> RenderableType:
    parts: list[RenderableType] = []
    for title, changes in (("slower", comparison.slower()), ("faster", comparison.faster())):
        table = plain_table(f"{title} than the baseline, beyond the spread of both: {len(changes)}")
        for heading in ("operation", "method", "elements", "threads", "then", "now", "change"):
            table.add_column(heading, justify="left" if heading in ("operation", "method") else "right")
        for change in changes[:_MOST_CHANGES]:
            table.add_row(*_cells(change), style="red" if title == "slower" else "green")
        if changes:
            parts.append(table)
        if len(changes) > _MOST_CHANGES:
            parts.append(Text(f"... and {len(changes) - _MOST_CHANGES} more", style="dim"))
    same = len(comparison.changes) - len(comparison.slower()) - len(comparison.faster())
    parts.append(
        Text(
            f"against the baseline: {len(comparison.slower())} slower, {len(comparison.faster())} faster, {same} within "
            f"the spread; {len(comparison.new)} only now, {len(comparison.missing)} only then"
        )
    )
    for name, (then, now) in comparison.differs.items():
        parts.append(Text(f"note: {name} was {then}, now {now}", style="yellow"))
    return Group(*parts)


def _cells(change: Change) -> list[str]:
    return [
        change.operation, change.method or "", size_text(change.size), str(change.threads), number(change.then),
        number(change.now), f"{change.percent:+.0f} %",
    ]  # fmt: skip
