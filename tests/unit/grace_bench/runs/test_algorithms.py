"""Algorithms in the place of a method: how a run reads them, and what counts as one of their steps."""

import pytest
import torch

from grace.errors import ConfigurationError, UnknownNameError
from grace_bench.runs.algorithms import find_algorithm
from grace_bench.runs.config import RunConfig
from grace_bench.runs.measure import by_period, steady_from
from grace_bench.runs.plan import add_baseline


def test_a_preset_is_an_algorithm_and_a_method_is_none():
    algorithm = find_algorithm("diloco:every=32")
    assert algorithm is not None
    assert (algorithm.family, algorithm.period) == ("outer loop", 32)
    assert find_algorithm("topk:ratio=0.01") is find_algorithm("ddp-fp32") is None
    kinds = [RunConfig("digits", method).kind for method in ("diloco:every=32", "topk", "ddp-fp32")]
    assert kinds == ["algorithm", "method", "baseline"]
    assert add_baseline(["diloco:every=32", "none", "diloco:every=32"]) == ["none", "diloco:every=32"]


def test_what_cannot_be_is_refused_before_anything_starts():
    with pytest.raises(UnknownNameError, match="knob of diloco"):
        RunConfig("digits", "diloco:evry=32")
    with pytest.raises(UnknownNameError, match="'diloco'"):
        RunConfig("digits", "diloc:every=32")
    with pytest.raises(ConfigurationError, match="no multiple of fragments=3"):
        RunConfig("digits", "streaming_diloco:every=32,fragments=3")
    with pytest.raises(ConfigurationError, match="trains replicas of a torch model"):
        RunConfig("digits", "diloco:every=32", toolkit="jax")


def test_torchs_post_local_sgd_is_read_like_a_preset():
    algorithm = find_algorithm("torch_post_local_sgd:every=8,warmup_steps=100")
    assert algorithm is not None
    assert (algorithm.family, algorithm.period) == ("torch", 8)
    assert RunConfig("digits", "torch_post_local_sgd:every=8").kind == "algorithm"
    with pytest.raises(ConfigurationError, match="has no every of its own"):
        find_algorithm("torch_post_local_sgd:warmup_steps=3")
    with pytest.raises(UnknownNameError, match="knob of torch_post_local_sgd"):
        find_algorithm("torch_post_local_sgd:every=8,lr=1")


@pytest.mark.parametrize(
    ("steps", "period", "first"), [(1000, 32, 1000 - 128), (1000, 500, 500), (100, 500, 0), (96, 16, 48), (90, 16, 42)]
)
def test_the_steady_state_has_whole_periods(steps: int, period: int, first: int):
    assert steady_from(steps, period) == first


def test_a_step_takes_what_its_period_takes():
    assert by_period([1, 1, 4, 1, 1, 7], 3) == [2, 3]
    assert by_period([1, 1, 4], 4) == [2]
    assert by_period([1, 5], 1) == [1, 5]


def test_an_optimizer_takes_what_the_task_says_of_its_own_kind():
    algorithm = find_algorithm("onebitadam:freeze_step=5,eps=0.5")
    assert algorithm is not None
    assert (algorithm.family, algorithm.period, algorithm.lr) == ("optimizer", 1, None)
    layer = torch.nn.Linear(64, 32)
    has = torch.optim.AdamW(layer.parameters(), lr=0.01, weight_decay=0.3)
    run = algorithm.connect(layer, 0, None)
    optimizer = run.join(has)
    assert [optimizer.param_groups[0][knob] for knob in ("lr", "weight_decay", "eps")] == [0.01, 0.3, 0.5]
    run.close()


def test_a_learning_rate_of_another_kind_of_optimizer_is_refused():
    layer = torch.nn.Linear(64, 32)
    sgd = torch.optim.SGD(layer.parameters(), lr=0.1)
    for text, lr, right in (("onebitadam", None, None), ("onebitadam:lr=0.02", None, 0.02), ("onebitadam", 0.03, 0.03)):
        algorithm = find_algorithm(text)
        assert algorithm is not None
        run = algorithm.connect(layer, 0, lr)
        if right is None:
            with pytest.raises(ConfigurationError, match=r"learning rate 0\.1 does not suit"):
                run.join(sgd)
        else:
            assert run.join(sgd).param_groups[0]["lr"] == right
            run.close()


def test_gossip_is_read_and_refused_like_the_others():
    algorithm = find_algorithm("choco:method=(topk:ratio=0.1),gamma=0.3")
    assert algorithm is not None
    assert (algorithm.family, algorithm.period) == ("gossip", 1)
    with pytest.raises(ConfigurationError, match="choco needs a compressor"):
        RunConfig("digits", "choco")
