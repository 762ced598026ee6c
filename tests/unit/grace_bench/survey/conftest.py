import pytest

from grace_bench.survey.plan import read_plan
from grace_bench.survey.run import run_all
from tests.unit.grace_bench.survey.tiny import plan


@pytest.fixture(scope="session")
def whole(tmp_path_factory):
    """The folder of all runs, and their rows."""
    out = tmp_path_factory.mktemp("whole")
    return out, run_all(read_plan(plan(out)), out, lambda done: None)
