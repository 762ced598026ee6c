"""A plan of the survey, a TOML file: methods x tasks x seeds by a protocol, in the order in which they are worth most."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from grace.errors import ConfigurationError
from grace.registry import resolve
from grace_bench.runs.config import RunConfig
from grace_bench.runs.plan import check
from grace_bench.runs.results import by_path


class Block(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One table ``[[runs]]``. Every seed of every task and method is a run; the seed changes last.

    Attributes:
        protocol: its name, in every row. tasks, methods, seeds, workers: see :class:`grace_bench.runs.config.RunConfig`.
        steps, epochs: length, by default the task's. lr: peak, instead of what suits task and method.
        evaluations: of the test set, the start not counted. batch: of one worker and step. data: official files.
    """

    tasks: list[str]
    methods: list[str]
    protocol: str = "survey"
    seeds: tuple[int, ...] = (0,)
    workers: int = 4
    steps: int | None = None
    epochs: float | None = None
    evaluations: int = 10
    lr: float | None = None
    batch: int | None = None
    data: str | None = None


class _File(msgspec.Struct, forbid_unknown_fields=True):
    runs: list[Block]


@dataclass(frozen=True, slots=True)
class Planned:
    """A run, and the name of its protocol."""

    protocol: str
    config: RunConfig


def read_plan(path: Path) -> list[Planned]:
    """The runs of a plan, each once.

    Raises:
        ConfigurationError: it is no plan; the message says what is wrong.
        UnknownNameError: a task or a method that does not exist.
    """
    try:
        found = msgspec.toml.decode(path.read_bytes(), type=_File)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"{path}: {by_path(error)}") from error
    except msgspec.DecodeError as error:
        raise ConfigurationError(f"{path} is not TOML: {error}") from error
    runs = [run for block in found.runs for run in expand(block)]
    check([run.config for run in runs])
    return list(dict.fromkeys(runs))


def expand(block: Block) -> list[Planned]:
    """The runs of a block."""
    common = {
        name: getattr(block, name)
        for name in ("workers", "steps", "epochs", "evaluations", "lr", "batch", "data")
    }  # fmt: skip
    methods = [resolve(name) for name in block.methods]
    return [
        Planned(block.protocol, RunConfig(task=task, method=method, seed=seed, cores=1, **common))
        for seed in block.seeds
        for task in block.tasks
        for method in methods
    ]


def shard(runs: list[Planned], text: str) -> list[Planned]:
    """Part ``I/N`` of the runs, from 1/N to N/N: every N-th, so that each part begins with what is worth most.

    Raises:
        ConfigurationError: it is no such part.
    """
    part, _, parts = text.partition("/")
    if not (part.isdecimal() and parts.isdecimal() and 1 <= int(part) <= int(parts)):
        raise ConfigurationError(f"shard {text!r} is no part; legal: I/N with 1 <= I <= N, such as 2/5")
    return runs[int(part) - 1 :: int(parts)]


def describe(run: Planned) -> str:
    """A run in a few words."""
    config = run.config
    return f"{run.protocol}: {config.task}, {config.method}, seed {config.seed}"
