"""Runs the cases of a toolkit in two real processes: they start once, since toolkits take long to start, and run all cases in
turn.
"""

from __future__ import annotations

import ast
import contextlib
import datetime
import json
import os
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.distributed.processes import fork
from tests.patience import PATIENCE

_MARK = "CASE "

Case = Callable[[int, int], None]


@contextlib.contextmanager
def raises(kind: Any, *texts: str) -> Iterator[None]:
    """Without pytest, which workers do not import; the texts are in the error's."""
    seen: BaseException | None = None
    try:
        yield
    except kind as error:
        seen = error
    assert seen is not None, f"nothing was raised; expected {kind}"
    for text in texts:
        assert text in str(seen), f"{text!r} is not in: {seen}"


def serve(cases: Mapping[str, Case]) -> None:
    """In a worker: runs the cases, and tells how each went. A case is given rank and world."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=PATIENCE))
    for name, case in cases.items():
        start = time.monotonic()
        error = ""
        try:
            case(dist.get_rank(), dist.get_world_size())
        except BaseException:
            error = traceback.format_exc()
        told = {"case": name, "error": error, "seconds": round(time.monotonic() - start, 2)}
        os.write(1, f"\n{_MARK}{json.dumps(told)}\n".encode())  # past all buffers: a case may end the process


def run_cases(
    script: str, *args: str, workers: int = 2, after: str | None = None, **env: str
) -> tuple[dict[str, list[str]], list[tuple[int, str]]]:
    """Starts the script of a toolkit: by case, each rank's error, empty if there was none; and how the processes ended.

    ``after``: see :func:`tests.distributed.processes.fork`.
    """
    path = Path(__file__).parent / script
    done = fork(path, *args, workers=workers, env=(env,) * workers, after=after)
    errors: dict[str, list[str]] = {}
    for rank, (_, output) in enumerate(done):
        for line in output.splitlines():
            if line.startswith(_MARK):
                told = json.loads(line.removeprefix(_MARK))
                errors.setdefault(told["case"], ["did not run"] * workers)[rank] = told["error"]
    return errors, done


def find_cases(script: str) -> list[str]:
    """The names of a script's cases, without importing the toolkit: its functions of rank and world."""
    tree = ast.parse((Path(__file__).parent / script).read_text(encoding="utf-8"))
    return [
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and [arg.arg for arg in node.args.args] == ["rank", "world"]
    ]


def explain(case: str, errors: Mapping[str, list[str]], done: list[tuple[int, str]]) -> str:
    """Errors of a case; empty if there are none."""
    texts = errors.get(case)
    if texts is None:
        return "\n".join(
            f"rank {rank}: status {status}\n{output[-3000:]}" for rank, (status, output) in enumerate(done)
        )
    return "\n".join(f"rank {rank}: {error}" for rank, error in enumerate(texts) if error)
