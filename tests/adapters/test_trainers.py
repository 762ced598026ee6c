"""Lightning, transformers and Accelerate, in two real processes over gloo: one launch for each of the first two, Accelerate in
that of transformers, which stands on it.
"""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path
from typing import Any

import pytest

from tests.adapters.toolkits.running import explain, run_cases
from tests.distributed.processes import run_script

SCRIPT = "with_trainers.py"
CASES = {
    "lightning": [
        "trains_logs_and_resumes", "resumes_with_the_same_bits", "another_package_resumes_too",
        "another_strategy_is_refused", "a_second_fit_goes_on", "what_is_skipped_owes_nothing",
    ],
    "transformers": [
        "trains_logs_and_resumes", "resumes_with_the_same_bits", "accelerate_resumes",
        "accelerate_resumes_with_the_same_bits", "what_is_dropped_owes_nothing",
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Any:
    @functools.cache
    def run(library: str) -> Any:
        if importlib.util.find_spec(library) is None:  # to import it here would cost seconds
            pytest.skip(f"pip install 'grace-dl[{library}]'")
        return run_cases(SCRIPT, library, FOLDER=str(tmp_path_factory.mktemp(library)))

    return run


@pytest.mark.parametrize(("library", "case"), [(library, case) for library in CASES for case in CASES[library]])
def test_case(library: str, case: str, ran: Any) -> None:
    assert not explain(case, *ran(library))


@pytest.mark.parametrize("library", CASES)
def test_all_cases_are_listed_and_the_processes_end_well(library: str, ran: Any) -> None:
    errors, done = ran(library)
    assert set(errors) == set(CASES[library])
    assert [status for status, _ in done] == [0, 0]


def test_without_a_library_it_says_what_to_install(tmp_path: Path) -> None:
    code = """
import sys
import grace
assert not {"lightning", "pytorch_lightning", "transformers", "accelerate", "ray"} & sys.modules.keys()
sys.modules.update({"lightning": None, "pytorch_lightning": None, "transformers": None})
sys.meta_path.insert(0, type("Blind", (), {"find_spec": staticmethod(lambda name, *_: None)}))
for library in ("lightning", "transformers"):
    try:
        __import__(f"grace.{library}")
    except grace.errors.ConfigurationError as error:
        assert f"pip install 'grace-dl[{library}]'" in str(error), error
    else:
        raise AssertionError("it was imported")
"""
    (tmp_path / "without.py").write_text(code)
    run_script(tmp_path / "without.py")
