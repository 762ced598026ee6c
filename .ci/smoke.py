"""Run by .ci/run with the environment into which only the wheel is installed: it works, and the wheel is whole and native."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import torch

import grace
from grace.compute import backends, native

installed = Path(grace.__file__).resolve()
assert Path(sys.prefix).resolve() in installed.parents, f"{installed} is not the installed package"

wheel = Path(sys.argv[1])
tags = wheel.stem.split("-")[2:]
assert tags[:2] == ["py3", "none"], f"{wheel.name} must serve every Python"
assert tags[2] != "any", f"{wheel.name} must not serve every machine"
files = zipfile.ZipFile(wheel).namelist()
assert "grace/py.typed" in files, files
assert "grace_bench/report/page/page.html" in files, files
assert any(name.endswith("/licenses/LICENSE") for name in files), files
strangers = {name.partition("/")[0] for name in files if not name.partition("/")[0].startswith("grace")}
assert not strangers, f"the wheel also holds {strangers}"

assert any(name.startswith("grace/libgrace_kernels.") for name in files), "the wheel has no native kernels"
active, why = backends.active()
assert active.startswith("native-"), f"{active}: {why}"
assert Path(sys.prefix).resolve() in Path(native.library()).resolve().parents, native.library()

listing = subprocess.run([Path(sys.executable).parent / "grace", "list", "--json"], check=True, capture_output=True)
assert all(name in json.dumps(json.loads(listing.stdout)) for name in grace.methods())

torch.manual_seed(0)
for name in grace.methods():
    sim = grace.Simulator(name, world=3)
    means = sim.step({"weight": [torch.randn(64, 64) for _ in range(3)], "bias": [torch.randn(64) for _ in range(3)]})
    assert all(bool(mean.isfinite().all()) for mean in means.values()), name
    assert sim.traffic[0].sent > 0, name
