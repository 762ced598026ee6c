"""Replays on a GPU: what ``grace advise --device cuda`` knows of codecs, and of the host that issues them.

The numbers are those of ``auto`` there (:class:`grace.predict.rates.Rate`), measured on a GPU of this machine, or the device's
seconds of a document of ``grace bench codecs --device cuda``, which says nothing of the host.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import torch

from grace.auto.choices import Buckets
from grace.collectives import Tally, split_kind
from grace.compute import resources
from grace.errors import ConfigurationError
from grace.predict.probe import DeviceMeter
from grace.predict.rates import ON_DEVICE, TENSORS, TRACED, Rate, Rater, Sample
from grace.predict.replay import Replay
from grace.predict.timeline import wire_bytes
from grace.registry import method as make_method
from grace.run.streams import CudaStreams
from grace_bench.devices import CodecTimes, device_of, name_device

Rates: TypeAlias = Callable[[str, int], Rate]
_ADDS = 5
EXTRAPOLATED = (
    "beyond 2^14 and 2^23 numbers and one and eight tensors times are extrapolated",
    "beyond the sizes of the document times are extrapolated; of the host it says nothing, so no host slows a step here",
)
ASSUMED = (
    "assumed, not measured: the link's speed as it was given, 10 us for each of NCCL's messages, 30 us of the host for each "
    "collective; a host whose own work takes nothing; codecs that take the GPU from the model. None of it was compared with a "
    "step on GPUs"
)


class GPUReplayer:
    """Replays of one model's exchanges on a GPU, as a :class:`grace.predict.replay.Replayer` gives them.

    Args:
        shapes: of the parameters, by name. buckets: their names, in the order in which buckets become ready.
        rates: of a method, among so many workers.
        add: seconds of ``y.add_(x)`` for a number.
        device: name of the GPU. told: what is measured, and what is not, in words.
    """

    patience = 0.0  # nothing is broken off

    def __init__(
        self, shapes: Mapping[str, tuple[int, ...]], buckets: Sequence[Sequence[str]], rates: Rates, add: float, device: str,
        told: str,
    ):  # fmt: skip
        self.shapes, self.buckets = shapes, Buckets(tuple(tuple(names) for names in buckets), shapes)
        self.device, self.told = device, told
        self._rates, total = rates, sum(self.buckets.numbers)
        self.add_seconds = add * total

    def run(self, method: str, world: int) -> Replay:
        """The step of one worker, among ``world``."""
        codec, moved, host, sent = list[float](), list[dict[str, Tally]](), list[float](), 0.0
        for j in range(len(self.buckets.names)):
            seconds = issue = 0.0
            tallies: dict[str, Tally] = {}
            for name, forms in self.buckets.methods_of(j, j + 1, method).items():
                rate, total = self._rates(name, world), sum(torch.Size(form).numel() for form in forms)
                for start, each in rate.codec:
                    seconds += start + each * total
                start, each = rate.host or (0.0, 0.0)
                issue += start + each * len(forms)
                scale = rate.scale_to(make_method(name), forms)
                for kind, head, width in rate.moved:
                    tallies.setdefault(kind, Tally()).add(Tally(1, scale * (head * len(forms) + width * total)))
            codec.append(seconds / self.add_seconds)
            moved.append(tallies)
            host.append(issue)
            for kind, tally in tallies.items():
                assert not split_kind(kind)[2], "advise has refused machines"
                sent += tally.count * wire_bytes(kind, tally.bytes / tally.count, world)
        return Replay(world, tuple(codec), tuple(moved), sent, host=tuple(host))


def of_machine(
    shapes: Mapping[str, tuple[int, ...]], buckets: Sequence[Sequence[str]], device: str, samples: int
) -> GPUReplayer:
    """Measures on a GPU of this machine.

    Raises:
        ConfigurationError: there is none.
    """
    try:
        where = device_of(device)
    except ConfigurationError as error:
        raise ConfigurationError(
            f"{error.args[0]}. Or give what a machine with a GPU has measured: grace bench codecs --device cuda --out FOLDER "
            "there, and --codecs FOLDER/codecs.json here"
        ) from error
    meter = DeviceMeter(CudaStreams(where), where)
    rater = Rater(samples, meter=meter)

    def rate(name: str, world: int) -> Rate:
        bucket = rater.run(name, world, rater.numbers[0], tensors=TENSORS)
        return Rate.through(world, [rater.run(name, world, n) for n in rater.numbers], bucket=bucket)

    told = (
        f"codecs and the host's time to issue them were measured here, on the GPU's clock; {EXTRAPOLATED[0]}; {ASSUMED}"
    )
    return GPUReplayer(shapes, buckets, _cached(rate), _add_seconds(meter), name_device(where), told)


def of_document(
    shapes: Mapping[str, tuple[int, ...]], buckets: Sequence[Sequence[str]], codecs: CodecTimes, workers: Sequence[int]
) -> GPUReplayer:
    """The same by what a document of ``grace bench codecs --device cuda`` says.

    Raises:
        ConfigurationError: it is of another number of workers.
    """
    path, device, world, times, add = codecs
    if set(workers) != {world}:
        raise ConfigurationError(
            f"advise: workers={','.join(map(str, workers))}, and {path} was measured with what {world} workers send; "
            f"legal: --workers {world}"
        )

    def rate(name: str, world: int) -> Rate:
        with resources.threads(1):
            traced = Rate.through(world, [Rater(1, 0).run(name, world, n) for n in (TRACED // 16, TRACED)])
        codec: tuple[float, float] = (0.0, 0.0)
        if name != "none":
            sizes = sorted(times[name])
            samples = [Sample(n, (round(1e9 * times[name][n]),), ()) for n in (sizes[0], sizes[-1])]
            codec = Rate.through(world, samples).codec[0]
        return Rate(world, (codec, *[(0.0, 0.0)] * len(traced.moved)), traced.moved, host=(0.0, 0.0))

    told = f"codecs as in {path.name}, measured on {device}; {EXTRAPOLATED[1]}; {ASSUMED}"
    return GPUReplayer(shapes, buckets, _cached(rate), add, device, told)


def _cached(rate: Rates) -> Rates:
    known: dict[tuple[str, int], Rate] = {}

    def ask(name: str, world: int) -> Rate:
        if (name, world) not in known:
            known[name, world] = rate(name, world)
        return known[name, world]

    return ask


def _add_seconds(meter: DeviceMeter) -> float:
    """Seconds of ``y.add_(x)`` for a number."""
    x = torch.ones(ON_DEVICE[1], dtype=torch.float32, device=meter.device)
    y, taken = torch.zeros_like(x), list[int]()
    for _ in range(_ADDS):
        meter.hold()
        start = meter.moment()
        y.add_(x)
        taken.append(meter.between(start, meter.moment()))
    return max(1, sorted(taken)[_ADDS // 2]) / 1e9 / x.numel()
