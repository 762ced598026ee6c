import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from grace.predict.links import link
from grace_bench.network import namespaces
from grace_bench.network.interface import read_counters
from grace_bench.network.namespaces import INTERFACE, LinkError, ShapedNetwork, address, why_not
from grace_bench.network.throughput import measure_link
from tests.patience import PATIENCE

REFUSED = why_not(link("1gbit"))
permitted = pytest.mark.skipif(REFUSED is not None, reason=f"no links here: {REFUSED}")


def network_namespaces():
    """All that some process is in."""
    return namespaces_of(Path("/proc").glob("[0-9]*"))


def of_children(parent):
    """The namespaces of a process's children, without this process's own."""
    path = Path(f"/proc/{parent}/task/{parent}/children")
    pids = path.read_text().split() if path.exists() else []
    return namespaces_of(Path("/proc", pid) for pid in pids) - {os.readlink("/proc/self/ns/net")}


def namespaces_of(processes):
    namespaces = set()
    for process in processes:
        with contextlib.suppress(OSError):  # one that has ended is in none
            namespaces.add(os.readlink(process / "ns/net"))
    return namespaces


@permitted
def test_a_link_is_as_fast_as_was_asked_for_and_no_faster():
    row = measure_link(link("100mbit"), 0.6)
    assert row["asked_bits_per_second"] == 100e6
    assert 5e6 < row["measured_bits_per_second"] < 101e6  # a loaded machine may be much slower


@permitted
def test_workers_see_each_other_and_nothing_else():
    with ShapedNetwork(link("1gbit"), 2) as network:
        seen = subprocess.run(
            [*network.enter(0), "cat", "/proc/self/net/dev"], capture_output=True, text=True, check=True
        )
        names = {line.partition(":")[0].strip() for line in seen.stdout.splitlines()[2:]}
        assert names == {"lo", INTERFACE}
        routes = subprocess.run(
            [*network.enter(0), "cat", "/proc/net/route"], capture_output=True, text=True, check=True
        )
        assert "\t00000000\t00000000\t" not in routes.stdout  # no way out
        assert address(0) != address(1)
    assert read_counters(INTERFACE + "x") is None


@permitted
def test_namespaces_go_with_the_network():
    with ShapedNetwork(link("1gbit"), 4, machines=2) as shared:
        first, second, third, fourth = (shared.enter(rank) for rank in range(4))
        assert first == second != third == fourth
    with ShapedNetwork(link("1gbit"), 2):
        own = of_children(os.getpid())
        assert len(own) == 3  # two workers and the switch
    assert not own & network_namespaces()


@permitted
@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM])
def test_namespaces_go_with_a_killed_parent(ending):
    code = (
        "from grace.predict.links import link; from grace_bench.network.namespaces import ShapedNetwork\n"
        "import sys\n"
        "with ShapedNetwork(link('1gbit'), 2): print('up', flush=True); sys.stdin.read()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ}
    )
    assert process.stdout.readline() == b"up\n"
    made = of_children(process.pid)
    assert len(made) == 3
    process.send_signal(ending)
    process.communicate()
    deadline = time.monotonic() + PATIENCE
    while made & network_namespaces() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not made & network_namespaces()


@permitted
def test_a_latency_is_made_or_its_absence_explained():
    refused = why_not(link("1gbit", "1ms"))
    assert refused is None or "netem" in refused


def test_missing_tools_are_named_with_their_package(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(namespaces, "_PATH", "/nowhere")
    with pytest.raises(LinkError, match=r"ip, tc, unshare, nsenter: apt-get install iproute2 util-linux.*--link none"):
        namespaces.require_tools()


def test_where_namespaces_are_not_permitted_the_error_says_so(monkeypatch):
    def refuse(self, command):
        raise LinkError("unshare: Operation not permitted")

    monkeypatch.setattr(ShapedNetwork, "_hold", refuse)
    monkeypatch.setattr(namespaces, "require_tools", lambda: None)
    with (
        pytest.raises(LinkError, match=r"not permitted here .*--link none.*grace bench predict"),
        ShapedNetwork(link("1gbit"), 2),
    ):
        pass


def test_counters_of_an_interface(tmp_path, monkeypatch):
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "dev").write_text("Inter-| x\n face | y\n  eth0: 100 1 0 0 0 0 0 0 200 2 0 0 0 0 0 0\n")
    monkeypatch.setattr("psutil.PROCFS_PATH", str(tmp_path))
    assert read_counters("eth0") == (200, 100)
    assert read_counters("eth1") is None


@permitted
def test_a_link_changes_its_speed_while_it_is_there():
    with ShapedNetwork(link("1gbit"), 2) as network:
        network.change(link("200mbit"))
        shown = subprocess.run(
            [*network.enter(1), "tc", "qdisc", "show", "dev", INTERFACE],
            capture_output=True, text=True, check=True, env=namespaces.environment(),
        )  # fmt: skip
        assert "rate 200Mbit" in shown.stdout
        for other in (link("none"), link("1gbit", "1ms")):
            with pytest.raises(LinkError, match="legal: another speed, with the same latency"):
                network.change(other)
