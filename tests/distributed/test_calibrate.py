"""Measurements of ``auto`` over real networks: all ranks know the same, and a worker that dies is heard of."""

from __future__ import annotations

import os
import re
import textwrap
import time
from pathlib import Path

import pytest

from grace.auto.calibrate import Calibration, calibrate
from grace.auto.model import StepClock, model_of
from grace.auto.sources import look
from grace.collectives import NARROW
from grace.predict.probe import Probe
from tests.distributed.processes import LaunchedPool, Pool, fork
from tests.distributed.test_transport import ready
from tests.patience import PATIENCE

CANDIDATES = ("none", "bf16", "topk", "qsgd:bits=4,communicator=scatterreduce", "powersgd")
LARGEST = 500_000


def measured(rank: int, world: int) -> tuple[Calibration, Calibration]:
    transport = ready("gloo")
    known = calibrate(transport, CANDIDATES, LARGEST)
    again = look(transport, known, ["none", "topk"] if "topk" in known.rates else ["none"])
    transport.close()
    return known, again


def test_ranks_know_the_same_to_the_bit(pair: Pool) -> None:
    (known, again), *others = pair.run(measured)
    assert all(other == (known, again) for other in others)
    assert set(known.rates) | set(known.left_out) == set(CANDIDATES)
    assert {"none", "bf16"} <= set(known.rates)
    assert known.cores == pytest.approx(len(os.sched_getaffinity(0)) / 2), "two workers share this machine"
    assert known.fingerprint.startswith("2 workers over gloo")
    assert {"AllReduce", f"AllReduce{NARROW}"} <= set(known.timings.kinds)
    for timing in known.timings.kinds.values():
        assert len(timing.sizes) >= 2
        assert timing.cpu > 0
    assert again.rates.keys() == known.rates.keys()
    assert again.spent["looks"] > 0
    (_, (cpu, seconds), *_) = known.phases("none", [(500, 1000)])
    assert seconds == pytest.approx(known.timings.seconds("AllReduce", 4 * LARGEST), rel=0.01)
    assert cpu > 0


def probed(rank: int, world: int, kind: str) -> tuple[object, int]:
    transport = ready(kind)
    probe = Probe(transport, cores=2, repeats=lambda size: 1)
    for name in ("AllReduce", f"AllReduce{NARROW}", "AllGather", "AllToAll", "ReduceScatter", "Broadcast", "Permute"):
        probe.learn(name, 1 << 15)
    transport.close()
    return probe.timings.kinds, probe.spent


def test_a_probe_measures_any_transport(workers: Pool | LaunchedPool) -> None:
    first, *others = workers.run(probed, workers.kind)
    assert all(other == first for other in others)
    kinds, spent = first
    assert all(len(timing.sizes) == 3 and min(timing.seconds) > 0 for timing in kinds.values())
    assert spent > 0


def held(rank: int, world: int) -> object:
    """Steps of a model whose buckets are held, on a clock on which nothing but computing takes time; rank 1's takes longer."""
    transport, now = ready("gloo"), 0
    probe, clock = Probe(transport, 1), StepClock(2, steps=3, clock=lambda: now)
    while not clock.done:
        for _ in range(2):
            now += 4_000_000 + 20_000_000 * rank
            last = clock.ready()
        assert last
        now = max(at for (at,) in probe.all_gather_numbers([now]))
        clock.exchanged()
    known = model_of(probe.all_gather_numbers(clock.record()))
    transport.close()
    return known


def test_the_models_step_is_that_of_the_slowest(pair: Pool) -> None:
    first, other = pair.run(held)
    assert first == other
    assert (first.compute, first.exposed) == (0.048, 0)
    assert first.computing.slowest == 1
    assert first.ready == (0.5, 1.0)
    assert first.waiting.ns == (40_000_000, 0), "who is early waits"


KILLED = textwrap.dedent(
    """
    import datetime, os, signal, sys
    import torch.distributed as dist
    from grace.auto.calibrate import calibrate
    from grace.errors import TransportError
    from grace.transports.torch_distributed import TorchDistributed
    from tests.patience import PATIENCE

    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=PATIENCE))
    transport = TorchDistributed.of_same_ranks()
    transport.all_gather_text("", seconds=PATIENCE)

    class Dying(TorchDistributed):
        asked = 0

        def run(self, op):
            self.asked += 1
            if self.rank == 1 and self.asked == int(sys.argv[1]):
                os.kill(os.getpid(), signal.SIGKILL)
            return super().run(op)

    transport.__class__ = Dying
    try:
        calibrate(transport, ["none", "topk"], 100_000)
        print("never")
    except TransportError as error:
        print(f"heard: {error}", flush=True)
        transport.close(error)
    os._exit(0)
    """
)


@pytest.mark.parametrize("at", [3, 30])  # while codecs are measured, and the link
def test_when_a_worker_dies_the_others_hear_during_what(tmp_path: Path, at: int) -> None:
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    start = time.monotonic()
    ended = fork(script, str(at), workers=2)
    assert time.monotonic() - start < PATIENCE / 2, "they heard by a deadline only"
    assert ended[1][0] == -9
    assert re.search(r"heard: while auto measured the link and the codecs: rank 0 of 2: All", ended[0][1]), ended[0][1]
