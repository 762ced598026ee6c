from __future__ import annotations

import pytest
import torch

import grace
from grace.compute import backends
from grace.errors import PayloadError
from grace.kernels.rotation import reference
from grace.methods.common.rotation import rotate
from grace.methods.drive import DRIVE
from grace.methods.eden import EDEN
from grace.random import Stream
from grace.verify.running import run
from tests.unit.methods import quant_checks as check

DISTORTION = {1: 0.3634, 2: 0.1175, 3: 0.03454, 4: 0.009497}  # of a standard normal number: Max, 1960
SHARED = {"rotation": "shared"}
KEY = 8  # bytes in front of a wire that was rotated in private
ALL = [
    DRIVE(block=64),
    DRIVE(block=64, **SHARED),
    EDEN(block=64),
    EDEN(block=64, **SHARED),
    EDEN(bits=1),
    EDEN(bits=2, block=16),
    EDEN(bits=3),
]
MSE = [DRIVE(block=64, scale="mse"), *(EDEN(block=64, scale="mse", bits=bits) for bits in (1, 2, 3, 4))]


def test_the_worked_example(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "draw_signs", lambda rows, rng: torch.tensor([[1.0, -1, 1, 1]]))
    monkeypatch.setattr(backends, "current", backends.UNDECIDED)
    monkeypatch.setenv(backends.VARIABLE, "reference")
    x = torch.tensor([1.0, 2, 3, 4])  # y = [3, 1, -4, 2]
    wire = check.encoded(DRIVE(block=4, **SHARED), x.view(1, -1))
    torch.testing.assert_close(wire[0, :4].clone().view(torch.float32), torch.tensor([3 / 0.7978846]))
    assert wire[0, 4:].tolist() == [0b1011]
    torch.testing.assert_close(check.applied(DRIVE(block=4, **SHARED), x), torch.tensor([3.0, 3, 3, 3]))
    mse = check.encoded(DRIVE(block=4, scale="mse", **SHARED), x.view(1, -1))
    torch.testing.assert_close(mse[0, :4].clone().view(torch.float32), torch.tensor([2.5 / 0.7978846]))


def test_codes_are_the_nearest_centroids() -> None:
    x = torch.randn(1, 1024, generator=torch.Generator().manual_seed(0))
    for rotation, stream in (("shared", check.peer().shared("EDEN")), ("private", check.peer().private("EDEN"))):
        compressor = EDEN(bits=2, rotation=rotation)
        wire = compressor.compress_(x.clone(), stream, False)
        y = rotate(x, stream, 1024)[0] * 32 / x.norm()
        code = (y >= -0.9815988).long() + (y >= 0) + (y >= 0.9815988)
        assert torch.equal(wire[0, -256:], (code.view(-1, 4) << torch.tensor([0, 2, 4, 6])).sum(1).byte())
        assert wire.shape[1] == 256 + 4 + KEY * (rotation == "private")


def test_a_private_wire_begins_with_the_key_of_its_senders_stream() -> None:
    stream = Stream(5, "EDEN", "w", 3, 7).fork(1)  # of a second hop
    wire = EDEN(block=16).compress_(torch.ones(2, 40), stream, False)
    for row in wire:
        assert tuple(word & 0xFFFFFFFF for word in row[:KEY].view(torch.int32).tolist()) == stream.fork(0).key()


@pytest.mark.parametrize(("rotation", "noise", "paper"), [
    ("private", 0.0, 0.0358), ("private", 1.0, 0.0358), ("shared", 0.0, 0.5704), ("shared", 1.0, 0.0583),
])  # fmt: skip
def test_the_error_of_the_mean_of_16_workers(rotation: str, noise: float, paper: float) -> None:
    """Error of gradients of one bit, over their mean square. Private rotations: 0.571 / 16, as in the authors' code."""
    x, *noises = torch.randn(17, 16384, generator=torch.Generator().manual_seed(1)).unbind()
    xs = [x + noise * part for part in noises]
    mean = run(grace.method(f"drive:rotation={rotation}"), xs)[0].mean
    error = (mean - torch.stack(xs).mean(0)).double().square().mean()
    assert float(error / torch.stack(xs).double().square().mean()) == pytest.approx(paper, rel=0.15)


@pytest.mark.parametrize("spec", ["eden:bits=1", "eden:bits=1,communicator=broadcast", "eden:bits=1,machine=2"])
def test_rotations_are_private_whatever_carries_the_wires(spec: str) -> None:
    x = torch.randn(4096, generator=torch.Generator().manual_seed(1))
    errors = [float((run(grace.method(spec), [x] * world)[0].mean - x).norm() ** 2 / x.norm() ** 2) for world in (2, 8)]
    assert errors[1] < 0.4 * errors[0]


@pytest.mark.parametrize("spec", ["eden:bits=4,communicator=scatterreduce", "eden:bits=4,communicator=parameterserver"])
def test_second_hops_are_rotated_back_by_their_senders_keys(spec: str) -> None:
    x = torch.randn(4001, generator=torch.Generator().manual_seed(1))
    for world in (2, 5):
        mean = run(grace.method(spec), [x] * world)[0].mean
        assert float((mean - x).norm() ** 2 / x.norm() ** 2) < 0.0096 * (1 + 1 / world) * 1.3


def test_the_bias_of_sparse_blocks() -> None:
    """As the page says: ten numbers of 1,024 take part in each sum, which is not Gaussian."""
    x, generator = torch.zeros(128, 1024), torch.Generator().manual_seed(0)
    for row in x:
        row[torch.randperm(1024, generator=generator)[:10]] = torch.randn(10, generator=generator)
    means = torch.stack([run(grace.method("drive"), [x], seed=seed)[0].mean for seed in range(100)]).double()
    error = (means.mean(0) - x).norm() ** 2 / x.norm() ** 2
    chance = means.var(0).sum() / 100 / x.norm() ** 2
    assert float((error - chance).clamp_min(0)) ** 0.5 == pytest.approx(0.11, abs=0.025)


@pytest.mark.parametrize("compressor", ALL)
def test_the_product_with_x_is_exact(compressor: EDEN) -> None:
    for n in (5, 64, 300):
        for x in check.inputs(n).values():
            got = check.applied(compressor, x).double()
            square = float(x.double().square().sum())
            assert abs(float((got * x).sum()) - square) <= 1e-5 * square + 1e-12


@pytest.mark.parametrize("bits", [1, 2, 3, 4])
def test_errors_are_those_of_gaussian_numbers(bits: int) -> None:
    D = DISTORTION[bits]
    for label, slack in (("gaussian", 0.05), ("log-normal", 0.15)):  # the latter have a few that outweigh all others
        x = check.inputs(8192)[label]
        square = float(x.double().square().sum())
        for scale, want in (("unbiased", D / (1 - D)), ("mse", D)):
            error = check.applied(EDEN(bits=bits, block=8192, scale=scale), x) - x
            assert abs(float(error.square().sum()) / square / want - 1) < slack


@pytest.mark.parametrize("compressor", [DRIVE(block=256), EDEN(block=256, bits=2)])
def test_nearly_unbiased_over_rotations(compressor: EDEN) -> None:
    x = check.inputs(256)["log-normal"]
    got = torch.stack([check.applied(compressor, x, step) for step in range(200)])
    bias = got.mean(0) - x
    omega = {1: 0.571, 2: 0.133}[compressor.code_bits]
    assert float(bias.norm() / x.norm()) < 2 * (omega / 200) ** 0.5 + 0.02


def test_one_bit_is_exact_where_the_rotation_has_one_magnitude() -> None:
    one_hot = check.inputs(64)["one-hot"]
    torch.testing.assert_close(check.applied(DRIVE(block=64), one_hot), one_hot, rtol=1e-6, atol=1e-6)
    for bits in (1, 2, 3, 4):
        number = torch.tensor([-0.37])
        torch.testing.assert_close(check.applied(EDEN(bits=bits), number), number)


@pytest.mark.parametrize("compressor", MSE)
def test_for_least_error_it_contracts(compressor: EDEN) -> None:
    check.assert_contracts(compressor)


@pytest.mark.parametrize("compressor", [*ALL, MSE[0], MSE[2]])
def test_flags_edges_and_payload(compressor: EDEN) -> None:
    check.assert_flags(compressor, odd=False, idempotent=False)
    check.assert_edges(compressor, bounded=False)
    check.assert_refuses_garbage(compressor)


def test_a_scale_that_would_overflow_is_refused() -> None:
    wire = torch.tensor([[0.0, 0.0, 3.3e38]]).view(torch.uint8)
    with pytest.raises(PayloadError, match="scales"):
        check.decoded(EDEN(), torch.cat((wire, wire[:, :2]), 1), 4)


@pytest.mark.parametrize("compressor", ALL)
def test_huge_numbers_are_as_exact_as_others(compressor: EDEN) -> None:
    for n in (1, 20, 64):
        x = check.inputs(n)["gaussian"]
        x = x / x.abs().max()
        huge = check.applied(compressor, x * 2.0**126)
        torch.testing.assert_close(huge * 2.0**-126, check.applied(compressor, x), rtol=1e-5, atol=1e-6)


def test_exchanges_and_bits() -> None:
    for spec in ("drive:block=32", "eden:block=32,bits=3", "eden:block=16,communicator=scatterreduce"):
        check.assert_agrees_and_conserves(spec)
    check.assert_loses_nothing("drive:block=32,memory=residual")
    check.assert_loses_nothing("eden:bits=2,memory=residual,communicator=scatterreduce")
    check.assert_agrees_on_nonfinite("eden")
    assert 1.03 < check.bits_per_element("drive") < 1.034
    assert 4.03 < check.bits_per_element("eden") < 4.034


def test_knobs() -> None:
    check.assert_refuses_knobs(EDEN, bits=[0, 5, 2.0], block=[0, 3, 1 << 17], scale=["best"], rotation=["own", True])
    check.assert_refuses_knobs(DRIVE, block=[12], scale=["best"])
