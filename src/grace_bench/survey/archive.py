"""The archive: all runs of the survey in one Parquet file, in one order, each once."""

from __future__ import annotations

import contextlib
import io
import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import inspect

from grace.errors import GraceError
from grace.registry import from_file, is_own
from grace_bench.extras import need
from grace_bench.files import write_atomically
from grace_bench.runs.results import DocumentError, by_path
from grace_bench.survey.plausible import check_plausible
from grace_bench.survey.row import SCHEMA, TRIAL, VERSION, SurveyRow, decode_row, name_of, same_run
from grace_bench.tasks import find_task

_VERSION = re.compile(r"\d+\.\d+")
_MOST_BYTES = 8.0  # that a worker sends each other worker, for each number and step: twice fp32's


def read_archive(path: Path) -> list[SurveyRow]:
    """All rows.

    Raises:
        DocumentError: it is no archive of this version.
    """
    parquet = need("pyarrow.parquet", extra="parquet")
    try:
        table = parquet.read_table(path)
    except (OSError, ValueError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise DocumentError(f"{path} is no Parquet file: {error}") from error
    version = (table.schema.metadata or {}).get(SCHEMA.encode(), b"nothing").decode()
    if version != str(VERSION):
        raise DocumentError(
            f"{path} is an archive of {SCHEMA} version {version}; legal: {VERSION}; the Grace that made it reads it"
        )
    try:
        rows = msgspec.convert(table.to_pylist(), list[SurveyRow])
    except msgspec.ValidationError as error:
        raise DocumentError(f"{path}: {by_path(error)}") from error
    _refuse_code(path, rows)
    return rows


def _refuse_code(path: Path, rows: Sequence[SurveyRow]) -> None:
    """Refuses rows whose method or task is somebody's class that the user has not named: whatever reads a row may look it up.

    Raises:
        DocumentError: there is one; names the file.
    """
    with from_file() as refused:
        for find, names in (
            (find_task, filter(is_own, {row.task for row in rows})),
            (name_of, {row.method for row in rows}),
        ):
            for name in names:
                with contextlib.suppress(GraceError):  # a name of another version's is for others to refuse
                    find(name)
    if refused:
        raise DocumentError(f"{path}: {refused[0]}")


def write_archive(path: Path, rows: Iterable[SurveyRow]) -> None:
    """Writes them in the order of their keys, whole or not at all."""
    arrow, parquet = need("pyarrow", extra="parquet"), need("pyarrow.parquet", extra="parquet")
    ordered = sorted(rows, key=lambda row: tuple(map(str, row.key)))
    table = arrow.Table.from_pylist([msgspec.to_builtins(row) for row in ordered], schema=_columns(arrow))
    buffer = io.BytesIO()
    parquet.write_table(table, buffer, compression="zstd")
    write_atomically(path, buffer.getvalue())


def read_runs(folder: Path) -> list[SurveyRow]:
    """The rows in ``folder/runs``.

    Raises:
        DocumentError: there are none, or one is no row; the message names the file.
    """
    paths = sorted((folder / "runs").glob("*.json"))
    if not paths:
        raise DocumentError(f"{folder} has no runs/*.json: make them with grace survey run PLAN --out {folder}")
    rows = []
    for path in paths:
        try:
            rows.append(decode_row(path.read_bytes()))
        except DocumentError as error:
            raise DocumentError(f"{path}: {error}") from error
        _refuse_code(path, rows[-1:])
    return rows


def merge(*parts: Sequence[SurveyRow]) -> list[SurveyRow]:
    """All rows, each once: the same run may be in several parts if they say the same of it.

    Raises:
        DocumentError: two parts say different things of one run, a task's data differ within a source, or runs of one protocol
            differ in more than it names.
    """
    merged: dict[Any, SurveyRow] = {}
    digests: dict[tuple[str, str], SurveyRow] = {}
    settings: dict[tuple[object, ...], SurveyRow] = {}
    for row in (row for part in parts for row in part):
        before = merged.setdefault(row.key, row)
        if not same_run(before, row):
            raise DocumentError(
                f"{_name(row)} is there twice, and the two differ: keep the one that its command repeats"
            )
        first = digests.setdefault((row.task, row.source), row)
        if first.digest != row.digest:
            raise DocumentError(
                f"{_name(row)} has {row.source} data {row.digest}, where other runs of {row.task} have {first.digest}: "
                "use the data and the version of Grace that they used"
            )
        place = row.protocol, row.task, row.steps, row.source, row.device
        first = settings.setdefault(place, row)
        if (first.workers, first.batch) != (row.workers, row.batch):
            raise DocumentError(
                f"{_name(row)} has {row.workers} workers and batches of {row.batch}, where the others of its protocol have "
                f"{first.workers} and {first.batch}: give its plan a protocol of another name"
            )
        if row.protocol.endswith(TRIAL):
            continue
        first = settings.setdefault((*place, row.recipe), row)
        if first.peak_lr != row.peak_lr:
            raise DocumentError(
                f"{_name(row)} has the learning rate {row.peak_lr:g}, where others of its method and protocol have "
                f"{first.peak_lr:g}: give its plan a protocol of another name"
            )
    return list(merged.values())


def check_row(row: SurveyRow) -> None:
    """Checks a row from someone else beyond its types.

    Raises:
        DocumentError: it does not.
    """
    try:
        with from_file():
            recipe = name_of(row.method)[1]
            find_task(row.task)
    except GraceError as error:
        raise DocumentError(f"{_name(row)}: {str(error).splitlines()[0]}") from error
    most = _MOST_BYTES * row.workers * row.parameters * row.steps
    sent = row.sent[-1] if row.sent else -1
    laws: Sequence[tuple[bool, str]] = (
        (recipe != row.recipe, "its recipe is not what this version of Grace makes of its method"),
        (not len(row.at) == len(row.values) == len(row.sent) >= 1, "its evaluations differ in number"),
        (sorted(row.at) != row.at or sorted(row.sent) != row.sent, "its evaluations are not in order"),
        (bool(row.at) and row.at[-1] > row.steps, "it was evaluated after its last step"),
        (row.diverged is None and (row.final is None or not row.at or row.at[-1] != row.steps), "it has no end"),
        (row.diverged is None and row.workers > 1 and not 0 < sent <= most, f"{sent} bytes sent are not plausible"),
        (row.source == "synthetic", "random batches teach nothing"),
        (not row.digest, "its data have no digest"),
        (not math.isfinite(row.peak_lr) or row.peak_lr <= 0, "its learning rate is not positive"),
        (not all(map(_VERSION.match, (row.grace, row.torch, row.numpy, row.python))), "its versions are no versions"),
        (row.cpu_seconds < 0 or not math.isfinite(row.cpu_seconds), "its processor time is none"),
    )
    for broken, why in laws:
        if broken:
            raise DocumentError(f"{_name(row)}: {why}; run it again with grace survey run")


def add(folder: Path, archive: Path) -> tuple[int, int]:
    """Appends the runs of a folder to an archive, or makes one; the numbers of rows that are new, and that there are then.

    Raises:
        DocumentError: a run cannot be, or does not fit to the others; nothing is written.
    """
    new = read_runs(folder)
    for row in new:
        check_row(row)
    old = read_archive(archive) if archive.exists() else []
    rows = merge(old, new)
    known = {row.key for row in old}
    for row in new:
        if row.key not in known:
            check_plausible(row, _name(row))
    if len(rows) > len(old) or not old:
        write_archive(archive, rows)
    return len(rows) - len(old), len(rows)


def join(parts: Sequence[Path], out: Path) -> int:
    """Writes an archive of several archives, or of folders of runs, each run once; its number of rows.

    Raises:
        DocumentError: two of them say different things of one run, or do not fit together; nothing is written.
    """
    rows = gather_rows(parts)
    write_archive(out, rows)
    return len(rows)


def gather_rows(parts: Sequence[Path]) -> list[SurveyRow]:
    """The rows of several archives, or of folders of runs, each run once.

    Raises:
        DocumentError: one is cut or of another version, two say different things of one run, or they do not fit together.
    """
    rows = merge(*(read_runs(part) if part.is_dir() else read_archive(part) for part in parts))
    for row in rows:
        check_row(row)
    return rows


def _name(row: SurveyRow) -> str:
    return f"{row.protocol}: {row.task}, {row.method}, seed {row.seed}, {row.steps} steps"


def _columns(arrow: Any) -> Any:
    """The columns of the file, as the types of a row say; its metadata say which version it is."""
    row: Any = inspect.type_info(SurveyRow)
    columns = [(field.name, _column(arrow, field.type)) for field in row.fields]
    return arrow.schema(columns, metadata={SCHEMA: str(VERSION)})


def _column(arrow: Any, kind: inspect.Type) -> Any:
    if isinstance(kind, inspect.UnionType):  # with null, which every column may have
        return _column(arrow, next(inner for inner in kind.types if not isinstance(inner, inspect.NoneType)))
    if isinstance(kind, inspect.ListType):
        return arrow.list_(_column(arrow, kind.item_type))
    if isinstance(kind, inspect.LiteralType):
        return arrow.scalar(kind.values[0]).type
    names = {
        inspect.IntType: "int64",
        inspect.FloatType: "float64",
        inspect.BoolType: "bool_",
        inspect.StrType: "string",
    }
    return getattr(arrow, names[type(kind)])()
