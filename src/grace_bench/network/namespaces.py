"""A network namespace for each worker, with a shaped virtual link to a switch in one more namespace.

Nothing here has a name on the machine. A namespace lives as long as the process that holds it open; that process reads
from a pipe, and ends when this process closes its end or is gone, killed or not. After the last process in it the kernel
removes a namespace and its links at some time: no later run can meet what an earlier one left. The machine's own network
is not touched; addresses come from 198.18.0.0/15, the range reserved for benchmarks.

Root makes namespaces directly; other users inside a user namespace, where the system permits that.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import shutil
import subprocess
from collections.abc import Sequence
from types import TracebackType

from grace.errors import GraceError
from grace.predict.links import Link

INTERFACE = "eth0"  # of a worker, in its namespace
PORT = 29400  # of the workers' store: in a namespace of its own, every port is free
_NETWORK = ipaddress.ip_network("198.18.0.0/15")
_TOOLS = ("ip", "tc", "unshare", "nsenter")
_QUEUE = "50ms"  # longest that a packet waits at a full link
_BURST_SECONDS = 2e-3  # what a link that was idle may send at once, in seconds at its rate
_LEAST_BURST = 16 * 1024  # bytes
_SECONDS = 20.0  # how long one command may take
_PATH = os.pathsep.join(("/usr/sbin", "/sbin", "/usr/local/sbin"))  # not in everybody's PATH
_REMEDY = "Run without links (--link none) and let the link model predict the rest: grace bench predict."


class LinkError(GraceError, RuntimeError):
    """A link that cannot be made on this machine."""


def address(rank: int) -> str:
    """The address of a worker; of a machine, where several share one."""
    return str(_NETWORK[256 + rank])


class ShapedNetwork:
    """Context manager: the namespaces and links of ``workers`` workers. Those of one of ``machines`` share both; None: none
    do.

    Raises:
        LinkError: a tool is missing, the system does not permit it, or the kernel lacks a module; the message says which,
            and what to do instead. Nothing is left behind then.
    """

    def __init__(self, link: Link, workers: int, machines: int | None = None):
        self.link, self.workers, self.machines = link, workers, machines or workers
        self._holders: list[subprocess.Popen[bytes]] = []
        self._user: int | None = None  # the process whose user namespace all others are in

    def __enter__(self) -> ShapedNetwork:
        require_tools()
        try:
            self._make()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def enter(self, rank: int) -> list[str]:
        """The command that runs another one in the namespace of this worker; its arguments follow."""
        return self._into(self._holder(rank).pid)

    def change(self, link: Link) -> None:
        """Gives all links another speed, while they are in use; what waits in a queue stays there.

        Raises:
            LinkError: it cannot be; the links may differ then.
        """
        if not link.shaped or link.latency != self.link.latency:
            raise LinkError(f"links of {self.link} cannot become {link}; legal: another speed, with the same latency")
        self.link, shape = link, self._shape(link)
        hub, *machines = (holder.pid for holder in self._holders)
        self._batch(hub, "tc", [f"qdisc change dev port{rank} root {shape}" for rank in range(self.machines)])
        for pid in machines:
            self._batch(pid, "tc", [f"qdisc change dev {INTERFACE} root handle 1: {shape}"])

    def close(self) -> None:
        """Lets the namespaces go; what still runs in one keeps it until it ends."""
        for holder in self._holders:
            assert holder.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                holder.stdin.close()
        for holder in self._holders:
            try:
                holder.wait(_SECONDS)
            except subprocess.TimeoutExpired:
                holder.kill()
                holder.wait()
            assert holder.stdout is not None
            holder.stdout.close()
        self._holders = []

    def _holder(self, rank: int) -> subprocess.Popen[bytes]:
        return self._holders[1 + rank * self.machines // self.workers]

    # ---- how --------------------------------------------------------------------------------------------------------
    def _make(self) -> None:
        self._hub()
        for _ in range(self.machines):
            self._hold([*self._into(self._holders[0].pid), "unshare", "--net"])
        hub, *machines = (holder.pid for holder in self._holders)
        shape = self._shape(self.link)
        lines = ["link set lo up", "link add name br0 type bridge", "link set br0 up"]
        for rank, pid in enumerate(machines):
            lines.append(f"link add name port{rank} type veth peer name {INTERFACE} netns {pid}")
            lines.append(f"link set port{rank} master br0 up")
        self._batch(hub, "ip", lines)
        self._batch(hub, "tc", [f"qdisc add dev port{rank} root {shape}" for rank in range(self.machines)])
        for rank, pid in enumerate(machines):
            own = f"{address(rank)}/{_NETWORK.prefixlen}"
            self._batch(pid, "ip", ["link set lo up", f"addr add {own} dev {INTERFACE}", f"link set {INTERFACE} up"])
            self._batch(pid, "tc", [f"qdisc add dev {INTERFACE} root handle 1: {shape}"])
            if self.link.latency:
                self._delay(pid)

    @staticmethod
    def _shape(link: Link) -> str:
        rate = link.bits_per_second
        assert rate is not None
        burst = max(_LEAST_BURST, int(rate / 8 * _BURST_SECONDS))
        return f"tbf rate {rate:.0f}bit burst {burst} latency {_QUEUE}"

    def _delay(self, pid: int) -> None:
        """Latency, on the sender's side only: once on the way from one worker to another."""
        delay = f"qdisc add dev {INTERFACE} parent 1:1 netem limit 100000 delay {1e6 * self.link.latency:.0f}us"
        if message := self._try(pid, "tc", [delay]):
            raise LinkError(
                f"this kernel cannot add latency: it has no netem queue (tc says: {message}). "
                "Leave --latency out, or load the module where there is one: modprobe sch_netem"
            )

    def _hub(self) -> None:
        """The first namespace: as root, or else in a user namespace."""
        failed = []
        for options in (["--net"], ["--user", "--map-root-user", "--net"]):
            try:
                self._hold(["unshare", *options])
            except LinkError as error:
                failed.append(str(error))
            else:
                self._user = self._holders[0].pid if "--user" in options else None
                return
        raise LinkError(
            f"network namespaces are not permitted here ({'; '.join(failed)}). They need root, or user namespaces "
            f"(sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone). {_REMEDY}"
        )

    def _hold(self, command: Sequence[str]) -> None:
        """Starts a process in new namespaces that lasts until its input ends."""
        holder = subprocess.Popen(
            [*command, "sh", "-c", "echo; exec cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, env=environment(), start_new_session=True,  # Ctrl-C is for this process alone
        )  # fmt: skip
        assert holder.stdin is not None
        assert holder.stdout is not None
        assert holder.stderr is not None
        ready = holder.stdout.readline()
        if not ready:
            holder.stdin.close()
            text = holder.stderr.read().decode(errors="replace").strip()
            holder.wait()
            holder.stdout.close()
            holder.stderr.close()
            raise LinkError(text or f"{command[0]} ended with status {holder.returncode}")
        holder.stderr.close()
        self._holders.append(holder)

    def _into(self, pid: int) -> list[str]:
        user = [] if self._user is None else [f"--user=/proc/{self._user}/ns/user", "--preserve-credentials"]
        return ["nsenter", *user, f"--net=/proc/{pid}/ns/net", "--"]

    def _batch(self, pid: int, tool: str, lines: Sequence[str]) -> None:
        """Runs lines of ``ip`` or ``tc`` in a namespace."""
        if message := self._try(pid, tool, lines):
            raise LinkError(f"the link {self.link} cannot be made: {tool} says: {message}. {_REMEDY}")

    def _try(self, pid: int, tool: str, lines: Sequence[str]) -> str:
        """Runs the tool; returns its message if it fails, else an empty text."""
        done = subprocess.run(
            [*self._into(pid), tool, "-batch", "-"], input="\n".join(lines), text=True, capture_output=True,
            timeout=_SECONDS, env=environment(), check=False,
        )  # fmt: skip
        if done.returncode == 0:
            return ""
        return " ".join(done.stderr.split()) or f"status {done.returncode}"


def environment() -> dict[str, str]:
    """The environment for a tool, with the administrators' folders in its path."""
    return {**os.environ, "PATH": f"{os.environ.get('PATH', os.defpath)}{os.pathsep}{_PATH}"}


def require_tools() -> None:
    """Checks that the tools are installed.

    Raises:
        LinkError: they are not; the message says which package has them.
    """
    if os.name != "posix" or not os.path.exists("/proc/self/ns/net"):
        raise LinkError(f"links need Linux with network namespaces. {_REMEDY}")
    missing = [tool for tool in _TOOLS if shutil.which(tool, path=environment()["PATH"]) is None]
    if missing:
        packages = [
            name for name, tools in (("iproute2", _TOOLS[:2]), ("util-linux", _TOOLS[2:])) if {*tools} & {*missing}
        ]
        raise LinkError(
            f"links need {', '.join(missing)}: apt-get install {' '.join(packages)} (or your system's packages of that "
            f"name). {_REMEDY}"
        )


def why_not(link: Link) -> str | None:
    """The reason why this machine cannot make such a link; None if it can."""
    try:
        with ShapedNetwork(link, 1):
            return None
    except LinkError as error:
        return str(error)
