"""Workers that fail, die or come back: the others hear of it, nothing hangs, and a good run ends well."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from tests.distributed.processes import fork, run_script, torchrun
from tests.patience import PATIENCE

SCRIPT = """
import os, sys, time, datetime
from pathlib import Path
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
import grace
from grace import init_process_group
from tests.patience import PATIENCE

class Faulty(grace.TopK):
    def encode_(self, rows, rng, memory=None, rest=None):
        if rng.rank == 1 and rng.step == 2:
            raise KeyError("an error of the codec")
        return grace.TopK.encode_(self, rows, rng, memory, rest)

torch.set_num_threads(1)
init_process_group(timeout=datetime.timedelta(seconds=PATIENCE))
rank, attempt = dist.get_rank(), int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))
torch.manual_seed(0)
net = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 40)), bucket_cap_mb=0.01)
mode = sys.argv[1]
method = grace.ErrorFeedback(grace.Allgather(Faulty())) if mode == "raise" else "topk"
handle = grace.attach(net, method)
start = time.monotonic()
try:
    for step in range(6):
        if step == 2 and rank == 1 and (mode == "die" or mode == "restart" and attempt == 0):
            os._exit(17)
        net(torch.randn(2, 64)).sum().backward()
except BaseException as error:
    sys.stdout.write(f"rank {rank} step {step} after {time.monotonic() - start:.1f} s: {type(error).__name__}: {error}\\n")
    sys.stdout.flush()
    try:
        net(torch.randn(2, 64)).sum().backward()
    except BaseException as again:
        sys.stdout.write(f"rank {rank} again: {type(again).__name__}\\n")
    sys.stdout.flush()
    if mode == "raise":  # rank 1 stays until the others have heard: the end of its process would tell them as well
        Path(f"{rank}.heard").touch()
        while rank == 1 and len(list(Path().glob("*.heard"))) < dist.get_world_size():
            if time.monotonic() - start > PATIENCE / 2:
                sys.exit(6)
            time.sleep(0.01)
    sys.exit(5)
sys.stdout.write(f"rank {rank} attempt {attempt} done: {handle.stats.steps} steps\\n")
dist.destroy_process_group()
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "job.py"
    path.write_text(textwrap.dedent(SCRIPT))
    return path


def test_an_error_in_the_codec_reaches_its_user_as_itself_and_the_others_as_a_lost_worker(script: Path) -> None:
    ended = fork(script, "raise", workers=4, cwd=script.parent)  # rank 3 waits for others that wait for rank 1
    assert [status for status, _ in ended] == [5] * 4, "6: rank 1 waited in vain for the others to hear"
    outputs = [output for _, output in ended]
    assert "rank 1 step 2" in outputs[1]
    assert "KeyError: 'an error of the codec'" in outputs[1]
    assert "rank 1 again: KeyError" in outputs[1]
    for rank in (0, 2, 3):
        heard = rf"rank {rank} step 2 after [0-9.]+ s: TransportError: rank {rank} of 4.*A worker has died"
        assert re.search(heard, outputs[rank]), outputs
        assert f"rank {rank} again: TransportError" in outputs[rank]


def test_when_a_worker_dies_the_others_end_with_an_error_that_says_so(script: Path) -> None:
    ended = fork(script, "die", workers=3)
    assert [status for status, _ in ended] == [5, 17, 5]
    for rank in (0, 2):
        heard = r"step \d after ([0-9.]+) s: TransportError: .*(?:died|closed|reset)"
        match = re.search(heard, ended[rank][1])
        assert match, ended
        assert float(match[1]) < PATIENCE / 2, "it heard by a deadline only"


def test_a_restarted_job_finds_its_peers(script: Path) -> None:
    status, output = torchrun(script, "restart", workers=2, restarts=1)
    assert status == 0, output
    assert sorted(re.findall(r"rank (\d) attempt 1 done: 6 steps", output)) == ["0", "1"]


def test_the_guard_against_the_abort_at_exit_is_registered_once(tmp_path: Path) -> None:
    code = (
        "import atexit, grace.transports.torch_distributed as t\n"
        "before = atexit._ncallbacks(); t.guard_exit(); t.guard_exit(); assert atexit._ncallbacks() == before + 1"
    )
    (tmp_path / "guard.py").write_text(code)
    run_script(tmp_path / "guard.py")
