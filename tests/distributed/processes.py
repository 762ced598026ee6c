"""Real worker processes: a pool that stays alive over many tests, and launches of their own for those that must die.

What takes long is to import torch: pools, and scripts that need no interpreter of their own, are forked from a server that has
imported it.
"""

from __future__ import annotations

import atexit
import contextlib
import datetime
import importlib
import multiprocessing
import os
import runpy
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any, NoReturn

from grace_bench.workers.ports import free_port
from tests.distributed.with_horovod import horovodrun
from tests.patience import PATIENCE

_Job = tuple[
    Path, Sequence[str], Mapping[str, str], Path, Path | None
]  # script, arguments, environment, output, folder
OPEN_MPI = "mpirun.openmpi"  # Debian's and Ubuntu's name, whichever MPI "mpirun" is
_BESIDE = Path(sys.executable).with_name("mpiexec")  # of the mpich wheel
QUIET_TENSORFLOW = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
ENVIRONMENT = {
    **os.environ,
    "OMP_NUM_THREADS": "1",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(
    ["torch", "torch._dynamo", "torch.distributed", "grace"]
)  # DDP imports _dynamo, which takes as long as torch


class Workers:
    """Processes that stay alive. ``run`` calls a function of a test module in all of them.

    ``fit``: whether they can run another one.
    """

    def __init__(self, pipes: Sequence[Connection]):
        self.world, self._pipes, self.fit = len(pipes), pipes, True

    def run(self, function: Any, *args: Any) -> list[Any]:
        """The results of ``function(rank, world, *args)`` by rank. Fails with all workers' errors, where there are some; the
        ranks may be apart then, and are not used again.
        """
        try:
            return self._run(function, args)
        except BaseException:
            self.retire()
            raise

    def _run(self, function: Any, args: Sequence[Any]) -> list[Any]:
        for pipe in self._pipes:
            pipe.send((function.__module__, function.__qualname__, args))
        results = []
        for rank, pipe in enumerate(self._pipes):
            if not pipe.poll(PATIENCE):
                raise TimeoutError(f"rank {rank} of {self.world} did not answer within {PATIENCE:.0f} s")
            results.append(pipe.recv())
        failed = [
            f"rank {rank} of {self.world} failed:\n{value}" for rank, (fine, value) in enumerate(results) if not fine
        ]
        assert not failed, "\n".join(failed)
        return [value for _, value in results]

    def retire(self) -> None:
        """Ends it before its time."""
        self.fit = False
        self.close()

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.close()


class Pool(Workers):
    """``world`` processes in one gloo group."""

    kind = "gloo"

    def __init__(self, world: int):
        port = free_port()
        pipes, self._processes = [], []
        for rank in range(world):
            ours, theirs = SERVER.Pipe()
            process = SERVER.Process(target=_serve_over_gloo, args=(rank, world, port, theirs), daemon=True)
            process.start()
            theirs.close()
            pipes.append(ours)
            self._processes.append(process)
        super().__init__(pipes)

    def close(self) -> None:
        super().close()
        for process in self._processes:
            process.join(5)
            if process.is_alive():
                process.kill()


class LaunchedPool(Workers):
    """``world`` processes that a launcher starts, and that call here."""

    kind: str

    def __init__(self, kind: str, world: int, launcher: Sequence[str], python: str = sys.executable):
        self.kind = kind
        key = secrets.token_bytes(16)
        with Listener(("localhost", 0), authkey=key) as listener:
            module = ["-m", "tests.distributed.processes", kind, str(listener.address[1]), key.hex()]
            self._job = subprocess.Popen([*launcher, python, *module], env=ENVIRONMENT)
            pipes = {}
            for _ in range(world):
                pipe = listener.accept()
                pipes[pipe.recv()] = pipe
        if len(pipes) < world:
            self._job.kill()
            self._job.wait()
            raise RuntimeError(f"of {world} workers of {kind} only ranks {sorted(pipes)} have called: not one world")
        super().__init__([pipes[rank] for rank in range(world)])

    def close(self) -> None:
        super().close()
        try:
            status = self._job.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._job.terminate()
            self._job.wait(20)
            raise
        assert status == 0, f"a worker of {self.kind} did not end well"


class MPIPool(LaunchedPool):
    """``world`` processes under mpiexec: two under Open MPI's, where the system has it, so that two MPIs are tested."""

    def __init__(self, world: int):
        over_open_mpi = world == 2 and shutil.which(OPEN_MPI) is not None
        self.library = "Open MPI" if over_open_mpi else "MPICH" if _BESIDE.exists() else ""
        super().__init__("mpi", world, under_open_mpi(world) if over_open_mpi else mpiexec(world, []))


class HorovodPool(LaunchedPool):
    """``world`` processes under horovodrun, of a Python that has Horovod."""

    def __init__(self, world: int, python: Path):
        *launcher, own = horovodrun(world, [], python)
        super().__init__("horovod", world, launcher, own)


def _serve_over_gloo(rank: int, world: int, port: int, pipe: Connection) -> None:
    import torch.distributed as dist

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(world))
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=PATIENCE))
    _serve(rank, world, pipe)


def _serve(rank: int, world: int, pipe: Connection) -> None:
    import torch

    torch.set_num_threads(1)
    while True:
        try:
            module, name, args = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send((True, getattr(importlib.import_module(module), name)(rank, world, *args)))
        except BaseException:
            pipe.send((False, traceback.format_exc()))


def still_run(pids: Sequence[int]) -> list[int]:
    """Processes, of some, that have not ended after :data:`PATIENCE`; they are killed. One that has ended is none, even if
    nobody has asked how.
    """
    deadline = time.monotonic() + PATIENCE
    while (left := [pid for pid in pids if _runs(pid)]) and time.monotonic() < deadline:
        time.sleep(0.1)
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return left


def _runs(pid: int) -> bool:
    import psutil  # which not all environments have

    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    return False


def skip_without_mpi() -> None:
    """Skips the test where mpi4py is not installed."""
    import pytest  # workers need none

    pytest.importorskip("mpi4py", reason="pip install 'grace-dl[mpi]' mpich")


def mpiexec(workers: int, command: Sequence[str]) -> list[str]:
    """The command under mpiexec: that of the ``mpich`` wheel, beside this Python, or the one on the path."""
    program = shutil.which("mpiexec", path=os.pathsep.join([str(_BESIDE.parent), os.environ["PATH"]]))
    assert program is not None, "no mpiexec: pip install mpich"
    return [program, "-n", str(workers), *command]


def under_open_mpi(workers: int) -> list[str]:
    """The command under Open MPI's mpirun, with mpi4py on that library: its wheel takes the ``mpich`` wheel's otherwise."""
    more_than_cores = ["--oversubscribe", "--bind-to", "none"]
    in_containers = ["--mca", "btl_vader_single_copy_mechanism", "none"]  # which may not read each other's memory
    launcher = [OPEN_MPI, *more_than_cores, *in_containers, "-n", str(workers)]
    return ["env", "MPI4PY_LIBMPI=libmpi.so.40", *launcher]


def run_under_mpi(
    script: Path, *args: str, workers: int, env: Mapping[str, str] = {}, seconds: float = PATIENCE
) -> subprocess.CompletedProcess[str]:
    """A script under mpiexec in processes of its own. The test skips where mpi4py is not installed."""
    skip_without_mpi()
    command = mpiexec(workers, [sys.executable, str(script), *args])
    return subprocess.run(
        command, capture_output=True, text=True, timeout=seconds, env={**ENVIRONMENT, **env}, check=False
    )


def torchrun(script: Path, *args: str, workers: int, restarts: int = 0, cwd: Path | None = None) -> tuple[int, str]:
    """A script under torchrun's agent, whose workers are forked from it: exit status of the agent, and what all have said."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "output")
        given = (script, args, workers, restarts, output, cwd)
        agent = SERVER.Process(target=_run_agent, args=given)
        agent.start()
        agent.join(PATIENCE)
        late = agent.is_alive()
        agent.terminate()  # it ends its workers, too
        agent.join()
        text = output.read_text()
    assert not late, f"it had not ended after {PATIENCE:.0f} s:\n{text}"
    return int(agent.exitcode or 0), text


def _run_agent(script: Path, args: Sequence[str], workers: int, restarts: int, output: Path, cwd: Path | None) -> None:
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    agent = LaunchConfig(
        1, 1, workers, run_id=secrets.token_hex(8), rdzv_backend="c10d", rdzv_endpoint="localhost:0", max_restarts=restarts,
        monitor_interval=0.1, start_method="fork",
    )  # fmt: skip
    _redirect(output, cwd)
    elastic_launch(agent, _run_as_main)(script, args)


def _redirect(output: Path, cwd: Path | None) -> None:
    """Sends the output of this process to that file."""
    if cwd is not None:
        os.chdir(cwd)
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)


def _run_as_main(script: Path, args: Sequence[str]) -> None:
    import torch

    torch.set_num_threads(1)
    sys.argv = [str(script), *args]
    sys.path.insert(0, str(script.parent))
    try:
        runpy.run_path(str(script), run_name="__main__")
    finally:
        atexit._run_exitfuncs()  # which such a process skips


def launch(
    script: Path,
    *args: str,
    workers: int,
    env: tuple[dict[str, str], ...] = (),
    seconds: float = PATIENCE,
) -> list[tuple[int, str]]:
    """A script in processes of its own under torchrun's variables: exit status and output (of both kinds) of each rank.

    ``env``: what each rank's environment has beside the usual.
    """
    port = str(free_port())
    processes = []
    for rank in range(workers):
        launcher = {"RANK": str(rank), "WORLD_SIZE": str(workers), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **launcher, **(env[rank] if env else {})}
        command = [sys.executable, str(script), *args]
        processes.append(
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
        )
    outputs = [process.communicate(timeout=seconds)[0] for process in processes]
    return [(process.returncode, output) for process, output in zip(processes, outputs, strict=True)]


def fork(
    script: Path,
    *args: str,
    workers: int,
    env: tuple[dict[str, str], ...] = (),
    seconds: float = PATIENCE,
    cwd: Path | None = None,
    torchrun: bool = True,
    after: str | None = None,
) -> list[tuple[int, str]]:
    """As :func:`launch`, without new interpreters: for scripts to which these make no difference.

    What Python and torch read when they start (PYTHONPATH, OMP_NUM_THREADS, ...) has no effect here. ``torchrun``: whether
    its variables are set. ``after``: a module that takes long to import; one process does that, in rank 0's environment, and
    the ranks are forked from it.
    """
    meeting = {"WORLD_SIZE": str(workers), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, str(rank)) for rank in range(workers)]
        jobs = []
        for rank, file in enumerate(files):
            file.touch()
            place = {**meeting, "RANK": str(rank)} if torchrun else {}
            jobs.append((script, args, {**os.environ, **place, **(env[rank] if env else {})}, file, cwd))
        statuses = _run_each(jobs, seconds) if after is None else _run_after(after, jobs, seconds)
        outputs = [file.read_text() for file in files]
    late = [rank for rank, status in enumerate(statuses) if status is None]
    assert not late, f"ranks {late} had not ended after {seconds:.0f} s:\n" + "\n".join(outputs)
    return [(status or 0, output) for status, output in zip(statuses, outputs, strict=True)]


def _run_each(jobs: Sequence[_Job], seconds: float) -> list[int | None]:
    """Status of each at its end; None: it has not ended."""
    processes = [SERVER.Process(target=_run_script, args=job, daemon=True) for job in jobs]
    for process in processes:
        process.start()
    deadline = time.monotonic() + seconds
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
    statuses = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
        process.join()
    return statuses


def _run_after(module: str, jobs: Sequence[_Job], seconds: float) -> list[int | None]:
    """As :func:`_run_each`; None for all if one had not ended."""
    pipe, theirs = SERVER.Pipe()
    parent = SERVER.Process(target=_import_and_fork, args=(module, jobs, theirs), daemon=True)
    parent.start()
    theirs.close()
    try:
        statuses: list[int | None] = pipe.recv() if pipe.poll(seconds) else [None] * len(jobs)
        return statuses
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(parent.pid or 0, signal.SIGKILL)
        parent.join()


def _import_and_fork(module: str, jobs: Sequence[_Job], pipe: Connection) -> None:
    os.setpgid(0, 0)  # to be ended together
    os.environ.update(jobs[0][2])
    importlib.import_module(module)
    ranks = [os.fork() or _run_to_the_end(job) for job in jobs]
    pipe.send([os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1]) for rank in ranks])


def _run_to_the_end(job: _Job) -> NoReturn:
    status = 1
    try:
        _run_script(*job)
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def run_script(path: Path, *args: str, workers: int = 1, seconds: float = PATIENCE) -> str:
    """Output of workers that run a script as :func:`fork` does; fails if one of them does."""
    ended = fork(path, *args, workers=workers, seconds=seconds, cwd=path.parent)
    text = "\n".join(output for _, output in ended)
    assert [status for status, _ in ended] == [0] * workers, text
    return text


def _run_script(
    script: Path, args: Sequence[str], environment: Mapping[str, str], output: Path, cwd: Path | None
) -> None:
    os.environ.clear()
    os.environ.update(environment)
    _redirect(output, cwd)
    _run_as_main(script, args)


def _call_home(kind: str, port: str, key: str) -> None:
    """A rank of a launched pool."""
    who: Any
    if kind == "mpi":
        from mpi4py import MPI

        who = MPI.COMM_WORLD
        rank, world = who.rank, who.size
    else:
        import horovod.torch as hvd

        hvd.init()
        rank, world = hvd.rank(), hvd.size()
    with Client(("localhost", int(port)), authkey=bytes.fromhex(key)) as connection:
        connection.send(rank)
        _serve(rank, world, connection)


if __name__ == "__main__":
    _call_home(*sys.argv[1:])
