"""Stand-in packages, as pip leaves them: modules on the path, and a dist-info with entry points."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def installed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, group: str, points: Mapping[str, str], modules: Mapping[str, str]
) -> Iterator[None]:
    """Modules by name, and what ``group`` of entry points has: names, and what they stand for."""
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text)
    info = folder / "grace_standin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: grace-standin\nVersion: 1.0\n")
    lines = [f"[{group}]", *(f"{name} = {place}" for name, place in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(str(folder))
    yield
    for name in modules:
        sys.modules.pop(name, None)
