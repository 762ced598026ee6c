"""SIDCo, and the thresholds that it estimates."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import grace
from grace.errors import ConfigurationError
from grace.kernels import TensorList
from grace.kernels.index_codes.codes import CODES
from grace.methods.common import tail_bucket
from grace.methods.common.tail_bucket import exponential_thresholds, fitted_thresholds
from grace.methods.common.tails import find_threshold, inverse_gamma_tails, most_stages, stage_shares, threshold
from grace.methods.sidco import Search, SIDCo

from . import sparse_checks as checks

N = 100_000


def laplace(seed: int) -> Tensor:
    u = torch.rand(N, generator=checks.generator(seed)) - 0.5
    return -u.sign() * (1 - 2 * u.abs()).clamp_min(1e-7).log()


def student(seed: int) -> Tensor:
    gen = checks.generator(seed)
    return torch.randn(N, generator=gen) / torch.randn(3, N, generator=gen).square().mean(0).sqrt()


def gauss(seed: int) -> Tensor:
    return torch.randn(N, generator=checks.generator(seed))


def test_vector_of_the_specification() -> None:
    x = torch.tensor([0.2, 0.3, 0.5, 3])
    assert threshold(x, 0.25, 1, "exp", 0.25) == pytest.approx(math.log(4))  # mu = 1
    (out,) = checks.run(SIDCo(0.25), [x])
    assert out.mean.tolist() == [0, 0, 0, 3]


def test_fits_by_hand() -> None:
    a = torch.tensor([1.0, 2, 3, 10])  # mu = 4, variance 12.5
    assert threshold(a, 0.1, 1, "exp", 0.25) == pytest.approx(4 * math.log(10))
    kappa, beta = (1 - 16 / 12.5) / 2, 2 * (16 / 12.5 + 1)
    assert threshold(a, 0.1, 1, "gpareto", 0.25) == pytest.approx(beta / kappa * (0.1**-kappa - 1))
    s = math.log(4) - math.log(60) / 4
    shape = (3 - s + math.sqrt((s - 3) ** 2 + 24 * s)) / (12 * s)
    eta = threshold(a, 0.1, 1, "gamma", 0.25)
    order, at = (torch.tensor(v, dtype=torch.float64) for v in (shape, eta * shape / 4))
    assert float(torch.special.gammaincc(order, at)) == pytest.approx(0.1)
    # two stages: a quarter exceeds the first threshold, 0.4 of those the second
    first = 4 * math.log(4)
    assert threshold(a, 0.1, 2, "exp", 0.25) == pytest.approx(first + (10 - first) * math.log(2.5))


def test_gamma_of_shape_1_is_exponential() -> None:
    assert inverse_gamma_tails([1.0], [0.001]) == pytest.approx([math.log(1000)])


def test_many_gamma_tails_are_those_of_each() -> None:
    """To the bit, some of which need several doublings; and of none."""
    shapes, shares = [1.0, 0.01, 70.0, 0.4, 3.0], [0.001, 0.2, 1e-9, 1e-300, 0.999]
    each = [inverse_gamma_tails([shape], [share])[0] for shape, share in zip(shapes, shares, strict=True)]
    assert inverse_gamma_tails(shapes, shares) == each
    assert inverse_gamma_tails([], []) == []
    order, at = torch.tensor(shapes).double(), torch.tensor(each).double()
    assert torch.special.gammaincc(order, at).tolist() == pytest.approx(shares)


def test_most_stages() -> None:
    assert [most_stages(r, 0.25) for r in (0.5, 0.25, 0.1, 0.01, 0.001)] == [1, 1, 4, 7, 10]


@pytest.mark.parametrize("ratio", [0.1, 0.01, 0.001])
def test_count_on_laplace_is_within_half_of_the_target(ratio: float) -> None:
    a = laplace(0).abs()
    for dist in ("exp", "gpareto", "gamma"):
        for stages in range(1, most_stages(ratio, 0.25) + 1):
            assert 0.5 <= int((a > threshold(a, ratio, stages, dist, 0.25)).sum()) / (ratio * N) <= 1.5


def test_heavy_tails_need_three_stages() -> None:
    a = student(0).abs()
    hits = [int((a > threshold(a, 0.001, stages, "exp", 0.25)).sum()) / 100 for stages in (1, 3)]
    assert hits[0] > 4
    assert 0.7 <= hits[1] <= 1.5


def find_all(dist: str, many: TensorList, shares: list[list[float]]) -> tuple[Tensor, Tensor]:
    if dist == "exp":
        return exponential_thresholds(many, shares)
    return fitted_thresholds(many, shares, "gamma" if dist == "gamma" else "gpareto")


@pytest.mark.parametrize("dist", ["exp", "gpareto", "gamma"])
def test_thresholds_of_a_bucket_are_those_of_its_tensors(dist: str) -> None:
    """To the bit, for any numbers of stages; also where nothing is left before the last, or nothing can be found."""
    rows = [laplace(0), student(1)[:5000], gauss(2)[:70], torch.ones(9), torch.tensor([3e38, 1e38]), torch.zeros(4)]
    rows += [torch.full((3,), 1e-45), torch.tensor([1.0, math.inf]), torch.tensor([-math.nan]), gauss(3)]
    rows += [gauss(4).relu(), torch.tensor([0.0, -2.0, 0.0])]
    many = TensorList([len(row) for row in rows], (), (), torch.device("cpu"))
    many.point([row[None] / 4 for row in rows], [row[None] * 0.75 for row in rows])
    sums = [x[0] + e[0] for x, e in zip(many.xs, many.memories or (), strict=True)]
    for step in range(3):
        stages = [(t + 3 * step) % 8 + 1 for t in range(len(rows))]
        eta, usable = find_all(dist, many, [stage_shares(0.01, M, 0.25) for M in stages])
        right = [find_threshold(row.abs(), 0.01, M, dist, 0.25) for row, M in zip(sums, stages, strict=True)]
        assert usable.tolist() == [value is not None for value in right]
        assert eta.tolist() == [1.0 if value is None else value for value in right]


@pytest.mark.parametrize("dist", ["gpareto", "gamma"])
def test_what_exceeds_one_threshold_too_many_is_caught(dist: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail_bucket, "_above", lambda a, eta, count: a[a >= a.sort(descending=True)[0][count]])
    with pytest.raises(AssertionError):
        test_thresholds_of_a_bucket_are_those_of_its_tensors(dist)


def test_zeros_that_are_fitted_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = tail_bucket.log_moments

    def fit_all(a: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_mean = counted(a)
        return mean * len(a) / (len(a) + 1), log_mean

    monkeypatch.setattr(tail_bucket, "log_moments", fit_all)
    with pytest.raises(AssertionError):
        test_thresholds_of_a_bucket_are_those_of_its_tensors("gamma")


@pytest.mark.parametrize("dist", ["exp", "gpareto", "gamma"])
@pytest.mark.parametrize("draw", [laplace, student, gauss])
def test_stages_adapt_until_the_count_is_right(dist: str, draw) -> None:
    method, state, counts = SIDCo(0.001, dist, period=2), Search(), []
    for step in range(16):
        (out,) = checks.run(method, [draw(step)], [state], step)
        state = out.state
        counts.append(int((out.mean != 0).sum()))
    assert 60 <= statistics.median(counts[8:]) <= 150, counts


def test_stages_move_once_a_period_and_only_outside_of_eps() -> None:
    method = SIDCo(0.01, period=3, eps=0.2)
    state = Search()
    for surplus in (0.1, 0.1):
        state = method._next(state, surplus)
    assert (state.stages, state.steps) == (1, 2)
    state = method._next(state, 0.1)
    assert (state.stages, state.direction, state.steps) == (2, 1, 0)
    for surplus in (0.05, 0.05, 0.05):  # worse, but nothing is on the other side
        state = method._next(state, surplus)
    assert (state.stages, state.direction, state.best) == (3, 1, 1)
    for surplus in (1.1, 0.9, 1.0):
        state = method._next(state, surplus)
    assert state == Search(3, 1)  # good: the search is over
    assert method._next(state, None) is state


# ---- where a search ends ----------------------------------------------------------------------------------------------
FIRST = Search()


def settle(kept: list[float], start: Search = FIRST, eps: float = 0.2) -> Search:
    """A search over stages that keep so much of what is wanted, two steps for each and some more."""
    for _ in range(2 * len(kept) + 6):
        start = start.follow(kept[start.stages - 1], len(kept), eps, 2)
    return start


def check_search(kept: list[float], start: Search = FIRST) -> None:
    """It ends at the best number of stages, or at one within eps, and stays there."""
    state, errors = settle(kept, start), [abs(math.log(each)) for each in kept]
    assert abs(kept[state.stages - 1] - 1) <= 0.2 or errors[state.stages - 1] == min(errors)
    assert settle(kept, state).stages == state.stages


CURVES = [
    [4.0, 0.32, 0.2, 0.9],  # a better one behind worse ones
    [3.0, 2.0, 2.5, 2.2, 1.1],
    [0.66, 0.11, 0.04],
    [0.5, 0.25, 0.9, 0.3, 0.2],
    [8.3],
    [5.0, 4.0, 3.0, 2.0],
]


@pytest.mark.parametrize("kept", CURVES)
def test_a_search_does_not_settle_where_others_do_better(kept: list[float]) -> None:
    for start in range(1, len(kept) + 1):
        for direction in (1, -1):
            check_search(kept, Search(start, direction))


def _turn_back(self: Search, most: int) -> Search:
    return self._replace(stages=min(max(self.stages + self.direction, 1), most))


def test_one_that_turns_back_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Search, "_move", _turn_back)
    with pytest.raises(AssertionError):
        check_search(CURVES[0])


def cauchy(seed: int) -> Tensor:
    gen = checks.generator(seed)
    return torch.randn(N, generator=gen) / torch.randn(N, generator=gen)


def lognormal(seed: int) -> Tensor:
    return (2 * torch.randn(N, generator=checks.generator(seed))).exp()


def pareto(seed: int) -> Tensor:
    return torch.rand(N, generator=checks.generator(seed)).clamp_min(1e-7) ** -0.7 - 1


def few(seed: int) -> Tensor:
    return student(seed) * (torch.rand(N, generator=checks.generator(seed + 99)) < 0.05)


@pytest.mark.parametrize("dist", ["exp", "gpareto", "gamma"])
@pytest.mark.parametrize("draw", [student, cauchy, lognormal, pareto, few])
def test_heavy_tails_settle_where_they_do_best(dist: str, draw: Callable[[int], Tensor]) -> None:
    a, ratio = draw(0).abs(), 0.001
    thresholds = [find_threshold(a, ratio, stages, dist, 0.25) for stages in range(1, most_stages(ratio, 0.25) + 1)]
    check_search([int((a > (eta or 0.0)).sum()) / (ratio * N) for eta in thresholds])


def test_a_new_search_begins_when_the_best_does_worse() -> None:
    state = settle([4.0, 0.6, 0.2])
    assert state.stages == 2
    assert settle([4.0, 0.55, 1.0], state).stages == 2, "hardly worse: nothing is tried again"
    assert settle([4.0, 0.3, 1.0], state).stages == 3


@pytest.mark.parametrize("dist", ["exp", "gpareto", "gamma"])
def test_edges(dist: str) -> None:
    for name, x in checks.edges():
        (out,) = checks.run(SIDCo(0.1, dist), [x])
        assert torch.equal(out.mean.double() + out.rest.double(), x.double()), name
        assert int((out.mean != 0).sum()) >= bool(x.any())
        assert out.mean.abs().max() == x.abs().max()
    (out,) = checks.run(SIDCo(0.1, dist), [torch.zeros(0)])
    assert out.mean.numel() == 0


@pytest.mark.parametrize("dist", ["exp", "gpareto", "gamma"])
def test_kept_numbers_are_the_largest(dist: str) -> None:
    for name, x in checks.inputs():
        (out,) = checks.run(SIDCo(0.05, dist), [x])
        nnz = int((out.mean != 0).sum())
        error = float((x - out.mean).double().square().sum())
        assert error <= (1 - nnz / 1000) * float(x.double().square().sum()) * (1 + 1e-6), name
        (minus,) = checks.run(SIDCo(0.05, dist), [-x])
        assert torch.equal(minus.mean, -out.mean)
        (scaled,) = checks.run(SIDCo(0.05, dist), [4 * x])
        assert torch.equal(scaled.mean, 4 * out.mean)


@pytest.mark.parametrize("code", CODES)
def test_exchange(code: str) -> None:
    checks.check_exchange(grace.method("sidco", ratio=0.05, index=code, memory="none"))
    checks.check_nothing_lost(grace.method("sidco", ratio=0.05, index=code, period=2, values="bfloat16"))


def test_state_survives_a_checkpoint() -> None:
    policy = grace.Policy([("*", "sidco:ratio=0.001,period=2")])
    whole, first = grace.Simulator(policy, world=2), grace.Simulator(policy, world=2)
    for step in range(6):
        grads = {"w": [student(2 * step), gauss(2 * step)]}
        assert torch.equal(whole.step(grads)["w"], first.step(grads)["w"])
        if step == 2:
            saved = first.state_dict()
            first = grace.Simulator(policy, world=2)
            first.load_state_dict(saved, {"w": student(0)})
    stages = [worker._states["w"][1][1].stages for worker in first.workers]
    assert stages == [worker._states["w"][1][1].stages for worker in whole.workers]
    assert max(stages) > 1


def test_knobs() -> None:
    for knobs in (
        {"ratio": 0}, {"dist": "normal"}, {"first_ratio": 1}, {"eps": 0}, {"period": 0}, {"index": "x"}, {"values": "x"},
    ):  # fmt: skip
        with pytest.raises(ConfigurationError, match="sidco"):
            SIDCo(**knobs)
