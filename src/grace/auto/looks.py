"""Repeated measurements of ``auto`` between two steps: the link, and the codecs of the methods that it uses and might use."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from grace.auto.calibrate import Calibration, Told, agree_on, learn, unsure_of
from grace.errors import TransportError
from grace.predict.probe import Probe
from grace.predict.rates import NUMBERS, Rate, Rater
from grace.transports.base import Transport

SIZES, SECONDS = (4, 1 << 17, 1 << 20), 0.025  # bytes of collectives, and what one of them may take
CODEC_NS = 120_000_000  # what codecs may take
_WARM, _SAMPLES = 1, 2


def look(
    transport: Transport,
    known: Calibration,
    methods: Sequence[str],
    *,
    first: Sequence[str] = (),
    beside: Transport | None = None,
    clock: Callable[[], int] = time.monotonic_ns,
) -> Calibration:
    """Measures again: three sizes of the kinds of collectives that these candidates need, and codecs, of what is ``first``
    before others. All ranks call it. Where there is no time for a codec, it changes by as much as the others did; the rest of
    what is known stays.

    Raises:
        TransportError: the link failed meanwhile; on all ranks.
    """
    probe = Probe(transport, known.timings.cores, most_seconds=SECONDS, repeats=lambda size: 2, beside=beside)
    kinds = dict.fromkeys(kind for name in methods for kind, _, _ in known.rates[name].moved)
    try:
        told = [Told(kind, learn(probe, kind, SIZES)) for kind in kinds]
        rates, codecs, codec_ns = _codecs_again(probe, known, [*first, *methods], clock)
    except TransportError as error:
        raise TransportError(f"while auto measured the link and the codecs again: {error}") from error
    timings = replace(known.timings, kinds={**known.timings.kinds, **probe.timings.kinds})
    others = [link for link in known.links if link.what not in kinds]
    spent = {**known.spent, "looks": known.spent.get("looks", 0) + probe.spent + codec_ns}
    unsure = unsure_of(timings, dict.fromkeys(known.unsure, SIZES[-1]))
    return replace(
        known, timings=timings, links=(*others, *told), rates=rates, codecs=codecs, spent=spent, unsure=unsure
    )


def _codecs_again(
    probe: Probe, known: Calibration, wanted: Sequence[str], clock: Callable[[], int]
) -> tuple[dict[str, Rate], tuple[Told, ...], int]:
    """Rates, what each rank measured, and nanoseconds that it took. What would take longer than there is time is left."""
    start, rater, spent = clock(), Rater(_SAMPLES, _WARM, known.way), 0
    pace: dict[str, float] = {}
    took = would = 0.0
    told = {codec.what: codec for codec in known.codecs}
    names = [name for name in dict.fromkeys(wanted) if name in known.rates]
    for name in names:
        before = known.rates[name].seconds(NUMBERS[1])
        if spent + (_WARM + _SAMPLES) * before * 1e9 > CODEC_NS:
            continue
        agreed = agree_on(probe, rater, name, NUMBERS[1], math.inf, lambda: clock() - start)
        spent = agreed.spent
        if agreed.sample is not None and before > 0:
            pace[name] = agreed.sample.seconds / before
            took, would = took + agreed.sample.seconds, would + before
            told[name] = Told(name, agreed.ns)
    usual = took / would if would else 1.0
    rates = {name: rate.paced(pace.get(name, usual)) for name, rate in known.rates.items()}
    return rates, tuple(told.values()), spent
