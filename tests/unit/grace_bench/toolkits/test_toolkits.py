import copy
import importlib.util
import json
from pathlib import Path

import pytest

from grace.errors import ConfigurationError, UnknownNameError
from grace_bench.extras import PORTED, TOOLKITS
from grace_bench.runs.config import RunConfig
from grace_bench.runs.plan import SweepPlan, check
from grace_bench.runs.record import file_name
from tests.distributed.processes import fork
from tests.unit.grace_bench.tasks.test_models import COUNTS
from tests.unit.grace_bench.toolkits import cases

SMALL = [name for name in PORTED if name.endswith("_small")]
LARGE = [name for name in PORTED if name not in SMALL]


@pytest.fixture(scope="module", params=TOOLKITS[1:])
def seen(request):
    return look(request.param, SMALL)


@pytest.fixture(scope="module", params=TOOLKITS[1:])
def seen_large(request):
    return look(request.param, LARGE)


def look(toolkit, names):
    if importlib.util.find_spec(toolkit) is None:  # to import it here would cost seconds
        pytest.skip(f"pip install 'grace-dl[{toolkit}]'")
    script = Path(cases.__file__)
    quick = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}  # three models of many layers are compiled, for two steps each
    ((status, output),) = fork(script, toolkit, *names, workers=1, env=(quick,))
    assert status == 0, output[-3000:]
    (answer,) = [line for line in output.splitlines() if line.startswith(cases.MARK)]
    return json.loads(answer.removeprefix(cases.MARK))


def check_counts(name, seen):
    assert tuple(seen["counted"][name]) == COUNTS[name]


def check_training(name, seen):
    for torchs, own in seen["trained"][name]["losses"]:
        assert own == pytest.approx(torchs, rel=1e-5, abs=1e-6)
    # Keras adds Adam's epsilon elsewhere, and its variances are the biased ones
    assert seen["trained"][name]["apart"] < 5e-3


@pytest.mark.parametrize("name", SMALL)
def test_the_models_have_the_surveys_parameters_and_vectors(name, seen):
    check_counts(name, seen)


@pytest.mark.night("another model")
@pytest.mark.parametrize("name", LARGE)
def test_the_large_models_have_them_too(name, seen_large):
    check_counts(name, seen_large)


@pytest.mark.parametrize("name", SMALL)
def test_a_model_with_torchs_weights_trains_as_torchs_does(name, seen):
    check_training(name, seen)


def leave_out_a_parameter(seen, name):
    seen["counted"][name][0] -= 1


def halve_the_step(seen, name):
    """Halves what is learned from one step to the next."""
    first = seen["trained"][name]["losses"][0][1]
    seen["trained"][name]["losses"] = [[a, first + (b - first) / 2] for a, b in seen["trained"][name]["losses"]]


@pytest.mark.parametrize(
    ("defect", "check"), [(leave_out_a_parameter, check_counts), (halve_the_step, check_training)],
    ids=["another model", "another training"],
)  # fmt: skip
def test_a_toolkit_with_a_defect_is_caught(defect, check, seen):
    broken = copy.deepcopy(seen)
    for name in SMALL:
        defect(broken, name)
        with pytest.raises(AssertionError):
            check(name, broken)


def test_a_task_that_a_toolkit_does_not_have_is_refused_and_those_it_has_are_named():
    with pytest.raises(ConfigurationError, match=f"'digits' exists on torch only.*{', '.join(PORTED)}"):
        check([RunConfig("digits", "topk", toolkit="jax")])
    with pytest.raises(ConfigurationError, match="exists on torch only"):
        check([RunConfig("tests.blobs:Blobs", "topk", toolkit="tensorflow")])


def test_a_toolkit_that_is_not_installed_is_refused_before_anything_runs(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"needs jax, which is not installed: pip install 'grace-dl\[jax\]'"):
        check([RunConfig("ncf_small", "topk", toolkit="jax")])
    check([RunConfig("ncf_small", "topk")])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"toolkit": "mxnet"}, "mxnet"),
        ({"toolkit": "jax", "method": "ddp-bf16"}, "is torch's own"),
        ({"toolkit": "jax", "granularity": "model"}, "granularity"),
    ],
)
def test_what_a_toolkit_cannot_do_is_no_run(wrong, message):
    with pytest.raises((ConfigurationError, UnknownNameError), match=message):
        RunConfig(**{"task": "ncf_small", "method": "topk", **wrong})


def test_a_sweep_over_toolkits_takes_of_the_baselines_what_each_has():
    runs = SweepPlan(["ncf_small"], ["none"], toolkits=("torch", "jax")).runs()
    methods = {kit: [run.method for run in runs if run.toolkit == kit] for kit in ("torch", "jax")}
    assert methods["jax"] == ["no-communication", "none"]
    assert len(methods["torch"]) == 5
    assert len({file_name(run) for run in runs}) == len(runs)
