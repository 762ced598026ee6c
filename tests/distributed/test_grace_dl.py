"""GRACE's interface between two workers: every combination of its parts, and parts of third parties."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from grace_dl.dist.communicator.allgather import Allgather
from grace_dl.dist.communicator.broadcast import Broadcast
from grace_dl.dist.compressor.topk import TopKCompressor
from grace_dl.dist.helper import grace_from_params
from grace_dl.dist.memory.none import NoneMemory
from grace_dl.dist.memory.residual import ResidualMemory
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

import grace
import grace_dl
from grace.errors import FingerprintMismatch, RoundMismatch, TransportError
from grace_dl import network, table
from tests.distributed.processes import Pool
from tests.grace_dl.third_parties import Doubled, InTwoHalves, Largest, OwnGather, SignScale, Vote


def gradient(rank: int, seed: int = 0, shape: tuple[int, ...] = (16, 24)) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(100 * seed + rank))


def assert_alike(x: Tensor, what: object) -> None:
    rows = [torch.zeros_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, x)
    assert all(torch.equal(row, rows[0]) for row in rows), what


# ---- GRACE's own parts ----------------------------------------------------------------------------------------------
def every_combination(rank: int, world: int) -> tuple[int, dict[str, str]]:
    works, refused = 0, {}
    for compressor in table.COMPRESSORS:
        for memory in table.MEMORIES:
            for communicator in ("allreduce", "allgather", "broadcast", "alltoall"):
                what = {"compressor": compressor, "memory": memory, "communicator": communicator}
                try:
                    grc = grace_from_params({**what, "world_size": world})
                except grace.GraceError as error:
                    refused[f"{compressor} {memory} {communicator}"] = str(error)
                    continue
                simulator = grace.Simulator(grc.policy, world)
                for step in range(2):
                    xs = [gradient(r, step) for r in range(world)]
                    kept = xs[rank].clone()
                    mean = grc.step(xs[rank], "w")
                    assert torch.equal(xs[rank], kept), f"{what} changes what it is given"
                    simulated = simulator.step({"w": xs})["w"]
                    if grc.text == "allreduce" or compressor == "powersgd":  # the network's sum has its own order
                        torch.testing.assert_close(mean, simulated, msg=str(what))
                    else:
                        assert torch.equal(mean, simulated), what
                    assert_alike(mean, what)
                works += 1
    return works, refused


def test_every_combination_of_the_helper_is_the_simulators_method_or_is_refused_with_a_reason(pair: Pool) -> None:
    (works, refused), _ = pair.run(every_combination)
    assert works == 275  # of GRACE's 18 compressors 260; and 15 of adapsparse
    assert len(refused) == 105
    reasons = ("cannot be summed", "majority", "narrow numbers", "grow without bound", "no error to feed back")
    assert [entry for entry in refused.items() if not any(reason in entry[1] for reason in reasons)] == []


def knobs_and_halves(rank: int, world: int) -> None:
    grc = Allgather(TopKCompressor(0.3), ResidualMemory(), world)
    assert int((grc.step(gradient(rank), "a") != 0).sum()) >= 116
    grc.compressor.compress_ratio = 0.01
    mean = grc.step(gradient(rank, 1), "a")
    assert int((mean != 0).sum()) <= 8
    assert_alike(mean, "a changed knob")

    sends, together = Allgather(TopKCompressor(0.3), ResidualMemory()), {}
    names = ["b", "c", "a"]
    names = names if rank == 0 else names[::-1]  # the order in which gradients come may differ between ranks
    for _ in range(2):
        handles = {name: sends.send_step(gradient(rank, ord(name)), name) for name in names}
        together = {name: sends.receive_step(*handles[name]) for name in names}
    assert sends.stats[0].steps == 2
    alone = Allgather(TopKCompressor(0.3), ResidualMemory(), world)
    for _ in range(2):
        means = {name: alone.step(gradient(rank, ord(name)), name) for name in "abc"}
    assert all(torch.equal(means[name], together[name]) for name in "abc")


def test_knobs_may_change_while_training_and_sent_tensors_go_in_one_order(pair: Pool) -> None:
    pair.run(knobs_and_halves)


def differing(rank: int, world: int) -> list[str]:
    told = []
    grc = Allgather(TopKCompressor(0.3 + 0.1 * rank), ResidualMemory())
    with pytest.raises(FingerprintMismatch) as caught:
        grc.step(gradient(rank), "w")
    told.append(str(caught.value))
    network.leave()
    grc = Allgather(SignScale(), NoneMemory())
    with pytest.raises(RoundMismatch) as other:
        grc.step(gradient(rank), "w" if rank else "v")
    told.append(str(other.value))
    network.leave()
    with pytest.raises(ValueError, match="world_size=7, but 2 workers take part"):
        grace_from_params({"world_size": 7})
    return told


def test_ranks_that_differ_are_told_apart(pair: Pool) -> None:
    for told in pair.run(differing):
        assert "ratio=0.4" in told[0]
        assert "rank 0: 'v' (16, 24) float32; rank 1: 'w' (16, 24) float32" in told[1]


# ---- third parties' parts -------------------------------------------------------------------------------------------
def third_parties(rank: int, world: int) -> None:
    memory = ResidualMemory()
    for kind in (Allgather, Broadcast):
        for compressor in (SignScale(), Largest()):
            memory = ResidualMemory()
            grc = kind(compressor, memory, world)
            xs, means = [gradient(rank, step) for step in range(4)], []
            for x in xs:
                means.append(grc.step(x, "w"))
                assert_alike(means[-1], compressor)
            owed, total = memory.residuals["w"].clone(), sum(xs)
            dist.all_reduce(owed)
            dist.all_reduce(total)
            torch.testing.assert_close(sum(means) + owed / world, total / world)  # nothing is lost
    everyone = [gradient(r) for r in range(world)]
    own = everyone[rank]
    vote = Allgather(Vote(), NoneMemory()).step(own, "w")
    expected = torch.sign(sum(SignScale().decompress(*SignScale().compress(x, "w")) for x in everyone))
    assert torch.equal(vote, expected)
    doubled = Doubled()
    assert torch.equal(
        Allgather(TopKCompressor(1.0), doubled).step(own, "w"),
        Allgather(TopKCompressor(1.0), NoneMemory()).step(2 * own, "w"),
    )
    assert doubled.seen == ["w"]
    expected = Allgather(SignScale(), NoneMemory()).step(own, "w") * world
    assert torch.equal(OwnGather(SignScale(), NoneMemory(), world).step(own, "w"), expected)
    halves = InTwoHalves(SignScale(), NoneMemory(), world)
    assert torch.equal(halves.receive_step(*halves.send_step(own, "w")), expected)
    assert torch.equal(halves.step(own, "w"), expected)


def test_parts_of_third_parties_run_as_they_did_with_grace(pair: Pool) -> None:
    pair.run(third_parties)


class Failing(SignScale):
    def decompress(self, tensors: object, ctx: object) -> object:
        raise ArithmeticError("an error of the user's")


def failing(rank: int, world: int) -> str:
    grc = Allgather(Failing() if rank == 0 else SignScale(), NoneMemory())
    error = ArithmeticError if rank == 0 else TransportError
    with pytest.raises(error) as caught:  # noqa: PT012
        for step in range(3):
            grc.step(gradient(rank, step), "w")
    network.leave()
    return str(caught.value)


def test_an_error_of_one_ranks_part_ends_all(pair: Pool) -> None:
    assert pair.run(failing)[0] == "an error of the user's"


# ---- adopted --------------------------------------------------------------------------------------------------------
def adopted(rank: int, world: int) -> None:
    for compressor in (Largest, SignScale):
        method = grace_dl.adopt(compressor, memory="residual")
        policy = grace.Policy([("*", method)])
        torch.manual_seed(0)
        model = DistributedDataParallel(torch.nn.Linear(6, 4))
        handle = grace.attach(model, policy)
        simulator = grace.Simulator(policy, world)
        batches = [gradient(r, 7, (5, 6)) for r in range(world)]
        for _ in range(3):
            grads = []
            for x in batches:
                local = torch.nn.Linear(6, 4)
                local.load_state_dict(model.module.state_dict())
                local(x).square().sum().backward()
                grads.append(dict(local.named_parameters()))
            simulated = simulator.step({n: [g[n].grad for g in grads] for n in grads[0]})
            model.zero_grad()
            model(batches[rank]).square().sum().backward()
            for name, p in model.module.named_parameters():
                assert torch.equal(p.grad, simulated[name]), (compressor, name)
        assert handle.stats.steps == 3
        handle.detach()


def test_an_adopted_compressor_gives_the_simulators_bits_under_ddp(pair: Pool) -> None:
    pair.run(adopted)
