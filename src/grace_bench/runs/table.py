"""The tables of a sweep, by flattening its documents: a line for each run, and one for each evaluation."""

from __future__ import annotations

import csv
import functools
import importlib.util
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import inspect

from grace_bench.files import write_atomically
from grace_bench.runs.results import Document, Failure, Result

_SECTIONS = ("model", "time", "traffic", "memory")  # whose fields need no prefix
_HEADS = ("name", "value", "median")  # what a section is about: its column has the section's name
_OF_A_CURVE = ("task", "toolkit", "method", "workers", "link", "seed", "round", "granularity")
_RENAMED = {
    "data_procedural": "procedural",
    "prediction_step_ms": "predicted_step_ms",
    "prediction_relative_error": "prediction_error",
}


def line(document: Document) -> dict[str, Any]:
    """A run as one line; null where there is no such value. Lists and dictionaries have no column."""
    plain = msgspec.to_builtins(document)
    out = {}
    for column, path in columns().items():
        value: Any = plain
        for key in path:
            value = None if value is None else value.get(key)
        out[column] = value
    return out


@functools.cache
def columns() -> dict[str, tuple[str, ...]]:
    """The columns, and where in a document each is: what the types of documents say."""
    paths: dict[str, tuple[str, ...]] = {}
    for kind in (Result, Failure):
        for path in [("status",), *_leaves(inspect.type_info(kind))]:
            paths.setdefault(_column(path), path)
    return paths


def _leaves(kind: inspect.Type) -> Iterator[tuple[str, ...]]:
    assert isinstance(kind, inspect.StructType)
    for field in kind.fields:
        among = field.type.types if isinstance(field.type, inspect.UnionType) else (field.type,)
        inner = next((kind for kind in among if isinstance(kind, inspect.StructType)), None)
        if inner is not None:
            yield from ((field.name, *path) for path in _leaves(inner))
        elif not any(_is_long(kind) for kind in among):
            yield (field.name,)


def _is_long(kind: inspect.Type) -> bool:
    """True if it does not fit into a column, or can have only one value."""
    one_value = isinstance(kind, inspect.LiteralType) and len(kind.values) == 1
    return one_value or isinstance(kind, (inspect.ListType, inspect.DictType))


def _column(path: tuple[str, ...]) -> str:
    parts = [part for part in path if part not in _SECTIONS]
    if len(parts) > 1 and parts[-1] in _HEADS:
        parts.pop()
    name = "_".join(parts)
    return _RENAMED.get(name, name)


def table_csv(documents: Sequence[Document]) -> str:
    """A line for each run, with the heading even if there are no runs."""
    return _csv([line(document) for document in documents], list(columns()))


def curves_csv(documents: Sequence[Document]) -> str:
    """All curves, tidy: a line for each run and evaluation."""
    lines = []
    for document in documents:
        if isinstance(document, Result):
            run = {key: getattr(document, key) for key in _OF_A_CURVE} | {"link": document.link.name}
            for point in document.curve:
                plain = {**run, **msgspec.structs.asdict(point)}
                lines.append({**plain, **plain.pop("metrics")})
    return _csv(lines, list(dict.fromkeys(key for line in lines for key in line)))


def _csv(lines: Sequence[dict[str, Any]], heading: Sequence[str]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, heading, lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def write_tables(documents: Sequence[Document], out: Path) -> None:
    """``runs.csv`` and ``curves.csv`` in ``out``, and ``runs.parquet`` where pyarrow is installed."""
    write_atomically(out / "runs.csv", table_csv(documents))
    write_atomically(out / "curves.csv", curves_csv(documents))
    if documents and importlib.util.find_spec("pyarrow") is not None:
        import pyarrow
        import pyarrow.parquet

        sink = pyarrow.BufferOutputStream()
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist([line(document) for document in documents]), sink)
        write_atomically(out / "runs.parquet", sink.getvalue().to_pybytes())
