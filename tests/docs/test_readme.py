"""Examples of README.md do what it shows."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

import grace
from grace.registry import split_methods
from tests.distributed.processes import run_script
from tests.docs.pages import ROOT, blocks, run, torchrun

README = ROOT / "README.md"


MOST = 12_000  # characters: a page that one reads


def parts() -> tuple[str, str, str, list[str]]:
    """The lines for a script, the training script, the module with a new method, and the other blocks."""
    code = [text for _, text in blocks(README, "python")]
    named = []
    for first in ("# in a training script\n", "# train.py\n", "# blockmax.py\n"):
        (text,) = [text for text in code if text.startswith(first)]
        named.append(text)
    lines, train, module = named
    return lines, train, module, [text for text in code if text not in named]


BEFORE = """
import torch, grace
torch.distributed.init_process_group("gloo")
net = torch.nn.Linear(64, 64)

def train(model, optimizer):
    for step in range(10):
        optimizer.zero_grad()
        model(torch.randn(8, 64)).square().mean().backward()
        optimizer.step()

"""


def test_the_readme_is_short_and_begins_with_auto() -> None:
    text = README.read_text(encoding="utf-8")
    assert len(text) <= MOST
    assert 'grace.attach(model, "auto", optimizer=optimizer)' in blocks(README, "python")[0][1]


def test_the_lines_for_a_training_script_explain_themselves(tmp_path: Path) -> None:
    (tmp_path / "lines.py").write_text(BEFORE + parts()[0])
    out = run_script(tmp_path / "lines.py", workers=2)
    assert "auto" in out
    assert "fp32" in out


def test_the_training_script_trains_on_two_workers(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(parts()[1])
    pattern = r"{}: loss (\d\.\d\d), (\d+\.\d) kB a step"
    compressed = re.search(pattern.format("efsignsgd"), torchrun(tmp_path / "train.py"))
    plain = re.search(pattern.format("none"), run_script(tmp_path / "train.py", "none", workers=2))
    assert compressed
    assert plain
    assert float(compressed[1]) < 2.0  # ln 10 = 2.3 is what guessing gives
    assert float(compressed[2]) < float(plain[2]) / 10


def test_the_other_blocks_run_by_themselves(tmp_path: Path) -> None:
    _, _, module, others = parts()
    (tmp_path / "blockmax.py").write_text(module)
    for index, code in enumerate(others):  # in one process of their own: they register a method
        (tmp_path / f"block{index}.py").write_text(code)
    names = [f"block{index}" for index in range(len(others))]
    imports = "import warnings, grace\nwarnings.simplefilter('error')\nimport blockmax\n"
    (tmp_path / "all.py").write_text(imports + "\n".join(f"import {name}" for name in names))
    run_script(tmp_path / "all.py")


LAWS = """
import copy, torch, grace, blockmax
from grace.run import simulate

INPUTS = [torch.zeros(70), torch.ones(1), torch.empty(0), -torch.rand(64), torch.full((65,), 3.0),
          torch.randn(1000).half(), torch.randn(1000).bfloat16(), torch.randn(33, 31).double().T, torch.randn(129) * 1e30,
          torch.randn(129) * 1e-42]
for world in (1, 2, 3, 5):
    for communicator in ("allgather", "broadcast", "scatterreduce", "parameterserver"):
        method = grace.method("blockmax:memory=none,block=16", communicator=communicator)
        for x in INPUTS:
            xs = [x * (r + 1) - x.flip(0) * r for r in range(world)]
            peers = [grace.Peer(r, world).lending(keep_rest=True) for r in range(world)]
            outs = simulate([method.exchange(x.clone(), None, peer) for x, peer in zip(xs, peers)])
            sent = sum(x.double() - out.rest.double() for x, out in zip(xs, outs)) / world
            mean = outs[0].mean
            assert all(torch.equal(out.mean, mean) for out in outs), "agreement"
            tight = {torch.float16: 1e-3, torch.bfloat16: 1e-2}.get(x.dtype, 1e-6)
            largest = float(sent.abs().max()) if x.numel() else 0.0
            torch.testing.assert_close(sent, mean.double(), rtol=tight, atol=tight * largest + 1e-44)
for n in (1, 15, 64, 1000):
    x = torch.randn(1, n)
    made, rest = blockmax.BlockMax(block=16), x.clone()
    wire = made.compress_(rest, grace.Peer(0, 1).private("blockmax"), True)
    assert wire.shape[1] == made.facts(n).payload
    assert rest.square().sum() <= (1 - made.facts(n).contraction) * x.square().sum() * (1 + 1e-6)
    bad = wire.clone()
    bad[0, -1] = 255
    for broken in (wire[:, :-1], *([bad] if n == 15 else [])):
        try:
            made.decompress_add_(broken, torch.zeros(1, n), 1.0, grace.Peer(0, 1).private("blockmax"))
        except grace.errors.PayloadError:
            pass
        else:
            raise AssertionError("a broken payload was taken")
sims = [grace.Simulator(grace.Policy([("*", "blockmax:block=8")]), world=3) for _ in range(2)]
for sim in sims:
    torch.manual_seed(1)
    total, applied = torch.zeros(99), torch.zeros(99)
    for step in range(6):
        gradients = [torch.randn(99) for _ in range(3)]
        total += sum(gradients) / 3
        applied += sim.step({"w": gradients})["w"]
        if sim is sims[1]:
            sim.load_state_dict(copy.deepcopy(sim.state_dict()), {"w": gradients[0]})
    late = sum(worker["states"]["w"][0] for worker in sim.state_dict()["workers"]) / 3
    torch.testing.assert_close(applied + late, total)
    first = applied if sim is sims[0] else first
assert torch.equal(first, applied), "state survives"
"""


def test_the_method_of_the_readme_keeps_the_laws(tmp_path: Path) -> None:
    (tmp_path / "blockmax.py").write_text(parts()[2])
    (tmp_path / "laws.py").write_text(LAWS)
    run_script(tmp_path / "laws.py")


def test_the_method_of_the_readme_is_short() -> None:
    code = [line for line in parts()[2].splitlines() if line.strip()]
    assert 25 <= len(code) <= 36


def test_the_commands_of_the_readme_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    commands = re.findall(r"\bmake ([a-z]+)\b", README.read_text())
    for target in {command for command in commands if command not in ("it", "a", "them")}:
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), f"make {target}"


def test_make_demo_compares_ten_methods_that_exist() -> None:
    (line,) = re.findall(r"^DEMO\s*:= (.*)$", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    specs = split_methods(line)
    assert len(specs) == 10
    for spec in specs:
        grace.method(spec)


@pytest.mark.parametrize(
    "command", re.findall(r"`(?:\.venv/bin/)?grace (list|explain [^`]+)`", README.read_text(encoding="utf-8"))
)
def test_the_command_line_of_the_readme(command: str, tmp_path: Path) -> None:
    code = "import sys; from grace.cli import main; sys.exit(main())"
    out = run("-c", code, *shlex.split(command), cwd=tmp_path).stdout
    assert "topk" in out.lower()


def test_the_readme_cites_the_survey() -> None:
    text = README.read_text(encoding="utf-8")
    assert "GRACE}: A Compressed Communication Framework for Distributed Machine Learning" in text
    assert "ICDCS" in text
