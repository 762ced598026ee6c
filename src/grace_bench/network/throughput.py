"""Measured speed of a link: two workers, one TCP connection, as iperf does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from grace.predict.links import Link
from grace_bench.network.namespaces import LinkError, ShapedNetwork, address, environment

_SOCKET_LOAD = str(Path(__file__).with_name("socket_load.py"))


def measure_link(link: Link, seconds: float = 2.0) -> dict[str, Any]:
    """Bits of payload per second over this link, beside what was asked for.

    Raises:
        LinkError: the link cannot be made, or nothing arrived.
    """
    with ShapedNetwork(link, 2) as network:
        rate = _pump(network, seconds)
    asked = link.bits_per_second
    assert asked is not None
    return {
        "link": link.name, "asked_bits_per_second": asked, "measured_bits_per_second": rate,
        "relative_error": rate / asked - 1, "seconds": seconds,
    }  # fmt: skip


def _pump(network: ShapedNetwork, seconds: float) -> float:
    python = [sys.executable, "-I", "-S", _SOCKET_LOAD]  # isolated: no site packages, so that it starts at once
    receiver = subprocess.Popen(
        [*network.enter(1), *python, "receive"], stdout=subprocess.PIPE, text=True, env=environment()
    )
    try:
        assert receiver.stdout is not None
        receiver.stdout.readline()  # it listens
        subprocess.run(
            [*network.enter(0), *python, "send", address(1), str(seconds)],
            check=True,
            timeout=seconds + 30,
            env=environment(),
        )
        text, _ = receiver.communicate(timeout=30)
    except (subprocess.SubprocessError, OSError) as error:
        raise LinkError(f"nothing could be sent over the link {network.link}: {error}") from error
    finally:
        receiver.kill()
        receiver.communicate()
    measured = json.loads(text)
    if not measured["seconds"]:
        raise LinkError(f"nothing arrived over the link {network.link}")
    return float(8 * measured["bytes"] / measured["seconds"])
