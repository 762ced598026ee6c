"""Record of all nights of fuzzing together, by decoder and kernels; each night takes a share, the least tried first."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.fuzz.targets import Outcome

ROOT = Path(__file__).parents[2]
FILE = Path(__file__).with_name("tried.json")
PAGE = ROOT / "docs/concepts/verify.md"
BEGIN, END = "<!-- tried: written by python -m tests.fuzz --record -->", "<!-- end of tried -->"
GOAL = 1_000_000  # payloads of each decoder under each kind of kernels


@dataclass(frozen=True, slots=True)
class Tried:
    """Counts of one decoder under one kind of kernels: payloads damaged, payloads refused, shares that it had so far."""

    payloads: int = 0
    refused: int = 0
    shares: int = 0

    @property
    def seed(self) -> int:
        """Seed of the next share: no night draws what another has drawn."""
        return 1 + self.shares

    def plus(self, outcome: Outcome) -> Tried:
        return Tried(self.payloads + outcome.payloads, self.refused + outcome.refused, self.shares + 1)


Record = dict[str, Tried]


def name(target: str, backend: str) -> str:
    return f"{target} | {backend}"


def read(file: Path = FILE) -> Record:
    """The record so far; empty where there is none."""
    if not file.exists():
        return {}
    return {key: Tried(**value) for key, value in json.loads(file.read_text()).items()}


def choose(targets: list[tuple[str, str]], record: Record) -> list[tuple[str, str, int, int]]:
    """(target, backend, payloads to try, seed) of the decoders that have not had enough, the least tried first."""
    tried = [(record.get(name(*target), Tried()), *target) for target in targets if target[0].startswith("decoder")]
    wanted = [(done, target, backend) for done, target, backend in tried if done.payloads < GOAL]
    wanted.sort(key=lambda entry: (entry[0].payloads, entry[1], entry[2]))
    return [(target, backend, GOAL - done.payloads, done.seed) for done, target, backend in wanted]


def write(record: Record, file: Path = FILE, page: Path = PAGE) -> None:
    """Writes the record, and its summary into the page."""
    file.write_text(json.dumps({key: asdict(record[key]) for key in sorted(record)}, indent=1) + "\n")
    text = page.read_text()
    head, _, rest = text.partition(BEGIN)
    page.write_text(f"{head}{BEGIN}\n{summary(record)}\n{END}{rest.partition(END)[2]}")


def summary(record: Record) -> str:
    """In words and a table: how many decoders have had how much."""
    lines = [
        "| kernels | decoders | payloads in all | of the least tried | refused | have had 1,000,000 |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for backend in sorted({key.rpartition(" | ")[2] for key in record}):
        tried = [entry for key, entry in record.items() if key.endswith(f" | {backend}")]
        total, refused = sum(entry.payloads for entry in tried), sum(entry.refused for entry in tried)
        enough = sum(entry.payloads >= GOAL for entry in tried)
        least = min(entry.payloads for entry in tried)
        lines.append(f"| {backend} | {len(tried)} | {total:,} | {least:,} | {refused / max(1, total):.0%} | {enough} |")
    return "\n".join(lines)
