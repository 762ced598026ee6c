"""A worker of torchrun's, which :mod:`tests.distributed.test_torchrun` starts: it goes on from the last checkpoint among
whoever is there, until there have been two workers, one, and two again.
"""

from __future__ import annotations

import datetime
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

EVERY = 4  # steps from one checkpoint to the next
SHAPE = (40, 32)


def main(folder: Path) -> None:
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    import grace

    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=120))
    rank, world = dist.get_rank(), dist.get_world_size()
    (folder / f"pid-{os.environ['AGENT']}").write_text(str(os.getpid()))
    net = nn.Linear(SHAPE[1], SHAPE[0], bias=False)
    nn.init.zeros_(net.weight)
    model = DistributedDataParallel(net)
    handle = grace.attach(model, grace.Policy([("*", "topk:ratio=0.02")]))
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    computed, about = torch.zeros(SHAPE), {"step": 0, "worlds": [world]}

    def gradient(who: int, step: int) -> Any:
        return torch.randn(SHAPE, generator=torch.Generator().manual_seed(1000 * step + who))

    done = sorted((int(path.parent.name), path.parent) for path in folder.glob("*/.metadata"))
    if done:
        # the same for all: nobody saves while others load
        named = {"model": net.state_dict(), "computed": computed, "grace": handle.checkpoint()}
        dcp.load(named, checkpoint_id=done[-1][1])
        about = json.loads((folder / f"{done[-1][0]}.json").read_text())
        about["worlds"] += [world] if about["worlds"][-1] != world else []
    ends = None
    while ends is None or about["step"] < ends:
        step = about["step"]
        optimizer.zero_grad()
        (model(torch.eye(SHAPE[1])).t() * gradient(rank, step)).sum().backward()
        optimizer.step()
        computed += sum(gradient(who, step) for who in range(world)) / world
        about["step"] = step + 1
        if about["step"] % EVERY == 0:
            place = folder / str(about["step"])
            if rank == 0:
                (folder / f"{about['step']}.json").write_text(json.dumps(about))
            dcp.save(
                {"model": net.state_dict(), "computed": computed, "grace": handle.checkpoint()}, checkpoint_id=place
            )
        if about["worlds"] == [2, 1, 2] and ends is None:
            ends = about["step"] + 2 * EVERY
        time.sleep(0.05)
    owed = handle._session.worker.debts()["weight"].clone()
    dist.all_reduce(owed)
    if rank == 0:
        off = float((owed - net.weight.detach() - computed).abs().max())
        (folder / "ended.json").write_text(json.dumps({**about, "off": off, "owed": float(owed.abs().max())}))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
