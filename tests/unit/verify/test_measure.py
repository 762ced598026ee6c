import pytest
import torch

import grace
from grace.verify.measure import bias_p_value, speed


def draws(number, shape=(500,), seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(number, *shape, generator=generator, dtype=torch.float64)


def test_p_values_of_unbiased_draws_are_uniform_enough():
    x = draws(1)[0]
    p_values = [bias_p_value(x + draws(40, seed=seed), x) for seed in range(1, 201)]
    assert min(p_values) > 1e-4
    assert sum(p < 0.1 for p in p_values) <= 40  # expected: at most 20 of 200


@pytest.mark.parametrize(
    "bias",
    [
        lambda x: -0.05 * x,
        lambda x: 0.05 * torch.ones_like(x),
        lambda x: 0.05 * x.sign() * (x.abs() > x.abs().median()),
    ],
)
def test_biases_are_found(bias):
    x = draws(1)[0]
    assert bias_p_value(x + bias(x) + draws(200, seed=1), x) < 1e-6


def test_what_is_exact_is_unbiased_and_what_is_off_without_spread_is_not():
    x = draws(1)[0]
    assert bias_p_value(torch.stack([x, x]), x) == 1
    assert bias_p_value(torch.stack([x, x]) * (1 + 1e-8), x) == 1
    assert bias_p_value(torch.stack([x, x]) * 1.01, x) == 0
    assert bias_p_value(torch.zeros(3, 4), torch.zeros(4)) == 1


def test_few_numbers_sent_are_no_bias():
    x = draws(1)[0].float()
    outs = torch.zeros(200, 500, dtype=torch.float64)
    at = torch.randint(0, 500, (200,), generator=torch.Generator().manual_seed(4))
    outs[torch.arange(200), at] = 500 * x[at].double()
    assert bias_p_value(outs, x) > 1e-3


def test_speed_of_a_compressor_and_of_a_method():
    apart = speed(grace.Allgather(grace.TopK(0.1)), 400)
    assert apart.numbers == 400
    assert apart.decode is not None
    whole = speed(grace.method("powersgd").method, 400)
    assert whole.decode is None
    assert min(apart.encode, apart.decode, apart.add, whole.encode, whole.add) > 0
