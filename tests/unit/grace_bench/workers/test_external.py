import pytest

from grace.errors import ConfigurationError
from grace.transports.launchers import Place
from grace_bench.runs.config import RunConfig
from grace_bench.workers.external import Company


@pytest.mark.parametrize(
    ("wrong", "said"), [({"workers": 2}, "4 workers"), ({"workers": 4, "link": "1gbit"}, "--link 1gbit")]
)
def test_what_such_workers_cannot_run(wrong, said):
    company = object.__new__(Company)
    company.place = Place(0, 4, "here", 1)
    with pytest.raises(ConfigurationError, match=said):
        company.check([RunConfig("digits", "none", **wrong)])
    company.check([RunConfig("digits", "none", workers=4)])
