import pytest


@pytest.fixture(scope="session")
def session_cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _no_cache_at_home(session_cache, monkeypatch):
    monkeypatch.setenv("GRACE_CACHE", str(session_cache))
