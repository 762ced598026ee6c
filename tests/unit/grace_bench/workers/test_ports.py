"""Ports for workers that meet."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from grace_bench.workers import ports


def test_a_port_is_free_and_no_connection_gets_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given = tmp_path / "range"
    given.write_text("20000\t60999\n", encoding="ascii")
    monkeypatch.setattr(ports, "_RANGE", given)
    assert all(10_000 <= ports.free_port() < 20_000 for _ in range(20))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        drawn = iter([port - 10_000, *range(100)])  # of the hundred others, too, somebody may have some
        given.write_text("65536 65536", encoding="ascii")
        monkeypatch.setattr(ports.secrets, "randbelow", lambda count: next(drawn))
        assert 10_000 <= ports.free_port() < 10_100


@pytest.mark.parametrize("text", ["1024\t60999", None])
def test_where_no_others_are_known_the_system_gives_one(
    text: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(ports, "_RANGE", tmp_path / "range")
    if text is not None:
        (tmp_path / "range").write_text(text, encoding="ascii")
    assert ports.free_port() > 0
