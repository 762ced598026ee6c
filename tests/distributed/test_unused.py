"""Parameters that a step does not use, at the optimizer's own door: what no rank used keeps None, and owes nothing."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import grace
from grace.adapters.applied import Applied
from grace.adapters.unused import Unused
from grace.errors import FingerprintMismatch
from tests.distributed.processes import Pool
from tests.distributed.test_torch_optimizer import assert_replicas_agree

MEMORIES = ["topk:ratio=0.05", "efsignsgd", "powersgd"]
USES: list[
    tuple[set[int], int | None]
] = [  # of each step: the ranks that use the block, and the head, None: each its own
    ({0, 1}, 0),
    (set(), 0),
    ({0}, 1),
    ({1}, None),
    (set(), 1),
    ({0, 1}, 1),
    (set(), 0),
]


class Branches(nn.Module):
    """A block that some ranks use in some steps, and two heads, of which each step uses one."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(40, 48)
        self.block = nn.Linear(48, 48)
        self.heads = nn.ModuleList([nn.Linear(48, 30, bias=False), nn.Linear(48, 30, bias=False)])

    def forward(self, x: Tensor, block: bool, head: int) -> Tensor:
        x = torch.tanh(self.first(x))
        out: Tensor = self.heads[head](torch.tanh(self.block(x)) if block else x)
        return out


def make() -> Branches:
    torch.manual_seed(5)
    return Branches()


def adamw(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(net.parameters(), lr=0.05, weight_decay=0.1)


def distribute(net: nn.Module, method: str, **options: Any) -> Any:
    return grace.DistributedOptimizer(adamw(net), method, net.named_parameters(), bucket_mb=0.01, **options)


def loss_of(net: nn.Module, rank: int, step: int, uses: tuple[set[int], int | None]) -> Tensor:
    x = torch.randn(8, 40, generator=torch.Generator().manual_seed(100 * step + rank))
    block, head = uses
    out: Tensor = net(x, rank in block, rank if head is None else head)
    return out.square().mean()


def unused_in(uses: tuple[set[int], int | None]) -> set[str]:
    names = {"block"} if not uses[0] else set()
    return names | ({f"heads.{1 - uses[1]}"} if uses[1] is not None else set())


def without_gradient(net: nn.Module) -> set[str]:
    return {name.rpartition(".")[0] for name, p in net.named_parameters() if p.grad is None}


# ---- beside DistributedDataParallel -----------------------------------------------------------------------------------
def train_plain(rank: int, passes: int, set_to_none: bool) -> dict[str, Tensor]:
    net = make()
    wrapped, optimizer = DistributedDataParallel(net, find_unused_parameters=True), adamw(net)
    for step, uses in enumerate(USES):
        optimizer.zero_grad(set_to_none)
        for part in range(passes - 1):
            with wrapped.no_sync():
                loss_of(wrapped, rank, 10 * part + step, uses).backward()
        loss_of(wrapped, rank, 10 * (passes - 1) + step, uses).backward()
        optimizer.step()
    return net.state_dict()


def train(
    rank: int, passes: int, set_to_none: bool, synchronize: bool, method: str, look: bool = False, **options: Any
) -> dict[str, Tensor]:
    """The parameters and states at the end. look: whether states are read between steps."""
    net = make()
    optimizer = distribute(net, method, backward_passes_per_step=passes, **options)
    for step, uses in enumerate(USES):
        net.zero_grad(set_to_none)
        if look:
            states(optimizer)
        for part in range(passes):
            loss_of(net, rank, 10 * part + step, uses).backward()
        if synchronize:
            optimizer.synchronize()
            if set_to_none:
                assert without_gradient(net) == unused_in(uses), step
            with optimizer.skip_synchronize():
                optimizer.step()
        else:
            optimizer.step()
    assert optimizer.handle.stats.steps == len(USES)
    net.zero_grad()
    held = {f"{name}, state {place}": x for name, xs in states(optimizer).items() for place, x in enumerate(xs)}
    optimizer.handle.detach()
    return {**net.state_dict(), **held}


def parts(state: Any) -> list[Tensor]:
    if isinstance(state, Tensor):
        return [state.clone()]
    return [x for part in state for x in parts(part)] if isinstance(state, list | tuple) else []


def states(optimizer: Any) -> dict[str, list[Tensor]]:
    return {name: parts(state) for name, state in optimizer.handle.state_dict()["states"].items()}


def as_plain(rank: int, world: int) -> None:
    for passes, set_to_none in ((1, True), (2, True), (1, False)):
        plain = train_plain(rank, passes, set_to_none)
        for method in ("none", "none:memory=residual") if passes == 1 and set_to_none else ("none",):
            ours = train(rank, passes, set_to_none, synchronize=passes > 1, method=method)
            for name, x in plain.items():
                assert torch.equal(x, ours[name]), (name, passes, set_to_none, method)


def test_what_no_rank_used_is_as_under_ddp_to_the_bit(pair: Pool) -> None:
    pair.run(as_plain)


def the_old_way(rank: int, world: int) -> None:
    """With zeros weight decay and momentum move what nobody has used."""
    net = make()
    optimizer = distribute(net, "none", unused="zeros")
    before = copy.deepcopy(net.state_dict())
    loss_of(net, rank, 0, (set(), 0)).backward()
    optimizer.synchronize()
    assert not without_gradient(net)
    assert not bool(net.block.weight.grad.any())  # type: ignore[union-attr]
    optimizer.step()
    assert not torch.equal(net.block.weight, before["block.weight"])
    optimizer.handle.detach()
    plain = train_plain(rank, 1, True)
    ours = train(rank, 1, True, synchronize=False, method="none", unused="zeros")
    assert not torch.equal(plain["block.weight"], ours["block.weight"])
    with pytest.raises(FingerprintMismatch, match=r"unused: 'none' on ranks \[0\], 'zeros' on ranks \[1\]"):
        distribute(make(), "none", unused="zeros" if rank else "none")


def nobody_has_data(rank: int, world: int) -> None:
    net = make()
    optimizer = distribute(net, "topk:ratio=0.05")
    before = copy.deepcopy(net.state_dict())
    optimizer.synchronize()
    optimizer.step()
    assert all(p.grad is None for p in net.parameters())
    assert all(torch.equal(x, before[name]) for name, x in net.state_dict().items())
    optimizer.handle.detach()


def frozen_on_one_rank(rank: int, world: int) -> None:
    """It is trained by the others: all get the mean."""
    net = make()
    optimizer = distribute(net, "none")
    net.block.requires_grad_(rank == 0)
    loss_of(net, rank, 0, ({0, 1}, 0)).backward()
    optimizer.step()
    assert without_gradient(net) == {"heads.1"}
    assert_replicas_agree(net, world)
    optimizer.handle.detach()


@pytest.mark.parametrize("case", [the_old_way, nobody_has_data, frozen_on_one_rank], ids=lambda f: f.__name__)
def test_steps_without_some_gradients(pair: Pool, case: Callable[[int, int], None]) -> None:
    pair.run(case)


# ---- memories -----------------------------------------------------------------------------------------------------------
def owes_nothing(rank: int, world: int, method: str) -> None:
    """A parameter that no rank has used does not move, and its memory, momenta and factors are as before."""
    net, wrong, owes = make(), [], False  # told at the end: the others would wait for a rank that stops
    optimizer = distribute(net, method)
    for step, uses in enumerate(USES):
        before, held = copy.deepcopy(net.state_dict()), states(optimizer)
        loss_of(net, rank, step, uses).backward()
        optimizer.step()
        net.zero_grad()
        now = states(optimizer)
        for name, p in net.named_parameters():
            unused = name.rpartition(".")[0] in unused_in(uses)
            wrong += [(step, name)] if torch.equal(p, before[name]) != unused else []
            if unused and name in held:
                wrong += [(step, name, "state")] if not all(map(torch.equal, held[name], now[name])) else []
                owes = owes or any(bool(x.any()) for x in held[name])
    assert optimizer.handle.stats.dropped == sum(bool(unused_in(uses)) for uses in USES)
    assert not wrong, wrong
    assert owes, "there was nothing to keep"
    optimizer.handle.detach()


@pytest.mark.parametrize("method", MEMORIES)
def test_what_no_rank_used_owes_nothing(pair: Pool, method: str) -> None:
    pair.run(owes_nothing, method)


def settles(rank: int, world: int, method: str, spoil: Callable[[], None] = lambda: None) -> None:
    """States that are read between steps, when it is found out what was cleared, are no others than those that are not. The
    head that step 5 does not use is the first whose gradient comes in step 6.
    """
    spoil()
    ends = [train(rank, 1, True, synchronize=False, method=method, look=look) for look in (False, True)]
    wrong = [name for name, x in ends[0].items() if not torch.equal(x, ends[1][name])]
    assert not wrong, wrong


@pytest.mark.parametrize("method", ["topk:ratio=0.05", "powersgd"])
def test_it_is_known_before_the_next_gradient_comes(pair: Pool, method: str) -> None:
    pair.run(settles, method)


def decides_alone() -> None:
    """A rank that does not ask the others."""
    Unused.find = lambda self, agreed: list(self._lacking)  # type: ignore[method-assign]


def waits_for_none() -> None:
    """A parameter that no rank has used counts as handed out, and waits."""
    own = Applied.hand_out
    Applied.hand_out = lambda self, names, unused=(): own(self, names)  # type: ignore[method-assign]


def as_plain_once(rank: int, world: int, spoil: Callable[[], None]) -> None:
    spoil()
    plain, ours = train_plain(rank, 1, True), train(rank, 1, True, synchronize=False, method="none")
    wrong = [name for name, x in plain.items() if not torch.equal(x, ours[name])]
    assert not wrong, wrong


def test_mutants_are_found() -> None:
    settles_wrongly: tuple[Any, ...] = (settles, "topk:ratio=0.05", waits_for_none)
    for case, *args in ((as_plain_once, decides_alone), settles_wrongly):
        pool = Pool(2)  # of its own: the mutant stays in it
        with pytest.raises(AssertionError, match=r"heads\.0\.weight"):
            pool.run(case, *args)
