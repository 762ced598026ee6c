"""TensorFlow's door, in two real processes over gloo, which run all cases in one launch."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from tests.adapters.toolkits.running import explain, find_cases, run_cases
from tests.distributed.processes import QUIET_TENSORFLOW, run_script

SCRIPT = "with_tensorflow.py"
LAST = "killed"


@pytest.fixture(scope="module")
def ran() -> Any:
    if importlib.util.find_spec("tensorflow") is None:  # to import it here would cost seconds
        pytest.skip("pip install 'grace-dl[tensorflow]'")
    return run_cases(SCRIPT, after="tensorflow", **QUIET_TENSORFLOW)


@pytest.mark.parametrize("case", [case for case in find_cases(SCRIPT) if case != LAST])
def test_case(case: str, ran: Any) -> None:
    assert not explain(case, *ran)


def test_when_a_worker_dies_the_other_ends_with_an_error_that_says_so(ran: Any) -> None:
    errors, ((_, output), (status, _)) = ran
    assert errors[LAST] == ["", "did not run"], output[-3000:]
    assert status == 17


def test_without_tensorflow_it_says_what_to_install(tmp_path: Path) -> None:
    code = """
import sys
import grace
assert not {"tensorflow", "keras", "jax", "mpi4py"} & sys.modules.keys()
sys.modules["tensorflow"] = None
try:
    import grace.tensorflow
except grace.errors.ConfigurationError as error:
    assert "pip install 'grace-dl[tensorflow]'" in str(error), error
else:
    raise AssertionError("it was imported")
"""
    (tmp_path / "without.py").write_text(code)
    run_script(tmp_path / "without.py")
