"""Keras's door on its three backends, each in two real processes over gloo, which run all cases in one launch."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path
from typing import Any

import pytest

from tests.adapters.toolkits.running import explain, find_cases, run_cases
from tests.distributed.processes import run_script

SCRIPT = "with_keras.py"
# On the other two its door gives the simulator's bits (test_same_answer.py).
OTHER = pytest.mark.night("raw gradient", "last tensor skipped", "means of the step before")
BACKENDS = ("torch", pytest.param("tensorflow", marks=OTHER), pytest.param("jax", marks=OTHER))
LAST = "killed"


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Any:
    @functools.cache
    def run(backend: str) -> Any:
        for package in ("keras", backend):
            if importlib.util.find_spec(package) is None:  # to import it here would cost seconds
                pytest.skip(f"pip install 'grace-dl[{package}]'")
        folder = tmp_path_factory.mktemp(backend)
        return (*run_cases(SCRIPT, KERAS_BACKEND=backend, FOLDER=str(folder)), folder)

    return run


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", [case for case in find_cases(SCRIPT) if case != LAST])
def test_case(case: str, backend: str, ran: Any) -> None:
    errors, done, _ = ran(backend)
    assert not explain(case, errors, done)


@pytest.mark.parametrize("backend", BACKENDS)
def test_when_a_worker_dies_the_other_ends_with_an_error_that_says_so(backend: str, ran: Any) -> None:
    errors, ((_, output), (status, _)), _ = ran(backend)
    assert errors[LAST] == ["", "did not run"], output[-3000:]
    assert status == -9


def test_the_saved_model_loads_in_a_process_without_grace(ran: Any, tmp_path: Path) -> None:
    *_, folder = ran("torch")
    code = f"""
import sys
sys.modules["grace"] = sys.modules["tensorflow"] = sys.modules["jax"] = None
import keras
model = keras.models.load_model({str(Path(folder) / "model.keras")!r})
assert type(model.optimizer).__name__ == "SGD" and model.count_params() > 0
assert "grace.keras" not in sys.modules
"""
    run_python(code, tmp_path)


def test_without_keras_it_says_what_to_install(tmp_path: Path) -> None:
    code = """
import sys
import grace
assert not {"tensorflow", "keras", "jax", "mpi4py"} & sys.modules.keys()
sys.modules["keras"] = None
try:
    import grace.keras
except grace.errors.ConfigurationError as error:
    assert "pip install 'grace-dl[keras]'" in str(error), error
else:
    raise AssertionError("it was imported")
"""
    run_python(code, tmp_path)


def run_python(code: str, folder: Path) -> None:
    """In a process of its own, where torch is Keras's backend."""
    begin = 'import os, warnings; os.environ["KERAS_BACKEND"] = "torch"; warnings.simplefilter("ignore")\n'
    (folder / "script.py").write_text(begin + code)
    run_script(folder / "script.py")
