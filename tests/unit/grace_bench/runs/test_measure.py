import pytest
import torch

from grace.transports.timed import Tally
from grace_bench.runs import measure
from grace_bench.runs.baselines import Counters
from tests.blobs import Blobs


@pytest.mark.parametrize(("steps", "first"), [(1000, 900), (200, 100), (199, 99), (20, 10), (3, 1), (1, 0)])
def test_the_steady_state_is_the_last_100_steps_or_the_last_half(steps, first):
    assert measure.steady_from(steps) == first


def test_compute_is_measured_and_nothing_is_left_of_it():
    torch.manual_seed(3)
    task = Blobs()
    task.load(None)
    model = task.model()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    random = torch.get_rng_state()

    def step(model, optimizer, batch):
        optimizer.zero_grad()
        (task.loss(model, batch) + 0 * torch.rand(())).backward()
        optimizer.step()

    measured = measure.Compute(model, task.optimizer(model), task.batches(0, 2, 0), step)
    assert len(measured.seconds) >= 5
    assert measured.cpu > 0
    assert torch.equal(random, torch.get_rng_state())
    assert all(p.grad is None for p in model.parameters())
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    assert set(measured.ready) == {name for name, _ in model.named_parameters()}
    assert 0 < measured.ready["2.weight"] <= measured.ready["0.weight"] <= 1  # backward: the last layer first


def test_a_peak_is_at_least_what_is_held():
    measure.forget_peak()
    held = torch.ones(8_000_000)
    assert measure.peak_bytes() > held.numel() * held.element_size()


def test_counters_between_two_moments():
    before = Counters(1, 10, 20, 1.0, None, 2.0, 0, {"AllReduce": Tally(1, 10)})
    after = Counters(3, 30, 60, 1.5, None, 2.5, 1, {"AllReduce": Tally(3, 30), "AllGather": Tally(1, 5)})
    kinds = {"AllReduce": Tally(2, 20), "AllGather": Tally(1, 5)}
    assert after - before == Counters(2, 20, 40, 0.5, None, 0.5, 1, kinds)
