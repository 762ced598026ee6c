"""A plan of the survey, a TOML file: methods x tasks x seeds by a protocol, in the order in which they are worth most."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from grace.auto.settings import wanted
from grace.errors import ConfigurationError
from grace.registry import from_file, resolve
from grace_bench.extras import TORCH
from grace_bench.runs.algorithms import OuterAlgorithm, TorchLocalAlgorithm, find_algorithm
from grace_bench.runs.config import RunConfig
from grace_bench.runs.plan import check
from grace_bench.runs.results import by_path
from grace_bench.survey.row import TRIAL, SurveyRow, name_of


class Block(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table ``[[runs]]``. Every seed of every task and method is a run; the seed changes last.

    Attributes:
        protocol: its name, in every row. tasks, methods, seeds, workers: see :class:`grace_bench.runs.config.RunConfig`.
        steps, epochs: length, by default the task's. lr: peak, instead of what suits task and method.
        evaluations: of the test set, the start not counted. batch: of one worker and step. data: official files.
        grid: peak learning rates. Each method tries all of them on the first seed, under the protocol ``PROTOCOL-trial``, and
            runs the other seeds with the one that ended best.
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
    grid: tuple[float, ...] = ()


class _File(msgspec.Struct, forbid_unknown_fields=True):
    runs: list[Block]


@dataclass(frozen=True, slots=True)
class Planned:
    """A run, and the name of its protocol. ``grid``: the learning rates among which its trials, of seed ``tried``, choose."""

    protocol: str
    config: RunConfig
    grid: tuple[float, ...] = ()
    tried: int = 0

    @property
    def trials(self) -> list[Planned]:
        """The runs that choose its learning rate; none where that is given."""
        of = [replace(self.config, lr=lr, seed=self.tried) for lr in self.grid]
        return [Planned(self.protocol + TRIAL, config) for config in of]

    def settle(self, trials: Sequence[SurveyRow]) -> Planned:
        """The run with the learning rate of the trial that ended best; of equals, or if all diverged, the first."""
        ends = [(row.final, row.better == "higher", lr) for row, lr in zip(trials, self.grid, strict=True)]
        best = [(end if higher else -end, lr) for end, higher, lr in ends if end is not None]
        lr = max(best, key=lambda pair: pair[0])[1] if best else self.grid[0]
        return Planned(self.protocol, replace(self.config, lr=lr))


def read_plan(path: Path) -> list[Planned]:
    """The runs of a plan, each once.

    Raises:
        ConfigurationError: it is no plan, or names a class that the user has not named; the message says what is wrong.
        UnknownNameError: a task or a method that does not exist.
    """
    try:
        file = msgspec.toml.decode(path.read_bytes(), type=_File)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"{path}: {by_path(error)}") from error
    except msgspec.DecodeError as error:
        raise ConfigurationError(f"{path} is not TOML: {error}") from error
    try:
        for block in file.runs:
            _check_block(block)
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from error
    with from_file():
        runs = [run for block in file.runs for run in expand(block)]
        check([run.config for run in runs])
        for run in runs:
            check_run(run.config)
    return list(dict.fromkeys(runs))


def expand(block: Block) -> list[Planned]:
    """The runs of a block."""
    common = {
        name: getattr(block, name)
        for name in ("workers", "steps", "epochs", "evaluations", "lr", "batch", "data")
    }  # fmt: skip
    methods = [resolve(name) for name in block.methods]
    first, *more_seeds = block.seeds
    runs = [
        Planned(block.protocol, RunConfig(task=task, method=method, seed=seed, cores=1, **common), block.grid, first)
        for seed in (more_seeds if block.grid else block.seeds)
        for task in block.tasks
        for method in methods
    ]
    return [trial for run in runs for trial in (*run.trials, run)]


def _check_block(block: Block) -> None:
    """Checks a block beyond its types."""
    if not block.seeds:
        raise ConfigurationError("seeds is empty; legal: one seed or more, such as seeds = [0, 1, 2]")
    if not block.grid:
        return
    if len(set(block.grid)) != len(block.grid) or not all(math.isfinite(lr) and lr > 0 for lr in block.grid):
        raise ConfigurationError(
            f"grid = {list(block.grid)}; legal: learning rates > 0, each once, such as [0.03, 0.1, 0.3]"
        )
    if len(block.seeds) < 2 or len(set(block.seeds)) != len(block.seeds):
        raise ConfigurationError(
            f"seeds = {list(block.seeds)} beside a grid; legal: two or more, each once: the first chooses the learning rate, "
            "the others judge it"
        )
    if block.lr is not None:
        raise ConfigurationError(f"lr = {block.lr} beside a grid; legal: one of the two")


def check_run(config: RunConfig) -> None:
    """Checks that a run can have all its workers in one process.

    Raises:
        ConfigurationError: it needs processes, as torch's own baselines and rivals, other toolkits and links do, or its method
            chooses by measured time; another granularity; an algorithm that cannot be made.
    """
    if config.kind == "baseline" or config.network.shaped or config.toolkit != TORCH:
        raise ConfigurationError(
            f"the survey runs methods in torch, not {config.method!r} in {config.toolkit} over {config.link!r}; "
            "grace bench train does"
        )
    if config.granularity != "parameter":
        raise ConfigurationError(f"the survey compresses by parameter, not by {config.granularity}")
    algorithm = find_algorithm(config.method)
    if isinstance(algorithm, TorchLocalAlgorithm):
        raise ConfigurationError(f"{config.method} runs over torch.distributed alone; legal: grace bench train")
    chosen = algorithm.method if isinstance(algorithm, OuterAlgorithm) else config.method
    if isinstance(chosen, str) and wanted(chosen) is not None:
        raise ConfigurationError(
            f"the survey measures no time, by which {config.method} would choose; legal: a method, or grace bench train"
        )
    name_of(config.method)  # what it is made of


def shard(runs: list[Planned], text: str) -> list[Planned]:
    """Part ``I/N`` of the runs, from 1/N to N/N: every N-th, so that each part begins with what is worth most. Runs whose
    learning rate others choose stay with those.

    Raises:
        ConfigurationError: it is no such part.
    """
    part, _, parts = text.partition("/")
    if not (part.isdecimal() and parts.isdecimal() and 1 <= int(part) <= int(parts)):
        raise ConfigurationError(f"shard {text!r} is no part; legal: I/N with 1 <= I <= N, such as 2/5")
    together: dict[object, list[Planned]] = {}
    for run in runs:
        tuned = run.grid or run.protocol.endswith(TRIAL)
        unit = (run.protocol.removesuffix(TRIAL), replace(run.config, seed=0, lr=None)) if tuned else run
        together.setdefault(unit, []).append(run)
    return [run for unit in list(together.values())[int(part) - 1 :: int(parts)] for run in unit]


def describe(run: Planned) -> str:
    """A run in a few words."""
    config = run.config
    lr = "" if config.lr is None else f", lr {config.lr:g}"
    return f"{run.protocol}: {config.task}, {config.method}, seed {config.seed}{lr}"
