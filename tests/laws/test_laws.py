"""Every law, for every case, world and ugly input."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import grace
from grace.contract.compressor import Compressor
from grace.contract.method import Method
from grace.contract.wrapping import layers
from grace.memories import Memory
from grace.verify import laws
from grace.verify.exact import KINDS
from grace.verify.inputs import HUGE, UGLY, Make, heavy, normal
from tests.laws.cases import CASES, DRAWS, EXACT, STAY, by_night, by_tier, spell_case

SPREAD = True  # over the test runner's processes
WORLDS = (1, 2, 3, 5, 8)
# The large ones less often: their cost grows with the square.
CYCLE = (2, 3, 1, 2, 5, 3, 2, 1, 3, 2, 8, 2, 3)
STAYING = (2, 1, 2, 5, 2, 1, 2)  # in `make test`
OTHERS = (3, 3, 8)  # the rest, in `make laws`
every_case = pytest.mark.parametrize("spec", by_tier())
BARE = {spec: method for spec, method in CASES.items() if not laws.is_memory(method)}
every_bare_case = pytest.mark.parametrize("spec", by_tier(BARE))
MEMORIES = {s: m for s, m in CASES.items() if isinstance(m, Memory) and m.loses_nothing}


def workers(make: Make, world: int) -> list[Tensor]:
    return [make(rank) for rank in range(world)]


def worlds(method: Method) -> tuple[int, ...]:
    """A parameter server has to be one of the workers."""
    return tuple(w for w in WORLDS if w > getattr(method, "server", 0))


def ugly(spec: str, *names: str) -> Iterator[list[Tensor]]:
    """Inputs (default: all), each in one world, which moves on from input to input and from case to case. Cases beside the
    first of a method, which put the same pieces together around other numbers, meet every third input.
    """
    first = list(CASES).index(spec)
    legal = [world for world in (STAYING if spec in STAY else CYCLE) if world in worlds(CASES[spec])]
    for i, name in enumerate(names or UGLY):
        if spec in STAY or (first + i) % 3 == 0:
            yield workers(UGLY[name], legal[(first + i) % len(legal)])


def overflows(method: Method, make: Make) -> bool:
    """Half precision without a memory becomes inf beyond 65,504, as its docstring says."""
    return isinstance(layers(method)[-1], grace.FP16) and make is UGLY["tiny and huge"]


def test_every_registered_method_is_a_case():
    cores = {spec.partition(":")[0] for spec in CASES}
    assert set(grace.methods()) <= cores


@every_case
def test_agreement(spec: str):
    for xs in (*ugly(spec), workers(HUGE, 3)):
        laws.agreement(CASES[spec], xs)


@every_bare_case
def test_conservation(spec: str):
    method = BARE[spec]
    if not laws.conserves(method):
        assert laws.remembers(method) is None, "what does not conserve must refuse a memory"
        return
    for xs in ugly(spec):
        laws.conservation(method, xs)


@pytest.mark.tier("laws")
@pytest.mark.parametrize("spec", STAY)
def test_agreement_and_conservation_in_other_worlds(spec: str):
    method, first = CASES[spec], STAY.index(spec)
    legal = [world for world in OTHERS if world in worlds(method)]
    for i, make in enumerate(UGLY.values()):
        if (first + i) % 3 == 0:
            xs = workers(make, legal[(first + i) // 3 % len(legal)])
            laws.agreement(method, xs)
            if spec in BARE and laws.conserves(method):
                laws.conservation(method, xs)


@pytest.mark.parametrize("spec", by_tier([*BARE, *MEMORIES]))
def test_scattered_rows_conserve(spec: str):
    method = CASES[spec]
    world = worlds(method)[-3]
    for width in (7, 1, 0):
        laws.scatter_conserves(method, workers(normal(world, width), world))
    laws.scatter_conserves(method, workers(normal(world, 7), world), bad=math.nan)


@pytest.mark.parametrize("spec", by_tier(MEMORIES))
def test_nothing_is_lost(spec: str):
    method = MEMORIES[spec]
    for xs in ugly(spec):
        laws.nothing_lost(method, [[x * (1 - 0.5 * t) for x in xs] for t in range(3)])


@every_bare_case
def test_unbiased_if_declared(spec: str):
    laws.unbiased(BARE[spec], [normal(6, 6)(0), heavy(6, 6)(1)], DRAWS)


@every_bare_case
def test_bounds_if_declared(spec: str):
    if worlds(BARE[spec])[0] > 1:
        return  # bounds are for one worker
    constant, sparse = torch.full((61,), -0.7), torch.zeros(200)
    sparse[::100] = torch.tensor([3.0, -1.0])
    for x in (normal(64)(0), heavy(80)(0), UGLY["one hot"](0), constant, sparse, normal(1)(0), normal(12, 8)(0)):
        laws.bounds(BARE[spec], x, DRAWS // 2)


@every_case
def test_traffic_is_what_is_declared(spec: str):
    for xs in ugly(spec, "one element", "0-d", "empty", "f16", "f64", "channels last", "zeros", "normal"):
        for keep_rest in (False, True) if spec in BARE else (False,):
            laws.traffic(CASES[spec], xs, keep_rest)


def compressors() -> dict[str, Compressor]:
    return {s: m.compressor for s, m in BARE.items() if hasattr(m, "compressor")}


@pytest.mark.parametrize("spec", by_tier(compressors()))
def test_payload_and_sum_are_what_is_declared(spec: str):
    for n in (1, 2, 5, 31, 64, 257):
        rows = normal(4, n)(0)
        laws.payload(compressors()[spec], rows)
        laws.summable(compressors()[spec], rows)


@pytest.mark.parametrize(("name", "kind"), EXACT)
def test_exact_recovery(name: str, kind: str):
    method = grace.method(spell_case(name, EXACT[name, kind]))
    for world in (1, 2, 4, 8):
        laws.exact_recovery(method, workers(KINDS[kind], world))


@pytest.mark.parametrize("spec", by_night("Neighborly"))
def test_fused_equals_alone(spec: str):
    method, companion = CASES[spec], grace.method("powersgd:rank=1,min_rate=0.1")
    laws.fused_equals_alone(
        [method, grace.method("none"), method, companion, method],
        [workers(make, 3) for make in (normal(13, 7), normal(5), heavy(6, 6), normal(6, 5), normal(31))],
    )


@pytest.mark.parametrize("spec", by_night("Sensitive"))
def test_answers_may_lie_in_donated_buffers(spec: str):
    for name in ("normal", "odd size", "f16", "f64", "non-contiguous"):
        laws.answers_may_alias(CASES[spec], workers(UGLY[name], 3))


@pytest.mark.parametrize("spec", by_night("RestCosts", of=BARE))
def test_keeping_the_rest_is_free(spec: str):
    for make in UGLY.values():
        if not overflows(BARE[spec], make):
            laws.rest_is_free(BARE[spec], workers(make, 2))


@pytest.mark.parametrize("spec", by_night("Seedless"))
def test_randomness_is_its_own(spec: str):
    for make in (normal(20, 5), heavy(128), UGLY["zeros"], UGLY["odd size"]):
        laws.own_randomness(CASES[spec], workers(make, 2))


@every_bare_case
def test_workers_draw_their_own_numbers_if_declared(spec: str):
    laws.independence(BARE[spec], normal(20, 10)(0))


@pytest.mark.parametrize("spec", ["qsgd", "natural", "terngrad", "rht", "drive", "eden", "eden:bits=1,scale=mse"])
def test_these_draw_their_own(spec: str):
    assert laws.independence(grace.method(spec), normal(20, 10)(0)) is not None


@pytest.mark.parametrize(
    "spec", ["thc", "drive:rotation=shared", "eden:rotation=shared", "rht:inner=(lpc:nearest=true)"]
)
def test_these_share_their_rotation(spec: str):
    assert grace.method(spec).facts(normal(20, 10)(0)).randomness == "shared"


@pytest.mark.parametrize("spec", by_night("Hidden"))
def test_state_survives(spec: str):
    laws.state_survives(CASES[spec], [[normal(9, 8)(10 * t + r) for r in range(3)] for t in range(4)], stop=2)


BAD = {
    math.inf: ("normal", "f16", "0-d"),
    -math.inf: ("channels last", "one element", "f64"),
    math.nan: ("normal", "zeros", "bf16"),
}


@every_case
def test_nonfinite_is_agreed(spec: str):
    for bad, names in BAD.items():
        for xs in ugly(spec, *names):
            laws.nonfinite_is_agreed(
                CASES[spec], [xs, [x * 2 for x in xs], [-x for x in xs]], bad, rank=len(xs) - 1, at=xs[0].numel() // 2
            )


@pytest.mark.parametrize("spec", by_night("Hasty"))
def test_a_failure_leaves_the_memory(spec: str):
    for make in (normal(9, 8), UGLY["empty"]):
        laws.failure_leaves_memory(CASES[spec], workers(make, 3))


FLOATS = st.floats(-(2.0**90), 2.0**90, width=32) | st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0**-149, 2.0**-126, 0.1])


@st.composite
def gradients(draw: st.DrawFn) -> list[Tensor]:
    """A tensor per worker, of one shape and dtype."""
    world = draw(st.sampled_from(WORLDS))
    shape = draw(st.sampled_from([(), (1,), (2,), (7,), (3, 2), (4, 5), (1, 9), (2, 3, 2), (33,)]))
    numbers = draw(st.lists(st.lists(FLOATS, min_size=1, max_size=8), min_size=world, max_size=world))
    xs = []
    for row in numbers:
        x = torch.tensor(row, dtype=torch.float32).repeat(math.prod(shape))[: math.prod(shape)].view(shape)
        xs.append(x)
    return xs


@settings(max_examples=100)
@given(spec=st.sampled_from(sorted(CASES)), xs=gradients())
def test_agreement_and_conservation_for_any_numbers(spec: str, xs: list[Tensor]):
    method = CASES[spec]
    if len(xs) not in worlds(method):
        return
    laws.agreement(method, xs)
    if spec in BARE and laws.conserves(method):
        laws.conservation(method, xs)
    if spec in MEMORIES:
        laws.nothing_lost(method, [xs, xs, xs])


@settings(max_examples=60)
@given(spec=st.sampled_from(sorted(CASES)), xs=gradients(), bad=st.sampled_from([math.inf, -math.inf, math.nan]))
def test_nonfinite_is_agreed_for_any_numbers(spec: str, xs: list[Tensor], bad: float):
    if len(xs) in worlds(CASES[spec]):
        quiet = [x.clamp(-1e3, 1e3) for x in xs]
        laws.nonfinite_is_agreed(CASES[spec], [quiet, quiet, quiet], bad, rank=0, at=xs[0].numel() - 1)
