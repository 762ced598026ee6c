import pytest

from grace.errors import ConfigurationError
from grace.transports.launchers import Place
from grace_bench.runs.config import RunConfig
from grace_bench.workers.external import ExternalWorkers


@pytest.mark.parametrize(
    ("wrong", "message"), [({"workers": 2}, "4 workers"), ({"workers": 4, "link": "1gbit"}, "--link 1gbit")]
)
def test_what_such_workers_cannot_run(wrong, message):
    workers = object.__new__(ExternalWorkers)
    workers.place = Place(0, 4, "here", 1)
    with pytest.raises(ConfigurationError, match=message):
        workers.check([RunConfig("digits", "none", **wrong)])
    workers.check([RunConfig("digits", "none", workers=4)])
