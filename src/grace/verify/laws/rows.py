"""Law 13, rows: what a row's wire says does not depend on the rows that are compressed beside it.

Letters: b rows of n numbers; R draws.
"""

from __future__ import annotations

import torch
from torch import Tensor

from grace.contract.compressor import Compressor
from grace.contract.peer import Peer
from grace.random import Stream
from grace.verify.inputs import heavy, normal
from grace.verify.laws.error_bounds import errors_hold
from grace.verify.measure import bias_p_value
from grace.verify.outcome import Held, Profile, no_promise
from grace.verify.running import same_bits, tolerance
from grace.verify.subject import Subject
from grace.verify.trials import ROWS, list_numbers

_BIASED = 1e-6  # a p-value below it is a bias: many are taken
_LEAST = 20  # draws


def rows_stand_alone(compressor: Compressor, rows: Tensor, draws: int = 20) -> None:
    """Rows ``[b, n]`` that are compressed together are as good as each alone, as ScatterReduce needs it, whose receivers
    decode each row by itself: a wire decoded alone says the row minus its rest, and what it says together with the others; a
    deterministic compressor makes the same of a row alone; a random one keeps its bounds in each row, and is unbiased there if
    it says so. What is wrong with single rows, too, is another law's.
    """
    defect = _find_defect(compressor, rows, draws)
    if defect and not any(_find_defect(compressor, row[None], draws) for row in rows):
        raise AssertionError(f"rows: {defect}, which alone is right")


def _find_defect(compressor: Compressor, rows: Tensor, draws: int) -> str:
    """Says what is wrong with a row; empty if nothing is."""
    b, n = rows.shape
    stream, shared = _streams(compressor, 0)
    rest = rows.clone()
    wire = compressor.compress_(rest, stream, True)
    alone = _decode_alone(compressor, wire, n, shared)
    together = torch.zeros_like(rows)
    compressor.decompress_add_(wire, together, 1.0, shared)
    facts = compressor.facts(n)
    for i in range(b):
        what, legal = f"row {i} of {b}", tolerance([rows[i], alone[i]])
        off = float((together[i] - alone[i]).abs().max())
        if not off <= legal:
            return f"decoded with the others, the wire of {what} says something {off:.3g} off what it says alone"
        off = float((rows[i] - rest[i] - alone[i]).abs().max()) if compressor.aggregation == "mean" else 0.0
        if not off <= legal:
            return f"{what} minus its rest is {off:.3g} off what its wire says"
        if facts.deterministic:
            own = _decode_alone(compressor, compressor.compress_(rows[i : i + 1].clone(), stream, False), n, shared)
            if not same_bits(own[0], alone[i]):
                return f"beside other rows, another wire is made of {what}"
    return "" if facts.deterministic else _find_broken_bound(compressor, rows, draws)


def _find_broken_bound(compressor: Compressor, rows: Tensor, draws: int) -> str:
    """Says which row breaks what a random compressor declares; empty if none does."""
    b, n = rows.shape
    facts = compressor.facts(n)
    outs = torch.stack([_draw(compressor, rows, seed) for seed in range(1, draws + 1)]).double()  # [R, b, n]
    for i in range(b):
        x = rows[i].double()
        try:
            errors_hold((outs[:, i] - x).square().sum(1), float(x.square().sum()), facts)
        except AssertionError as error:
            return f"row {i} of {b} breaks a bound ({error})"
        if facts.unbiased and bias_p_value(outs[:, i], rows[i]) < _BIASED:  # chance rarely does this: measure again
            again = [_draw(compressor, rows, seed)[i] for seed in range(10_001, 10_001 + 4 * draws)]
            if (p := bias_p_value(torch.stack(again), rows[i])) < _BIASED:
                return f"row {i} of {b} is biased (p = {p:.2g}), though unbiased is declared"
    return ""


def _draw(compressor: Compressor, rows: Tensor, seed: int) -> Tensor:
    """``[b, n]``: what the wires of one draw say, each alone."""
    stream, shared = _streams(compressor, seed)
    wire = compressor.compress_(rows.clone(), stream, False)
    return _decode_alone(compressor, wire, rows.shape[1], shared)


def _decode_alone(compressor: Compressor, wire: Tensor, n: int, shared: Stream) -> Tensor:
    """``[b, n]``: what each of the wires ``[b, w]`` says by itself."""
    out = torch.zeros(wire.shape[0], n, dtype=torch.float32, device="cpu")
    for i in range(len(out)):
        compressor.decompress_add_(wire[i : i + 1].clone(), out[i : i + 1], 1.0, shared)
    return out


def _streams(compressor: Compressor, seed: int) -> tuple[Stream, Stream]:
    """The streams that the compressor draws from, and that its receivers do."""
    peer = Peer(0, 1, name="w", seed=seed)
    shared = peer.shared(compressor.id)
    return (shared if compressor.randomness == "shared" else peer.private(compressor.id)), shared


def check(subject: Subject, profile: Profile) -> Held:
    """Checks the law; returns the report's entry about it."""
    if subject.compressor is None:
        return no_promise("it has its own exchange")
    for b in ROWS:
        sizes = torch.tensor([1.0, 1e-3, 30.0, 0.2, 5.0], dtype=torch.float32, device="cpu")
        scales = sizes[:b, None]  # each row has a size of its own
        for make in (normal(b, 96), heavy(b, 31)):
            rows_stand_alone(subject.compressor, make(0) * scales, max(_LEAST, profile.draws // 4))
    return Held(f"each as if alone, {list_numbers(ROWS)} rows")
