"""Profiles of what Grace does: ``python -m benchmarks.overhead.profiles --device cuda --out profiles``.

For each method ``METHOD.buckets.txt``, where the host's time goes in exchanges of a bucket, by Python's own profiler, and
``METHOD.steps.json.gz``, a trace of three steps of training by torch's, for chrome://tracing or Perfetto. Each file is written
as soon as it is there.
"""

from __future__ import annotations

import argparse
import cProfile
import io
import pstats
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.overhead import buckets, steps
from grace.errors import ConfigurationError
from grace.registry import method, spell, split_methods
from grace_bench.devices import device_of

_WARM, _MOST = 6, 60  # exchanges before the profile; lines of it


def profile_buckets(
    spec: str, device: torch.device, out: Path, count: int = 200, shapes: Sequence[tuple[int, ...]] = buckets.SHAPES
) -> Path:
    """Writes where the host's time goes in so many exchanges of a bucket."""
    ready = buckets.stepper(spec, buckets.gradients(shapes, device))
    for _ in range(_WARM):
        ready()()
    profile = cProfile.Profile()
    for _ in range(count):
        run = ready()
        profile.enable()
        run()
        profile.disable()
    text = io.StringIO()
    table = pstats.Stats(profile, stream=text).strip_dirs()
    for order in ("cumulative", "tottime"):
        table.sort_stats(order).print_stats(_MOST)
    path = out / f"{_file_name(spec)}.buckets.txt"
    path.write_text(f"{count} exchanges of a bucket under {spec}\n{text.getvalue()}")
    return path


def profile_steps(
    spec: str, device: torch.device, out: Path, layers: int = steps.LAYERS, width: int = steps.WIDTH
) -> Path:
    """Writes a trace of three steps of training."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device.type != "cpu":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    path = out / f"{_file_name(spec)}.steps.json.gz"
    with steps.one_worker(device):
        step = steps.stepper(spec, device, layers, width)
        steps.seconds(step, device, _WARM)
        with torch.profiler.profile(activities=activities) as profile:
            steps.seconds(step, device, 3)
        profile.export_chrome_trace(str(path))
    return path


def _file_name(spec: str) -> str:
    return re.sub(r"[^\w.=-]+", "_", spec)


def main() -> None:
    """The program."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overhead.profiles", description=__doc__)
    parser.add_argument("--device", required=True, help="cpu, cuda, cuda:1")
    parser.add_argument("--methods", default="bf16,qsgd:bits=4,topk", help="[%(default)s]")
    parser.add_argument("--out", type=Path, required=True, help="the folder for the files")
    chosen = parser.parse_args()
    try:
        device = device_of(chosen.device)
        methods = [spell(method(spec)) for spec in split_methods(chosen.methods)]
    except ConfigurationError as error:
        parser.error(str(error))
    chosen.out.mkdir(parents=True, exist_ok=True)
    for spec in methods:
        for write in (profile_buckets, profile_steps):
            sys.stdout.write(f"{write(spec, device, chosen.out)}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("interrupted: what was written stays")
