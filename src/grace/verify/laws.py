"""The laws. Each is a function of a method and its inputs that raises AssertionError where it is broken.

Letters: W workers; n numbers; T steps; xs holds one tensor per worker.
"""

from __future__ import annotations

import contextlib
import io
import math
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

import grace
from grace.collectives import AllGather, AllReduce, AllToAll, Broadcast, Collective, Exchange, Permute, Traffic
from grace.errors import CompositionError, PayloadError, TransportError
from grace.lent import Lent
from grace.memories import Memory
from grace.method import Exchanged, Method
from grace.peer import Peer
from grace.run import Simulator, Tracer, simulate, together
from grace.run.simulate import answers
from grace.wrapping import find_compressor, layers

Runner = Callable[[list[Any]], list[Any]]
TINY = 2.0**-140  # what may be lost below the normal numbers
LR, STEPS_PER_EPOCH = 1.0, 2  # for memories that follow the learning rate, and schedules that count epochs


# ---- helpers --------------------------------------------------------------------------------------------------------
def run(
    method: Method[Any],
    xs: Sequence[Tensor],
    states: Sequence[Any] | None = None,
    *,
    step: int = 0,
    seed: int = 0,
    keep_rest: bool = False,
    runner: Runner = simulate,
) -> list[Exchanged[Any]]:
    """One simulated step of all workers. ``xs`` are copied, ``states`` are donated."""
    W = len(xs)
    states = [method.init(x) for x in xs] if states is None else states
    peers = [_peer(rank, W, step, seed, keep_rest) for rank in range(W)]
    return runner([method.exchange(copied(x), s, p) for x, s, p in zip(xs, states, peers, strict=True)])


def _peer(rank: int, world: int, step: int = 0, seed: int = 0, keep_rest: bool = False) -> Peer:
    return Peer(rank, world, step, "w", seed, LR, STEPS_PER_EPOCH, Lent(keep_rest=keep_rest))


def copied(x: Tensor) -> Tensor:
    """A copy with the same strides, where they do not overlap."""
    return x.clone(memory_format=torch.preserve_format)


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors agree in dtype, shape and every bit."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return torch.equal(a.contiguous().view(-1).view(torch.uint8), b.contiguous().view(-1).view(torch.uint8))


def leaves(state: Any) -> Iterator[Tensor]:
    """The tensors of a state."""
    if isinstance(state, Tensor):
        yield state
    elif isinstance(state, tuple):
        for part in state:
            yield from leaves(part)


def snapshot(states: Sequence[Any]) -> list[list[Tensor]]:
    """Copies of all tensors of all states."""
    return [[leaf.clone() for leaf in leaves(state)] for state in states]


def assert_untouched(states: Sequence[Any], before: list[list[Tensor]], what: str) -> None:
    """All tensors of all states have the bits that they had."""
    for rank, (state, old) in enumerate(zip(states, before, strict=True)):
        for leaf, was in zip(leaves(state), old, strict=True):
            assert same_bits(leaf, was), f"{what}: the state of rank {rank} changed"


def average(xs: Sequence[Tensor]) -> Tensor:
    """In float64."""
    return torch.stack([x.double() for x in xs]).mean(0)


def is_memory(method: Method[Any]) -> bool:
    """Whether it carries something from step to step that its mean does not say."""
    return isinstance(method, Memory)


def conserves(method: Method[Any]) -> bool:
    """Whether x - rest is promised to average to the mean: not under a vote, nor a sum that the network rounds, nor in a
    method that keeps a memory of its own and hands out no rest.
    """
    compressor = find_compressor(method)
    if compressor is not None:
        narrow = isinstance(method, grace.Allreduce) and compressor.predivide
        return compressor.aggregation == "mean" and not narrow
    return method.owed(method.init(torch.zeros(2, 2))) is None or remembers(method) is not None


def remembers(method: Method[Any]) -> Method[Any] | None:
    """The method under error feedback; None where a memory is refused."""
    try:
        return grace.ErrorFeedback(method)
    except CompositionError:
        return None


def tolerance(xs: Sequence[Tensor], n_roundings: float = 16) -> float:
    """So many roundings of the largest number, in the dtype of the inputs or float32, whichever is coarser."""
    eps = max(torch.finfo(xs[0].dtype).eps, torch.finfo(torch.float32).eps)
    return n_roundings * eps * max((float(x.abs().max()) for x in xs if x.numel()), default=0.0) + TINY


# ---- law 1 ----------------------------------------------------------------------------------------------------------
def agreement(method: Method[Any], xs: Sequence[Tensor], steps: int = 2) -> None:
    """``mean`` is bit-identical on all ranks, and of the dtype and shape of the input."""
    states = [method.init(x) for x in xs]
    for step in range(steps):
        outs = run(method, xs, states, step=step)
        states = [out.state for out in outs]
        for rank, (x, out) in enumerate(zip(xs, outs, strict=True)):
            assert out.mean.dtype == x.dtype, f"agreement: mean is {out.mean.dtype}, the gradient {x.dtype}"
            assert out.mean.shape == x.shape, f"agreement: mean is {out.mean.shape}, the gradient {x.shape}"
            assert out.finite == outs[0].finite, f"agreement: finite differs between rank 0 and {rank}"
            assert same_bits(out.mean, outs[0].mean), f"agreement: mean of rank {rank} differs from that of rank 0"


# ---- law 2 ----------------------------------------------------------------------------------------------------------
def conservation(method: Method[Any], xs: Sequence[Tensor], steps: int = 2) -> None:
    """The average over ranks of ``x - rest`` is ``mean``; what the method owes itself, before and after, counts as x and
    as rest.
    """
    states = [method.init(x) for x in xs]
    owed = [_owed(method, state, x) for state, x in zip(states, xs, strict=True)]
    for step in range(steps):
        outs = run(method, xs, states, step=step, keep_rest=True)
        states = [out.state for out in outs]
        assert all(out.finite for out in outs), "conservation: finite gradients read as non-finite"
        rests = []
        for out, x in zip(outs, xs, strict=True):
            assert out.rest is not None, "conservation: the rest was not kept"
            assert out.rest.shape == x.shape, f"conservation: rest is {tuple(out.rest.shape)}, not {tuple(x.shape)}"
            rests.append(out.rest)
        before, owed = owed, [_owed(method, state, x) for state, x in zip(states, xs, strict=True)]
        kept = [rest.double() + now - was for rest, now, was in zip(rests, owed, before, strict=True)]
        said = average([x.double() - k for x, k in zip(xs, kept, strict=True)])
        error = float((said - outs[0].mean.double()).abs().max()) if said.numel() else 0.0
        # the second rounding of W workers' chunks is W times as large in the memory of its owner
        legal = tolerance([*xs, *[k.to(x.dtype) for k, x in zip(kept, xs, strict=True)]], 16 + 2 * len(xs))
        assert error <= legal, f"conservation: average of x - rest is off the mean by {error:.3g}, legal {legal:.3g}"


def _owed(method: Method[Any], state: Any, like: Tensor) -> Tensor:
    """A copy in float64."""
    owed = method.owed(state)
    return torch.zeros_like(like, dtype=torch.float64) if owed is None else owed.double().clone()


# ---- law 3 ----------------------------------------------------------------------------------------------------------
def nothing_lost(method: Method[Any], steps: Sequence[Sequence[Tensor]]) -> None:
    """With error feedback, the sum of means plus the average memory is the sum of average gradients."""
    assert isinstance(method, grace.ErrorFeedback), f"nothing_lost: {method} has no error feedback"
    assert method.beta == 1, "nothing_lost: a memory that decays loses on purpose"
    states = [method.init(x) for x in steps[0]]
    applied = torch.zeros_like(steps[0][0], dtype=torch.float64)
    truth = torch.zeros_like(applied)
    seen: list[Tensor] = []
    for step, xs in enumerate(steps):
        outs = run(method, xs, states, step=step)
        states = [out.state for out in outs]
        assert all(out.finite for out in outs), "nothing lost: finite gradients read as non-finite"
        applied += outs[0].mean.double()
        truth += average(xs) * method.gamma
        seen += [*[x.float() for x in xs], *[state[0].float() for state in states]]  # narrow gradients lose no more
    owed = [owed for state in states if (owed := method.owed(state)) is not None]
    assert len(owed) == len(states), "nothing lost: a memory that owes nothing"
    error = float((applied + average(owed) - truth).abs().max()) if truth.numel() else 0.0
    legal = tolerance(seen, 4.0 * len(steps) + 4 * len(steps[0]))
    assert error <= legal, f"nothing lost: means and memories are off the gradients by {error:.3g}, legal {legal:.3g}"


# ---- law 4 ----------------------------------------------------------------------------------------------------------
def drawn(method: Method[Any], xs: Sequence[Tensor], draws: int, seed: int = 1) -> Tensor:
    """``[R, *x.shape]`` float64: the mean of a first step, for R seeds."""
    return torch.stack([run(method, xs, seed=seed + r)[0].mean.double() for r in range(draws)])


def unbiased(method: Method[Any], xs: Sequence[Tensor], draws: int = 200) -> None:
    """If it is declared, E mean = the average of x."""
    if not method.facts(xs[0]).unbiased:
        return
    truth = average(xs)
    outs = drawn(method, xs, draws)
    bias = (outs.mean(0) - truth).flatten()
    variance = (outs - truth).square().mean(0).flatten()  # [n]
    largest = float(torch.stack([x.abs().max() for x in xs]).double().max())
    floor = ((method.facts(xs[0]).bias + 2.0**-21) * largest) ** 2  # what is declared, and a rounding of float32
    legal = 6 * ((variance.clamp_min(float(variance.mean())) + floor) / draws + floor).sqrt()
    worst = int((bias.abs() - legal).argmax())
    assert bool((bias.abs() <= legal).all()), (
        f"unbiased: element {worst} is off by {float(bias[worst]):.3g} on average, legal {float(legal[worst]):.3g}"
    )
    total, expected = float(bias.square().sum()), float(variance.sum()) / draws + bias.numel() * floor
    assert total <= 5 * expected, f"unbiased: |E mean - x|^2 = {total:.3g}, expected {expected:.3g}"


def bounds(method: Method[Any], x: Tensor, draws: int = 100) -> float:
    """The declared contraction and variance hold for one worker, and it is as deterministic as it says.

    Returns:
        E|C(x) - x|^2 / |x|^2 as measured: omega of an unbiased method, 1 - delta of a contraction.
    """
    facts = method.facts(x)
    outs = drawn(method, [x], draws if not facts.deterministic else 2)
    if facts.deterministic:
        assert same_bits(outs[0], outs[1]), "deterministic: another seed gives other bits"
    errors = (outs - x.double()).square().flatten(1).sum(1)  # [R]
    size = float(x.double().square().sum())
    delta = facts.contraction or 0.0
    spread = 0.0
    if not facts.deterministic:  # a number in [0, |x|^2] of mean (1 - delta) |x|^2 spreads no more than a coin does
        spread = max(float(errors.std()), size * math.sqrt(delta * (1 - delta))) / math.sqrt(len(outs))
    found = float(errors.mean()) - 5 * spread
    slack = size * 1e-10 + TINY
    if facts.contraction is not None:
        legal = (1 - facts.contraction) * size * (1 + 1e-5) + slack
        assert found <= legal, (
            f"contraction: E|x - C(x)|^2 = {found:.6g} > (1 - {facts.contraction}) |x|^2 = {legal:.6g}"
        )
    if facts.variance is not None:
        legal = facts.variance * size * (1 + 1e-5) + slack
        assert found <= legal, f"variance: E|C(x) - x|^2 = {found:.6g} > {facts.variance} |x|^2 = {legal:.6g}"
    return float(errors.mean()) / size if size else 0.0


def traffic(method: Method[Any], xs: Sequence[Tensor], keep_rest: bool = False) -> list[Traffic]:
    """The declared rounds and bytes are what the collectives move, for each rank.

    Returns:
        what each rank moved in the last step.
    """
    W = len(xs)
    tracers = [Tracer(rank, W) for rank in range(W)]
    states = [method.init(x) for x in xs]
    for step in range(2):
        for tracer in tracers:
            tracer.traffic = Traffic()
        outs = run(
            method,
            xs,
            states,
            step=step,
            keep_rest=keep_rest,
            runner=lambda ex: simulate([t.trace(e) for t, e in zip(tracers, ex, strict=True)]),
        )
        states = [out.state for out in outs]
        for rank, (x, tracer) in enumerate(zip(xs, tracers, strict=True)):
            said = method.traffic(torch.empty_like(x, device="meta"), _peer(rank, W, step, keep_rest=keep_rest))
            if said is None:
                assert varies(method), "traffic: None, though no size depends on the data"
                continue
            assert tracer.traffic == said, f"traffic: rank {rank} declares {said}, moved {tracer.traffic}"
    return [tracer.traffic for tracer in tracers]


def varies(method: Method[Any]) -> bool:
    """Whether the sizes of its wires depend on the data."""
    compressor = find_compressor(method)
    if compressor is not None:
        return compressor.varies
    core = layers(method)[-1]
    return bool(getattr(core, "varies", method.facts(torch.empty(64, 64, device="meta")).payload is None))


def payload(compressor: grace.Compressor, rows: Tensor) -> None:
    """The declared payload is the wire's size, unless it varies; wires of several rows are those of each."""
    b, n = rows.shape
    stream = Peer(0, 1, name="w").private(compressor.id)
    wire = compressor.compress_(rows.clone(), stream, False)
    said = compressor.facts(n).payload
    assert (said is None) == compressor.varies, f"payload: {said} declared, but varies={compressor.varies}"
    size = wire.shape[1] * wire.element_size()
    assert wire.shape[0] == b, f"payload: {wire.shape[0]} wires for {b} rows"
    assert said in (None, size), f"payload: {said} bytes declared, {size} encoded"


def summable(compressor: grace.Compressor, rows: Tensor) -> None:
    """If it is declared: the sum of wires decodes to the sum of what they decode to."""
    if not compressor.summable:
        return
    stream = Peer(0, 1, name="w").shared(compressor.id)
    wire = compressor.compress_(rows.clone(), stream, False)
    each, whole = torch.zeros_like(rows), torch.zeros_like(rows[:1])
    compressor.decompress_add_(wire, each, 1.0, stream)
    compressor.decompress_add_(wire.sum(0, keepdim=True), whole, 1.0, stream)
    legal = 4 * len(rows) * torch.finfo(wire.dtype).eps * float(each.abs().max())
    error = float((whole - each.sum(0, keepdim=True)).abs().max())
    assert error <= legal, f"summable: the sum of wires decodes {error:.3g} off the sum, legal {legal:.3g}"


# ---- law 5 ----------------------------------------------------------------------------------------------------------
def exact_recovery(method: Method[Any], xs: Sequence[Tensor]) -> None:
    """These inputs come back: the mean is their average, to a rounding."""
    truth = average(xs)
    mean = run(method, xs)[0].mean.double()
    legal = 8 * torch.finfo(torch.float32).eps * float(truth.abs().max())
    if not isinstance(method, grace.PowerSGD):
        legal /= 8  # sums of few bits: at most one rounding
    error = float((mean - truth).abs().max())
    assert error <= legal, f"exact recovery: off by {error:.3g}, legal {legal:.3g}"


# ---- law 6 ----------------------------------------------------------------------------------------------------------
def fused_equals_alone(methods: Sequence[Method[Any]], inputs: Sequence[Sequence[Tensor]], steps: int = 2) -> None:
    """Exchanged together, tensors get the bits that they get alone. ``inputs``: one list of xs for each method."""
    W = len(inputs[0])
    alone = [[m.init(x) for x in xs] for m, xs in zip(methods, inputs, strict=True)]
    fused = [[m.init(x) for x in xs] for m, xs in zip(methods, inputs, strict=True)]
    for step in range(steps):
        apart = [run(m, xs, s, step=step) for m, xs, s in zip(methods, inputs, alone, strict=True)]
        alone = [[out.state for out in outs] for outs in apart]
        merged = simulate(
            [
                together(
                    [
                        m.exchange(copied(xs[r]), s[r], _peer(r, W, step))
                        for m, xs, s in zip(methods, inputs, fused, strict=True)
                    ]
                )
                for r in range(W)
            ]
        )
        fused = [[merged[r][i].state for r in range(W)] for i in range(len(methods))]
        for i, method in enumerate(methods):
            for r in range(W):
                assert same_bits(merged[r][i].mean, apart[i][r].mean), f"fused: {method} has another mean than alone"
            assert_untouched(fused[i], snapshot(alone[i]), f"fused: {method}")


def in_place(exchanges: list[Exchange[Any]]) -> list[Any]:
    """As ``simulate``, but the answer to a donated buffer lies in that buffer, as with real transports."""
    return simulate([_answered_in_place(exchange) for exchange in exchanges])


def _answered_in_place(exchange: Exchange[Any]) -> Exchange[Any]:
    try:
        op = next(exchange)
        while True:
            answer = yield op
            donated = isinstance(op, AllReduce) and op.donate
            op = exchange.send(op.buf.copy_(answer) if donated else answer)
    except StopIteration as stop:
        return stop.value


def answers_may_alias(method: Method[Any], xs: Sequence[Tensor]) -> None:
    """It makes no difference whether the answer to a donated buffer lies in that buffer."""
    for keep_rest in (False, True):
        apart = run(method, xs, keep_rest=keep_rest)
        aliased = run(method, xs, keep_rest=keep_rest, runner=in_place)
        for rank, (a, b) in enumerate(zip(apart, aliased, strict=True)):
            assert same_bits(a.mean, b.mean), f"donation: rank {rank} has another mean if answers are in place"
            if a.rest is not None and b.rest is not None:
                assert same_bits(a.rest, b.rest), f"donation: rank {rank} has another rest if answers are in place"


def rest_is_free(method: Method[Any], xs: Sequence[Tensor]) -> None:
    """Whether the rest is kept makes no difference to the mean."""
    kept, not_kept = run(method, xs, keep_rest=True)[0], run(method, xs)[0]
    if xs[0].dtype == torch.float32:
        assert torch.equal(kept.mean, not_kept.mean), "keep_rest changes the mean"  # but for the sign of a zero
    else:  # uncompressed tensors are summed in their own dtype, those with a rest in float32
        error = float((kept.mean.double() - not_kept.mean.double()).abs().max()) if xs[0].numel() else 0.0
        assert error <= tolerance(xs), f"keep_rest changes the mean by {error:.3g}"


# ---- law 7 ----------------------------------------------------------------------------------------------------------
def own_randomness(method: Method[Any], xs: Sequence[Tensor]) -> None:
    """The global generators are untouched; the same seed gives the same bits, and other seeds others where random."""
    before = torch.get_rng_state(), _numpy_state(), random.getstate()
    first = run(method, xs, seed=3)[0].mean
    after = torch.get_rng_state(), _numpy_state(), random.getstate()
    assert torch.equal(before[0], after[0]), "randomness: torch's generator was used"
    assert before[1] == after[1], "randomness: numpy's generator was used"
    assert before[2] == after[2], "randomness: python's generator was used"
    torch.manual_seed(99)
    np.random.seed(99)  # noqa: NPY002
    random.seed(99)
    assert same_bits(first, run(method, xs, seed=3)[0].mean), "randomness: the same seed gives other bits"
    others = [run(method, xs, seed=seed)[0].mean for seed in (4, 5, 6)]
    facts = method.facts(xs[0])
    if facts.deterministic:
        assert all(same_bits(first, other) for other in others), "randomness: it depends on the seed, and denies it"
    elif xs[0].numel() >= 64 and bool(xs[0].any()) and facts.variance != 0:
        assert not all(same_bits(first, other) for other in others), "randomness: declared, but no seed changes it"


def _numpy_state() -> tuple[bytes, int]:
    _, words, position, *_ = np.random.get_state(legacy=True)  # noqa: NPY002
    return np.asarray(words).tobytes(), int(position)


def ranks_draw_apart(method: Method[Any], x: Tensor) -> None:
    """Rounding is independent between ranks: averaging over workers reduces the error."""
    one, many = run(method, [x]), run(method, [x] * 8)
    alone, averaged = ((out[0].mean - x).double().square().sum() for out in (one, many))
    assert float(averaged) <= 0.5 * float(alone), f"randomness: 8 ranks err by {averaged:.3g}, one by {alone:.3g}"


# ---- law 8 ----------------------------------------------------------------------------------------------------------
def state_survives(method: Method[Any], steps: Sequence[Sequence[Tensor]], stop: int) -> None:
    """Save, load, go on: the same bits as without the stop."""
    W, like = len(steps[0]), {"w": steps[0][0]}
    policy = grace.Policy([("*", method)])

    def go(sim: Simulator, some: Sequence[Sequence[Tensor]]) -> list[Tensor]:
        return [sim.step({"w": list(xs)}, lr=LR)["w"] for xs in some]

    def fresh(seed: int = 0) -> Simulator:
        return Simulator(policy, W, seed=seed, steps_per_epoch=STEPS_PER_EPOCH)

    through = go(fresh(5), steps)
    first = fresh(5)
    go(first, steps[:stop])
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    go(first, steps[stop:])  # what was saved must not be a view of what goes on
    file.seek(0)
    second = fresh()
    second.load_state_dict(torch.load(file, weights_only=True), like)
    for i, (a, b) in enumerate(zip(through[stop:], go(second, steps[stop:]), strict=True)):
        assert same_bits(a, b), f"state: step {stop + i} after loading differs from the run without a stop"


# ---- law 9 ----------------------------------------------------------------------------------------------------------
def nonfinite_is_agreed(method: Method[Any], steps: Sequence[Sequence[Tensor]], bad: float, rank: int, at: int) -> None:
    """An inf or NaN anywhere: a non-finite mean everywhere, memories as they were, and training goes on."""
    spoiled = [copied(x.contiguous()) for x in steps[1]]
    spoiled[rank].view(-1)[at] = bad
    states = [method.init(x) for x in steps[0]]
    states = [out.state for out in run(method, steps[0], states, step=0)]
    before = snapshot(states)
    outs = run(method, spoiled, states, step=1)
    for r, out in enumerate(outs):
        assert not bool(out.mean.isfinite().all()), f"non-finite: rank {r} has a finite mean"
        assert not bool(out.mean.view(-1)[at].isfinite()), f"non-finite: rank {r} is finite where {bad} went in"
        assert out.finite == outs[0].finite, "non-finite: ranks differ in `finite`"
        assert same_bits(out.mean.isnan(), outs[0].mean.isnan()), f"non-finite: rank {r} differs from rank 0"
        if not out.finite:
            assert bool(out.mean.isnan().all()), f"non-finite: mean of rank {r} is not NaN throughout"
    assert_untouched([out.state for out in outs], before, "non-finite")
    after = run(method, steps[2], [out.state for out in outs], step=2)
    fresh = [method.init(x) for x in steps[0]]
    fresh = [out.state for out in run(method, steps[0], fresh, step=0)]
    for out, expected in zip(after, run(method, steps[2], fresh, step=2), strict=True):
        assert out.finite, "non-finite: the next step is still poisoned"
        assert same_bits(out.mean, expected.mean), "non-finite: the next step differs from one without the bad step"


# ---- law 10 ---------------------------------------------------------------------------------------------------------
def failure_leaves_memory(method: Method[Any], xs: Sequence[Tensor]) -> None:
    """A collective that fails, in whatever round, leaves the state whole, and its error passes through."""
    states = [out.state for out in run(method, xs, step=0)]
    before = snapshot(states)
    rounds = 0
    while True:
        peers = [_peer(rank, len(xs), 1) for rank in range(len(xs))]
        exchanges = [method.exchange(copied(x), s, p) for x, s, p in zip(xs, states, peers, strict=True)]
        if not _failing(exchanges, rounds):
            break
        assert_untouched(states, before, f"failure in round {rounds}")
        rounds += 1
    assert rounds > 0 or xs[0].numel() == 0, "failure: there was no round to fail"


def _failing(exchanges: list[Exchange[Any]], fail_at: int) -> bool:
    """Runs exchanges up to a round, which fails on all ranks; False if they ended before."""
    inbox: list[Tensor | None] = [None] * len(exchanges)
    for _ in range(fail_at + 1):
        ops: list[Collective] = []
        for exchange, message in zip(exchanges, inbox, strict=True):
            with contextlib.suppress(StopIteration):
                ops.append(next(exchange) if message is None else exchange.send(message))
        if not ops:
            return False
        inbox = list(answers(ops))
    for rank, exchange in enumerate(exchanges):
        error = TransportError("a worker died")
        try:
            exchange.throw(error)
        except TransportError as raised:
            if raised is not error:
                raise AssertionError(f"failure: rank {rank} raised another error") from raised
        except StopIteration:
            raise AssertionError(f"failure: rank {rank} swallowed the error and returned") from None
        else:
            raise AssertionError(f"failure: rank {rank} went on after the error")
    return True


# ---- law 11 ---------------------------------------------------------------------------------------------------------
def corruption_is_refused(method: Method[Any], xs: Sequence[Tensor], trials: int = 24) -> tuple[int, int]:
    """Gathered bytes that were flipped or cut on their way: a PayloadError that leaves the state as it was, or finite
    numbers that all ranks agree on. Nothing else.

    Returns:
        how many trials there were (none where the method gathers no bytes), and how many of them were refused.
    """
    start = [out.state for out in run(method, xs, step=0)]
    rounds = _gathers(method, xs, start)
    refused = 0
    for trial in range(trials if rounds else 0):
        states = [_cloned(state) for state in start]
        before, at = snapshot(states), trial % rounds
        flip = trial // rounds % 3 != 2
        what = f"corruption: after round {at} of gathered bytes was {'flipped' if flip else 'cut'} (trial {trial}),"
        try:
            outs = run(method, xs, states, step=1, runner=_garbling(at, flip, trial))
        except PayloadError:
            refused += 1
            assert_untouched(states, before, what)
            continue
        except Exception as error:
            raise AssertionError(f"{what} it raised {type(error).__name__}: {error}") from error
        for out, x in zip(outs, xs, strict=True):
            assert out.mean.shape == x.shape, f"{what} mean is {tuple(out.mean.shape)}, not {tuple(x.shape)}"
            assert same_bits(out.mean, outs[0].mean), f"{what} ranks have different means"
            assert not out.finite or bool(out.mean.isfinite().all()), f"{what} the mean has an inf or NaN"
    return (trials if rounds else 0), refused


def _gathers(method: Method[Any], xs: Sequence[Tensor], states: Sequence[Any]) -> int:
    """How many rounds of gathered bytes one step has."""
    rounds = 0

    def counted(exchange: Exchange[Any]) -> Exchange[Any]:
        nonlocal rounds
        try:
            op = next(exchange)
            while True:
                rounds += _gathered(op)
                op = exchange.send((yield op))
        except StopIteration as stop:
            return stop.value

    def counting(exchanges: list[Exchange[Any]]) -> list[Any]:
        return simulate([counted(exchanges[0]), *exchanges[1:]])

    run(method, xs, [_cloned(state) for state in states], step=1, runner=counting)
    return rounds


def _gathered(op: Collective) -> bool:
    return isinstance(op, AllGather | AllToAll | Broadcast | Permute) and op.buf.dtype == torch.uint8


def _cloned(state: Any) -> Any:
    if isinstance(state, Tensor):
        return state.clone()
    if isinstance(state, tuple):
        parts = [_cloned(part) for part in state]
        return type(state)(*parts) if hasattr(state, "_fields") else tuple(parts)
    return state


def _garbling(at: int, flip: bool, seed: int) -> Runner:
    return lambda exchanges: simulate([_garbled(exchange, at, flip, seed) for exchange in exchanges])


def _garbled(exchange: Exchange[Any], at: int, flip: bool, seed: int) -> Exchange[Any]:
    """The exchange with wrong bytes in the answer to its ``at``-th round of gathered bytes, the same on all ranks."""
    dice, seen = random.Random(seed), 0
    try:
        op = next(exchange)
        while True:
            answer = yield op
            if _gathered(op):
                if seen == at:
                    answer = _flipped(answer, dice) if flip else _cut(answer, dice)
                seen += 1
            op = exchange.send(answer)
    except StopIteration as stop:
        return stop.value


def _flipped(answer: Tensor, dice: random.Random) -> Tensor:
    """With one to four bytes replaced, half of the time near the front, where counts and scales are."""
    out = answer.contiguous().clone()
    rows = out.view(out.shape[0], -1) if out.ndim > 1 else out.view(1, -1)
    for _ in range(dice.randint(1, 4)):
        width = rows.shape[1] if dice.random() < 0.5 else min(24, rows.shape[1])
        rows[dice.randrange(rows.shape[0]), dice.randrange(width)] = dice.randrange(256)
    return out


def _cut(answer: Tensor, dice: random.Random) -> Tensor:
    """Without the last bytes of each row."""
    width = answer.shape[-1]
    return answer[..., : dice.randrange(width)].contiguous() if width else answer


# ---- law 12 ---------------------------------------------------------------------------------------------------------
def finite_stays_finite(method: Method[Any], xs: Sequence[Tensor]) -> None:
    """Finite gradients have a finite mean, and leave finite memories."""
    for rank, out in enumerate(run(method, xs)):
        assert out.finite, f"finite: rank {rank} reads finite gradients as non-finite"
        assert bool(out.mean.isfinite().all()), f"finite: rank {rank} has an inf or NaN in the mean of finite numbers"
        for leaf in leaves(out.state):
            assert not leaf.is_floating_point() or bool(leaf.isfinite().all()), (
                f"finite: the state of rank {rank} is not"
            )
