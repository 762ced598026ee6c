"""Examples of each thing that is added to Grace, as its author would write it: new files, and lines in files that there
are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Addition:
    """An addition, as its author writes it by hand.

    what: the beginning of its row in the table of docs/concepts/architecture.md.
    files: new ones, by their path in the tree.
    lines: what is put before a line of a file that there is: path -> (the line, what comes before it).
    gate: its own tests and some of the laws, as an expression for pytest's -k.
    night: what has to pass when `make goldens docs` has run, as arguments of pytest.
    """

    what: str
    files: Mapping[str, str]
    lines: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    gate: str = ""
    night: tuple[str, ...] = ()

    @property
    def word(self) -> str:
        """Name of its first file."""
        return next(iter(self.files)).rpartition("/")[2].removesuffix(".py")

    @property
    def by_hand(self) -> int:
        """Number of files that its author touches by hand."""
        return len(self.files) + len(self.lines)


METHOD = Addition(
    "method",
    {
        "src/grace/methods/blockfirst.py": '''\
"""The first number of each block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from grace import wire
from grace.contract.compressor import Compressor
from grace.contract.facts import Facts
from grace.contract.knobs import Range
from grace.kernels import block_count
from grace.random import Stream
from grace.registry.recipes import register


@register("blockfirst", communicator="allgather", memory="residual", family="sparsification", cases=["block=8", "block=2"])
@dataclass(frozen=True, slots=True)
class BlockFirst(Compressor):
    """First numbers: of each block of B numbers the first is kept.

    Letters: b rows of n numbers, nb = ceil(n/B) blocks in a row.

    Args:
        block: B, numbers in a block.
    Wire:
        nb numbers, float32.
    Bias:
        biased; the error is never longer than x.
    Differs from the paper:
        there is none.
    Example:
        >>> method("blockfirst:block=8").facts(torch.empty(16)).payload
        8

    Reference:
        none.
    """

    block: Annotated[int, Range(least=2)] = 64

    def compress_(self, rows: Tensor, rng: Stream, keep_rest: bool) -> Tensor:
        message = wire.join(rows[:, :: self.block])
        if keep_rest:
            rows[:, :: self.block] = 0.0
        return message

    def decompress_add_(self, message: Tensor, out: Tensor, scale: float, rng: Stream) -> None:
        (first,) = wire.split(message, [("first", torch.float32, block_count(out.shape[1], self.block))])
        out[:, :: self.block].add_(first, alpha=scale)

    def facts(self, n: int) -> Facts:
        return Facts(contraction=0.0, payload=4 * block_count(n, self.block))
''',
        "tests/unit/methods/test_blockfirst.py": """\
from __future__ import annotations

import torch

import grace


def test_the_first_of_each_block_is_kept() -> None:
    sim = grace.Simulator("blockfirst:block=2,memory=none", world=1)
    mean = sim.step({"w": [torch.tensor([[1.0, 3.0, 5.0, 7.0]] * 512)]})["w"]
    assert mean[0].tolist() == [1.0, 0.0, 5.0, 0.0]
""",
        "changes/blockfirst.feature.md": "`blockfirst`: the first numbers of blocks.\n",
    },
    gate="test_blockfirst or (test_laws and blockfirst and (agreement or conservation or lost))",
    night=("tests/laws", "tests/golden", "tests/unit/methods/test_blockfirst.py", "-k", "blockfirst"),
)

MEMORY = Addition(
    "memory",
    {
        "src/grace/memories/fading.py": '''\
"""Error feedback that forgets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from grace.contract.knobs import Share
from grace.memories.error_feedback import ErrorFeedback
from grace.registry.recipes import register_memory

S = TypeVar("S")


@register_memory("fading")
@dataclass(frozen=True, slots=True)
class Fading(ErrorFeedback[S], Generic[S]):
    """Error feedback that forgets a tenth of what it owes in each step."""

    beta: Share = 0.9
''',
        "tests/unit/memories/test_fading.py": """\
from __future__ import annotations

import grace


def test_it_forgets() -> None:
    assert not grace.method("topk:memory=fading").loses_nothing
""",
        "changes/fading.feature.md": "`memory=fading`: error feedback that forgets.\n",
    },
    gate="test_fading or (test_laws and fading and agreement)",
    night=("tests/laws", "tests/unit/memories/test_fading.py", "-k", "fading"),
)

COMMUNICATOR = Addition(
    "communicator",
    {
        "src/grace/communicators/gathering.py": '''\
"""A gather by another name."""

from __future__ import annotations

from dataclasses import dataclass

from grace.communicators.allgather import Allgather
from grace.registry.recipes import register_communicator


@register_communicator("gathering")
@dataclass(frozen=True, slots=True)
class Gathering(Allgather):
    """Each rank gathers all wires."""
''',
        "tests/unit/communicators/test_gathering.py": """\
from __future__ import annotations

import grace


def test_it_carries_what_a_gather_carries() -> None:
    assert grace.spell(grace.method("qsgd:communicator=gathering")) == "qsgd:bits=4,communicator=gathering"
""",
        "changes/gathering.feature.md": "`communicator=gathering`.\n",
    },
    gate="test_gathering or (test_laws and gathering and qsgd and agreement)",
    night=("tests/laws", "tests/unit/communicators/test_gathering.py", "-k", "gathering"),
)

TRANSPORT = Addition(
    "transport",
    {
        "src/grace/transports/carrier.py": '''\
"""Carriers, which know each other through ``torch.distributed``."""

from __future__ import annotations

from grace.transports.base import Wrapper
from grace.transports.candidates import register_transport
from grace.transports.torch_distributed import TorchDistributed


@register_transport("carrier")
class Carrier(Wrapper):
    """A transport that hands everything on."""

    name = "carrier"
    why = ""

    def __init__(self) -> None:
        super().__init__(TorchDistributed.of_same_ranks())
''',
        "tests/unit/transports/test_carrier.py": """\
from __future__ import annotations

from grace.transports.choose import choose


def test_it_is_found_by_its_name() -> None:
    assert choose("carrier").name == "carrier"
""",
        "changes/carrier.feature.md": "The transport `carrier`.\n",
    },
    {
        "src/grace/transports/choose.py": (
            'register_transport("alone")(Alone)\n',
            'importlib.import_module("grace.transports.carrier")\n',
        )
    },
    gate="test_carrier",
    night=("tests/unit/transports", "tests/distributed/test_transport.py", "-k", "carrier or choose"),
)

ADAPTER = Addition(
    "adapter",
    {
        "src/grace/adapters/turbines.py": '''\
"""A door for turbines, whose gradients are exchanged when they say so."""

from __future__ import annotations

from typing import Any

import torch

from grace.adapters.doors import register_door
from grace.adapters.handle import Handle
from grace.contract.method import Method
from grace.registry.policy import Policy
from grace.run.options import Options
from grace.run.session import Session
from grace.run.steps import Steps
from grace.transports.base import Transport
from grace.transports.choose import transport_for_handle


class TurbinesHandle(Handle):
    """What attach gives for turbines."""

    def detach(self) -> None:
        """See :class:`grace.Handle`."""
        self._session.close()


@register_door("turbines")
class TurbinesDoor:
    """For modules that have ``turbines``."""

    def takes(self, model: object) -> str | None:
        """See :class:`grace.adapters.doors.Door`."""
        return None if hasattr(model, "turbines") else ""

    def open(
        self,
        model: Any,
        method: Policy | Method[Any] | str,
        options: Options,
        *,
        optimizer: torch.optim.Optimizer | None,
        scaler: torch.amp.GradScaler | None,
        transport: str | Transport | None,
    ) -> Handle:
        """See :class:`grace.adapters.doors.Door`."""
        made = transport_for_handle(transport or "auto")
        return TurbinesHandle(Steps(Session(dict(model.named_parameters()), method, made, options)))
''',
        "tests/unit/adapters/test_turbines.py": """\
from __future__ import annotations

import torch

import grace


def test_attach_takes_turbines() -> None:
    model = torch.nn.Linear(40, 40)
    model.turbines = 2
    handle = grace.attach(model, "topk", transport="alone")
    assert type(handle).__name__ == "TurbinesHandle"
    handle.detach()
""",
        "changes/turbines.feature.md": "`attach` takes turbines.\n",
    },
    {
        "src/grace/adapters/attach.py": (
            "from grace.adapters.axes import Axes\n",
            "from grace.adapters import turbines  # noqa: F401 - a door\n",
        )
    },
    gate="test_turbines",
    night=("tests/unit/adapters/test_turbines.py", "tests/unit/adapters/test_doors.py"),
)

TASK = Addition(
    "task",
    {
        "src/grace_bench/tasks/lines.py": '''\
"""Lines through noise: a task of which everything is known."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from grace_bench.tasks.suite import DataSet, SuiteTask, epochs_of, tensor

Batch = tuple[Tensor, Tensor]


class _Line(nn.Linear):
    def __init__(self) -> None:
        super().__init__(32, 4)


class Lines(SuiteTask):
    """Four lines in 32 dimensions, seen through noise. Quality is the share of the variance that is explained."""

    name = "lines"
    about = "lines through noise"
    metric = "r2"
    batch, epochs = 16, 2
    synthetic_samples = 1024
    network = _Line

    def read(self, root: Path | None) -> DataSet:
        random = np.random.RandomState(0)
        self.x = random.standard_normal((1280, 32)).astype(np.float32)
        self.y = self.x @ random.standard_normal((32, 4)).astype(np.float32)
        return DataSet.of("lines", {"x": self.x, "y": self.y}, 1024, procedural=True)

    def batches_of(self, rank: int, world: int, seed: int) -> Iterator[Batch]:
        for index, _ in epochs_of(self.samples, rank, world, self.batch, seed):
            yield tensor(self.x[index]), tensor(self.y[index])

    def synthetic_batch(self, random: np.random.RandomState) -> Batch:
        return torch.from_numpy(random.rand(self.batch, 32)).float(), torch.from_numpy(random.rand(self.batch, 4)).float()

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return torch.nn.functional.mse_loss(model(batch[0]), batch[1])

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.1)

    def lr(self, step: int) -> float:
        return 0.1

    def measure(self, model: nn.Module) -> dict[str, float]:
        x, y = tensor(self.x[1024:]), tensor(self.y[1024:])
        return {"r2": float(1 - (model(x) - y).square().mean() / y.var())}
''',
        "tests/unit/grace_bench/tasks/test_lines.py": """\
from __future__ import annotations

from grace_bench.tasks import find_task


def test_its_data_are_always_the_same() -> None:
    task = find_task("lines")
    task.load(None)
    assert task.data_info()["procedural"]
    assert task.default_steps(4) == 32
""",
        "changes/lines.feature.md": "The task `lines`.\n",
    },
    gate="test_lines",
    night=("tests/unit/grace_bench/tasks/test_lines.py", "tests/unit/grace_bench/tasks", "tests/docs/test_pages.py"),
)

ADDITIONS = {
    "method": METHOD, "memory": MEMORY, "communicator": COMMUNICATOR, "transport": TRANSPORT, "adapter": ADAPTER,
    "task": TASK,
}  # fmt: skip
