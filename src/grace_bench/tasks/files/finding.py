"""Finding files, and saying what is wrong with them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grace.errors import DataError
from grace_bench.extras import need


@dataclass(frozen=True, slots=True)
class Published:
    """A data set: its name, the files that are expected, and where they are published."""

    name: str
    expected: str
    where: str

    def missing(self, path: Path) -> DataError:
        """The error for a file or folder that is not there."""
        return DataError(
            f"no {self.name} data: {path} is not there. Expected {self.expected}. Published at {self.where}"
        )

    def malformed(self, path: Path, what: str) -> DataError:
        """The error for a file that is not what it should be."""
        return DataError(
            f"{self.name}: {path} is not as expected: {what}. Expected {self.expected}. Published at {self.where}"
        )

    def picture(self, path: Path, mode: str) -> Any:
        """An image file, decoded, in this mode of Pillow's, such as "RGB".

        Raises:
            DataError: it is damaged. MissingExtraError: Pillow is not installed.
        """
        pillow = need("PIL.Image", extra="bench")
        try:
            with pillow.open(path) as picture:
                return picture.convert(mode)
        except (OSError, SyntaxError, ValueError) as error:  # Pillow's for damaged files
            raise self.malformed(path, str(error)) from error

    def folder(self, root: Path, marker: str, below: Iterable[str]) -> Path:
        """``root``, or the first of the folders ``below`` it, in which there is ``marker``.

        Raises:
            DataError: none of them.
        """
        for candidate in (root, *(root / name for name in below)):
            if (candidate / marker).exists():
                return candidate
        raise self.missing(root / marker)
