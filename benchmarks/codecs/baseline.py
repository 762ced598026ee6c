"""Comparison with an earlier document: what has become slower, beyond the spread of both."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grace.errors import ConfigurationError
from grace_bench.codecs.bench import SCHEMA, VERSION

_KEY = ("operation", "method", "size", "threads")
_NUMBERS = ("ratio", "low", "high", "microseconds")
_MACHINE = ("processor", "cores", "kernels", "torch", "python", "system")


@dataclass(frozen=True, slots=True)
class Change:
    """A row of both documents. ``factor``: the ratio now over the ratio then."""

    operation: str
    method: str | None
    size: int
    threads: int
    then: float
    now: float
    factor: float
    verdict: str  # "slower" or "faster": the quartiles do not overlap; else "same"

    @property
    def percent(self) -> float:
        """The slowdown in percent; negative if it is faster."""
        return 100 * (self.factor - 1)


@dataclass(frozen=True, slots=True)
class Comparison:
    """All rows of both documents, those of only one, and in what the machines differ."""

    changes: tuple[Change, ...]
    missing: tuple[str, ...]
    new: tuple[str, ...]
    differs: dict[str, tuple[Any, Any]]

    def slower(self, percent: float = 0.0) -> list[Change]:
        """Rows that are slower beyond the spread, and by more than so many percent; the worst first."""
        changes = [change for change in self.changes if change.verdict == "slower" and change.percent > percent]
        return sorted(changes, key=lambda change: -change.factor)

    def faster(self) -> list[Change]:
        """Rows that are faster beyond the spread, the best first."""
        return sorted((c for c in self.changes if c.verdict == "faster"), key=lambda change: change.factor)

    def document(self) -> dict[str, Any]:
        """As JSON."""
        rows = [
            {name: getattr(change, name) for name in Change.__slots__} | {"factor": float(f"{change.factor:.4g}")}
            for change in self.changes
        ]
        return {"differs": {k: list(v) for k, v in self.differs.items()}, "missing": list(self.missing),
                "new": list(self.new), "rows": rows}  # fmt: skip


def read(path: Path) -> dict[str, Any]:
    """A document of an earlier run.

    Raises:
        ConfigurationError: there is no such file, or it is something else.
    """
    try:
        document = json.loads(path.read_text())
    except OSError as error:
        raise ConfigurationError(f"baseline {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigurationError(f"baseline {path} is not JSON: {error}") from error
    form = (document.get("schema"), document.get("version")) if isinstance(document, dict) else None
    if form != (SCHEMA, VERSION):
        raise ConfigurationError(
            f"baseline {path} is not a {SCHEMA} document of version {VERSION}; python -m benchmarks.codecs --out DIR "
            "writes one, DIR/codecs.json"
        )
    rows, environment = document.get("rows"), document.get("environment")
    if not isinstance(environment, dict) or not isinstance(rows, list) or not all(map(_legal, rows)):
        raise ConfigurationError(f"baseline {path}: rows need {', '.join((*_KEY, *_NUMBERS))}")
    result: dict[str, Any] = document
    return result


def _legal(row: Any) -> bool:
    return (
        isinstance(row, dict)
        and all(key in row for key in _KEY)
        and all(isinstance(row.get(name), int | float) and row[name] > 0 for name in _NUMBERS)
    )


def compare(now: dict[str, Any], then: dict[str, Any]) -> Comparison:
    """Ratios now against ratios then: what the machine does to torch's ``add_`` as well cancels out."""
    before, after = ({tuple(row[key] for key in _KEY): row for row in doc["rows"]} for doc in (then, now))
    changes = []
    for key, row in after.items():
        if key in before:
            old = before[key]
            apart = "slower" if row["low"] > old["high"] else "faster" if row["high"] < old["low"] else "same"
            factor = row["ratio"] / old["ratio"]
            name, method, size, threads = key
            changes.append(Change(name, method, size, threads, old["ratio"], row["ratio"], factor, apart))
    here, there = now["environment"], then["environment"]
    return Comparison(
        tuple(changes),
        missing=tuple(_text(key) for key in before if key not in after),
        new=tuple(_text(key) for key in after if key not in before),
        differs={name: (there.get(name), here.get(name)) for name in _MACHINE if there.get(name) != here.get(name)},
    )


def _text(key: tuple[Any, ...]) -> str:
    operation, method, size, threads = key
    return f"{operation}{f', {method}' if method else ''}, {size} elements, {threads} threads"
