"""Measurements in a report besides its verdicts: bias as a p-value, bytes, and time.

Letters: R draws of n numbers; D directions.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from grace.contract.lent import Lent
from grace.contract.method import Method
from grace.contract.peer import Peer
from grace.contract.wrapping import find_compressor
from grace.run import simulate
from grace.verify.outcome import Held, Profile, no_promise
from grace.verify.subject import Subject

_DIRECTIONS = 8  # random ones, besides those that a method is likely to be biased along
_SPEED_SECONDS = 0.4  # a codec that takes longer is timed once


def bias_p_value(outs: Tensor, truth: Tensor) -> float:
    """Probability that draws ``[R, *x.shape]`` of mean ``truth`` are at least this far off.

    Errors are projected onto a few directions: x itself (a method that shrinks), its signs, its large elements, the constant
    (one that shifts), and random signs. Each projection is a sum over all elements, so that its mean over draws is close to
    normal even where few elements are sent; the smallest two-sided p-value counts, times the number of directions
    (Bonferroni). What rounding can explain does not count as bias.
    """
    x = truth.double().flatten()
    errors = outs.double().flatten(1) - x  # [R, n]
    draws, n = errors.shape
    signs = (
        torch.randint(
            0, 2, (_DIRECTIONS, n), generator=torch.Generator().manual_seed(17), dtype=torch.int64, device="cpu"
        ).double()
        * 2
        - 1
    )
    large = torch.where(x.abs() >= x.abs().median(), x.sign(), 0.0)
    directions = torch.stack([x, x.sign(), large, torch.ones_like(x), *signs])  # [D, n]
    directions /= directions.norm(dim=1, keepdim=True).clamp_min(1e-300)
    projected = errors @ directions.T  # [R, D]
    rounding = 16 * torch.finfo(torch.float32).eps * float(x.norm())
    off = (projected.mean(0).abs() - rounding).clamp_min(0.0)
    spread = projected.std(0) / math.sqrt(draws) if draws > 1 else torch.zeros_like(off)
    worst = float((off / spread.clamp_min(1e-300)).max())
    return min(1.0, len(directions) * math.erfc(worst / math.sqrt(2)))


@dataclass(frozen=True, slots=True)
class Speed:
    """Seconds for ``numbers`` numbers: to encode, to decode (None where a method cannot be taken apart: then encode is
    the whole exchange of one worker), and for ``torch.add_`` of equally many.
    """

    numbers: int
    encode: float
    decode: float | None
    add: float


def speed(method: Method[Any], numbers: int) -> Speed:
    """Time of a step on this machine, without a network. Reported, never judged."""
    side = math.isqrt(numbers)
    x = torch.randn(side, side, generator=torch.Generator().manual_seed(3), dtype=torch.float32, device="cpu")
    other = torch.ones_like(x)
    add = _seconds(lambda: x.clone(), lambda y: y.add_(other), least=5)
    compressor = find_compressor(method)
    if compressor is None:
        peer = Peer(0, 1, name="speed", lent=Lent(keep_rest=True))
        state = method.init(x)
        return Speed(x.numel(), _seconds(x.clone, lambda y: simulate([method.exchange(y, state, peer)])), None, add)
    peer = Peer(0, 1, name="speed")
    shared = peer.shared(compressor.id)
    rng = shared if compressor.randomness == "shared" else peer.private(compressor.id)
    rows = x.view(1, -1)
    wire = compressor.compress_(rows.clone(), rng, True)
    encode = _seconds(rows.clone, lambda y: compressor.compress_(y, rng, True))
    decode = _seconds(lambda: torch.zeros_like(rows), lambda y: compressor.decompress_add_(wire, y, 1.0, shared))
    return Speed(x.numel(), encode, decode, add)


def _seconds(prepare: Callable[[], Tensor], work: Callable[[Tensor], object], least: int = 3) -> float:
    """The median of a few runs, each on its own tensor; a single run if that takes long."""
    times: list[float] = []
    while len(times) < least and sum(times) < _SPEED_SECONDS:
        y = prepare()
        start = time.perf_counter()
        work(y)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def check(subject: Subject, profile: Profile) -> Held:
    """The report's entry about it."""
    if subject.least_world > 1:
        return no_promise("measured with one worker, and this needs more")
    times = speed(subject.core, profile.numbers)
    parts = {"encode": times.encode, "decode": times.decode} if times.decode is not None else {"step": times.encode}
    words = ", ".join(f"{what} {1e3 * t:.3g} ms ({t / times.add:.3g} x)" for what, t in parts.items() if t is not None)
    return Held(words, f"{times.numbers:,} numbers; x: torch add_", "told", "", asdict(times))
