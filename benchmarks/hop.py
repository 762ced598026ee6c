"""Shared memory against gloo, inside one machine: ``python -m benchmarks.hop``.

The collectives of ``machine=`` (a reduce-scatter and an all-gather of what it gives) and an all-reduce, of float32, at
several sizes. Both ways take turns in rounds; medians over rounds with their range, of the slowest worker's wall time and of
the mean of their processor time, and the ratio to gloo in the same round. For an idle machine: load before and after is said.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks import contenders
from benchmarks.ladder.__main__ import spread
from grace.collectives import AllGather, AllReduce, ReduceScatter
from grace.transports.base import Transport
from grace.transports.machine import SLOT, MachineTransport
from grace.transports.torch_distributed import TorchDistributed

HEADS = ("collective", "KiB", "gloo, ms", "shared, ms", "shared / gloo", "gloo, processor ms", "shared, processor ms")
_ENOUGH = 32 << 20  # bytes of a turn: small collectives are done several times

Sample = tuple[float, float]  # wall and processor seconds of one collective


def hop(transport: Transport, x: torch.Tensor) -> None:
    """The exchange of ``machine=`` inside a machine, for a tensor."""
    transport.run(AllGather(transport.run(ReduceScatter(x.view(transport.world, -1), "mean"))))


def all_reduce(transport: Transport, x: torch.Tensor) -> None:
    """An all-reduce of it."""
    transport.run(AllReduce(x, "mean"))


KINDS = {"hop": hop, "all-reduce": all_reduce}


def measure(transports: Mapping[str, Transport], sizes: Sequence[int], rounds: int) -> list[dict[str, Any]]:
    """Samples by way, one for each round, of each collective and size in KiB; on all ranks alike."""
    out = []
    for kind, run in KINDS.items():
        for size in sizes:
            x = torch.randn(256 * size // dist.get_world_size() * dist.get_world_size())
            times = max(1, min(200, _ENOUGH // (4 * x.numel())))
            samples: dict[str, list[Sample]] = {way: [] for way in transports}
            for k in range(rounds + 1):
                for way in list(transports)[:: 1 if k % 2 else -1]:
                    dist.barrier()
                    start, spent = time.perf_counter(), time.process_time()
                    for _ in range(times):
                        run(transports[way], x)
                    own = ((time.perf_counter() - start) / times, (time.process_time() - spent) / times)
                    told: list[Any] = [None] * dist.get_world_size()
                    dist.all_gather_object(told, own)
                    if k:  # the first is not counted
                        samples[way].append((max(wall for wall, _ in told), statistics.mean(cpu for _, cpu in told)))
            out.append({"kind": kind, "size": size, "samples": samples})
            contenders.tell(f"{kind} of {size} KiB is measured")
    return out


def work(options: argparse.Namespace) -> None:
    """The work of each worker."""
    contenders.join()
    shared = MachineTransport(TorchDistributed.of_same_ranks(), slot=options.slot << 10)
    gloo = TorchDistributed.of_same_ranks()
    for transport in (shared, gloo):
        transport.all_gather_text("", seconds=60.0)
    if shared.why:
        raise SystemExit(shared.why)
    measured = measure(
        {"gloo": gloo, "shared": shared}, [int(size) for size in options.sizes.split(",")], options.rounds
    )
    if dist.get_rank() == 0:
        Path(options.out).write_text(json.dumps(measured, indent=1))
    contenders.end()


def rows(measured: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """The table's lines."""
    lines = []
    for row in measured:
        gloo, shared = row["samples"]["gloo"], row["samples"]["shared"]
        ratios = [s[0] / g[0] for s, g in zip(shared, gloo, strict=True)]
        wall = [spread([1e3 * sample[0] for sample in samples], 3) for samples in (gloo, shared)]
        cpu = [spread([1e3 * sample[1] for sample in samples], 3) for samples in (gloo, shared)]
        lines.append([row["kind"], str(row["size"]), *wall, spread(ratios, 2), *cpu])
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    """Starts the workers, and shows what they found."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hop", description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--sizes", default="1,16,256,4096,25600", help="in KiB")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--slot", type=int, default=SLOT >> 10, help="KiB that a worker gives in one turn")
    parser.add_argument("--out", default="build/hop.json", help="what is written: all samples")
    options = parser.parse_args(arguments)
    Path(options.out).parent.mkdir(parents=True, exist_ok=True)
    if "RANK" in os.environ:
        work(options)
    around = contenders.Surroundings()
    contenders.start("benchmarks.hop", "none", options.workers)
    measured = json.loads(Path(options.out).read_text())
    Path(options.out).write_text(json.dumps({**around.as_dict(), "found": measured}, indent=1))
    table = contenders.markdown(HEADS, rows(measured))
    sys.stdout.write(
        f"{options.workers} workers, slots of {options.slot} KiB, {options.rounds} rounds; {around}\n\n{table}\n"
    )


if __name__ == "__main__":
    main()
