"""Writes the pages of docs/methods, and tables of methods in other pages, from the registered classes.

Run by ``make docs``. A test compares what is checked in with what this makes.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import math
import re
from pathlib import Path
from typing import Any

import torch
from typer.main import get_command

import grace
from grace.adapters.weights import read_weights
from grace.cli.algorithms import describe_algorithms
from grace.cli.app import app
from grace.cli.explain import describe, describe_all
from grace.cli.tasks import describe_tasks
from grace.collectives import AllGather, AllReduce, ReduceScatter, cost
from grace.contract.knobs import as_call, describe_knobs, spell_value
from grace.contract.peer import Peer
from grace.errors import CompositionError
from grace.registry import COMMUNICATORS, Recipe, documentation, recipe
from grace.verify.peak import SIDE, WORKERS, peak_of
from grace.verify.running import leaves
from grace.wire import sealed_bytes
from grace_command import catalog, shell

ROOT = Path(__file__).resolve().parent.parent
ELEMENTS = 1_000_000  # of the matrix whose numbers are shown: 1000 x 1000
LIKE = torch.empty(1000, 1000, device="meta")
SECTIONS = ("Args", "Wire", "Bias", "Differs from the paper", "Example", "Reference")
DISCOVERED = ("grace.communicators", "grace.memories", "grace.methods")  # packages that find their own modules
WORLDS = (2, 4, 8, 16)
START, END = "<!-- methods: written by docs/generate.py -->", "<!-- end of methods -->"
SHARDED = (
    "none",
    "bf16",
    "fp8",
    "qsgd:bits=4",
    "natural",
    "efsignsgd",
    "topk:ratio=0.01",
    "randomk:ratio=0.01",
    "powersgd:rank=4",
)
WEIGHTS = (
    (None, "none"), ("bf16", "bf16"), ("int8", "bf16"), ("int8", "qsgd:bits=4"), ("fp8", "qsgd:bits=4"),
    ("int8", "topk:ratio=0.01"), ("int4", "topk:ratio=0.01"),
)  # fmt: skip
COMMUNICATED = """Between replicas the communicator counts, too: bytes that a rank sends in a step for the same matrix and
machines of 4 ranks, with 2 machines and with 8. Torch's own all-reduce sends 1,000,000 and 1,750,000. A parameter server's own
rank sends more."""
WEIGHED = """With `weights=` the other half shrinks as well: the same matrix over 8 ranks, gathered for the forward pass and
for the backward pass. The first line is FSDP2 alone in float32, the second is what torch's own mixed precision sends."""


# ---- docstrings -----------------------------------------------------------------------------------------------------
def sections(text: str) -> tuple[str, str, dict[str, str]]:
    """A method's docstring as its first line, the text behind it, and its sections by name."""
    head, *rest = re.split(rf"^({'|'.join(SECTIONS)}):\n", text, flags=re.MULTILINE)
    first, _, body = head.partition("\n")
    pairs = zip(rest[::2], rest[1::2], strict=True)
    return first.strip(), body.strip(), {name: _dedent(block) for name, block in pairs}


def _dedent(block: str) -> str:
    return "\n".join(line.removeprefix("    ") for line in block.strip("\n").splitlines()).strip()


def arguments(block: str) -> dict[str, str]:
    """``name: text`` entries of an Args section."""
    out: dict[str, str] = {}
    for line in block.splitlines():
        match = re.match(r"(\w+): (.*)", line)
        if match:
            name = match[1]
            out[name] = match[2]
        else:
            out[name] += " " + line.strip()
    return out


def markdown(text: str) -> str:
    """A docstring's running text as markdown."""
    out = []
    for part in re.split(r"(``.*?``)", " ".join(text.split())):
        if part.startswith("``"):
            out.append(f"`{part[2:-2]}`")
        else:
            out.append(re.sub(r"([*_|])", r"\\\1", part).replace("<", "&lt;"))  # a backslash before < would show
    return re.sub(r"arXiv (\d{4}\.\d{5})", r"[arXiv \1](https://arxiv.org/abs/\1)", "".join(out))


def cell(text: str) -> str:
    """Running text within a table: a bar in code must be escaped too."""
    return re.sub(r"(?<!\\)\|", r"\\|", markdown(text))


def table(head: list[str], rows: list[list[str]]) -> str:
    """A markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def citation(reference: str) -> str:
    """A reference, short: ``[Alistarh et al., 2017](https://arxiv.org/abs/1610.02132)``."""
    reference = " ".join(reference.split()).removeprefix("The baseline of ")
    authors = re.split(r', "|: ', reference)[0]
    names = [name for name in re.split(r", | and ", authors) if name]
    if len(names) == 2 and "et al." not in authors:
        short = " and ".join(names)
    else:
        short = names[0].removesuffix(" et al.") + " et al."
    year = re.search(r"\b(19|20)\d\d\b", reference)
    label = f"{short}, {year[0]}" if year else short
    arxiv = re.search(r"arXiv (\d{4}\.\d{5})", reference)
    return f"[{label}](https://arxiv.org/abs/{arxiv[1]})" if arxiv else label


# ---- what a method claims -------------------------------------------------------------------------------------------
def number(x: float) -> str:
    """Three significant digits, without an exponent."""
    text = f"{x:.3g}" if abs(x) < 1000 else f"{x:.0f}"
    return text if "e" not in text else f"{x:.1e}"


def bits_per_element(method: grace.Method[Any]) -> str:
    """Bits that one worker encodes for an element of the example."""
    payload = method.facts(LIKE).payload
    return "by the data" if payload is None else number(8 * payload / ELEMENTS)


def rounds(method: grace.Method[Any], world: int = 4) -> str:
    """Collectives per exchange; traced in the simulator where they depend on the data."""
    traffic = method.traffic(LIKE, Peer(0, world))
    if traffic is not None:
        return str(traffic.rounds)
    sim = grace.Simulator(grace.Policy([("*", method)]), world=world)
    sim.step({"x": [torch.linspace(-1, 1, 1000).view(10, 100) for _ in range(world)]})
    return str(sim.traffic[0].rounds)


def bound(method: grace.Method[Any]) -> str:
    """The bound on the error for the example."""
    facts = method.facts(LIKE)
    if facts.variance is not None:
        return "exact" if facts.variance == 0 else f"`omega = {number(facts.variance)}`"
    if not facts.contraction:
        return "none declared" if facts.contraction is None else "never longer than x"
    missing = 1 - facts.contraction
    if missing < 1e-3:
        return f"`delta = 1 - 2**{math.log2(missing):.0f}`"
    return f"`delta = {number(facts.contraction)}`"


def composition(name: str) -> str:
    """The recipe as one would write it: ``ErrorFeedback(Allgather(TopK()))``."""
    return as_call(grace.method(name))


# ---- pages ----------------------------------------------------------------------------------------------------------
def page(name: str) -> str:
    """The page of one method."""
    entry, made = recipe(name), grace.method(name)
    first, body, parts = sections(documentation(name))
    if lacking := [section for section in SECTIONS if section != "Args" and section not in parts]:
        raise SystemExit(
            f"{name}: its docstring, which is its page, lacks {', '.join(lacking)}: a line such as 'Wire:', and the text "
            "below it, indented; see docs/concepts/adding.md"
        )
    title, colon, rest = first.partition(": ")
    out = [f"# {name}", f"**{markdown(title)}**: {markdown(rest)}" if colon else markdown(first)]
    out += [markdown(paragraph) for paragraph in body.split("\n\n") if paragraph]
    out += [f"The name `{name}` stands for `{composition(name)}`." + _aliases(entry)]
    out += ["## Knobs", _knobs(entry, arguments(parts.get("Args", "")))]
    out += ["## On the wire", _sentence(markdown(parts["Wire"])), *_waits(name), _traffic(made)]
    out += ["## Memory", _memory(made)]
    out += ["## Bias and bound", _sentence(markdown(parts["Bias"])) + _bias(made)]
    if made.needs:
        out += ["## What it needs of the optimizer", _needs(made)]
    out += ["## Where it differs from the paper", _sentence(markdown(parts["Differs from the paper"]))]
    out += ["## Example", _example(parts["Example"])]
    out += ["## Reference", markdown(parts["Reference"])]
    out += [f"The code: [`{_source(entry)}`](../../{_source(entry)}). All methods: [the table](index.md)."]
    return _end_line("\n\n".join(out))


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]


def _aliases(entry: Recipe) -> str:
    names = [name for name in (entry.factory.__name__, *entry.aliases) if name.lower() != entry.name]
    return f" Other names: {', '.join(f'`{name}`' for name in names)}." if names else ""


def _knobs(entry: Recipe, described: dict[str, str]) -> str:
    legal = describe_knobs(entry.factory)
    rows = [
        [f"`{f.name}`", f"`{f.default}`", markdown(legal.get(f.name, "as described")), cell(described.get(f.name, ""))]
        for f in dataclasses.fields(entry.factory)
    ]
    own = table(["knob", "default", "legal", "meaning"], rows) if rows else "None of its own."
    around = []
    if entry.communicator is not None:
        around.append(f"`communicator` (here `{entry.communicator}`)")
    around.append(f"`memory` (here `{entry.memory}`)")
    pages = "[communicators](../concepts/methods-and-communicators.md) and [memories](../concepts/memories.md)"
    return f"{own}\n\nAnd what goes around it: {' and '.join(around)}, each with knobs of its own; see {pages}."


def _memory(method: grace.Method[Any]) -> str:
    """The memory that it needs beside the gradient."""
    peak = peak_of(method)
    assert peak is not None, "a method of its own needs no machines"
    kept = (
        f"keeps {peak.kept:.2g} times its bytes from step to step" if peak.kept else "keeps nothing from step to step"
    )
    return (
        f"Beside the gradient a worker {kept}, and at most {peak.most:.2g} times its bytes are alive in a step (a matrix of "
        f"{SIDE} x {SIDE}, {WORKERS} workers, plain torch). See [how it is counted]"
        "(../concepts/gpu.md#memory)."
    )


def _bias(method: grace.Method[Any]) -> str:
    """The declared bias of an unbiased method whose random numbers have few bits."""
    bias = method.facts(LIKE).bias
    return f" Declared (`facts(...).bias`): at most {bias:.1e} of the largest number for each element." if bias else ""


def _needs(method: grace.Method[Any]) -> str:
    """Its demands on the optimizer."""
    parts = [] if method.needs.momentum else ["no momentum of its own (`momentum=0`)"]
    if method.needs.lr_scale != 1:
        parts.append(f"{method.needs.lr_scale:g} times a learning rate that suits SGD, as a start")
    text = f"{' and '.join(parts).capitalize()}: {method.needs.why}."
    return f"{text} See [the optimizer](../concepts/optimizer.md#what-a-method-needs-of-the-optimizer)."


def _traffic(method: grace.Method[Any]) -> str:
    payload = method.facts(LIKE).payload
    if payload is None:
        return "How many bytes travel depends on the data; `handle.stats` and `Simulator.traffic` count them."
    intro = (
        f"For a matrix of 1000 x 1000 float32 numbers one worker encodes {payload:,} bytes "
        f"({bits_per_element(method)} bits per element). What rank 0 of W workers sends for it, next to what an "
        "all-reduce of float32 numbers sends:"
    )
    dense = grace.method("none")
    rows = []
    for world in WORLDS:
        own, of_dense = (m.traffic(LIKE, Peer(0, world)) for m in (method, dense))
        assert own is not None
        assert of_dense is not None
        share = number(own.sent / of_dense.sent)
        rows.append([str(world), str(own.rounds), f"{own.sent:,}", f"{of_dense.sent:,}", share])
    return intro + "\n\n" + table(["W", "rounds", "bytes sent", "float32 all-reduce", "share"], rows)


@functools.cache
def waits() -> list[list[str]]:
    """Methods, knobs, questions and reasons: the table of the page of GPUs."""
    page = (ROOT / "docs/concepts/gpu.md").read_text(encoding="utf-8")
    lines = page.partition("| methods | with | questions | why |\n| --- | --- | --- | --- |\n")[2].partition("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines.splitlines()]


def _waits(name: str) -> list[str]:
    """The number of times that the host waits for a GPU, if it does."""
    lines = []
    for methods, knobs, questions, why in waits():
        if f"`{name}`" in methods.split(", "):
            times, _, what = questions.partition(" for ")
            often = {"1": "once", "2": "twice", "3": "three times", "4": "four times"}[times]
            lines.append(f"- {f'with {knobs}: ' if knobs else ''}{often} for {what or 'each bucket'}: {why}")
    if not lines:
        return []
    return ["The host waits for a GPU ([what that costs](../concepts/gpu.md#nothing-waits)):\n\n" + "\n".join(lines)]


def _example(block: str) -> str:
    lines = block.splitlines()
    lines = [line.replace(">>> method(", ">>> grace.method(") for line in lines]
    return "```pycon\n>>> import grace\n" + "\n".join(lines) + "\n```"


def _source(entry: Recipe) -> str:
    return "src/" + entry.factory.__module__.replace(".", "/") + ".py"


def index() -> str:
    """The table of all methods."""
    head = [
        "method",
        "family",
        "recipe",
        "bits per element",
        "rounds",
        "biased",
        "bound",
        "the optimizer needs",
        "reference",
    ]
    rows = []
    for name in own_methods():
        entry, made = recipe(name), grace.method(name)
        unbiased = made.facts(LIKE).unbiased
        reference = citation(sections(documentation(name))[2]["Reference"])
        rows.append(
            [
                f"[`{name}`]({name}.md)",
                entry.family,
                f"`{composition(name)}`",
                bits_per_element(made),
                rounds(made),
                "no" if unbiased else "yes",
                bound(made),
                str(made.needs),
                reference,
            ]
        )
    text = f"""# Methods

{len(rows)} methods. `grace.method("topk", ratio=0.01)` or the string `"topk:ratio=0.01"` makes one; `grace list` prints this
list, `grace explain topk` one method's page.

{table(head, rows)}

- *recipe*: what the name alone stands for, with all knobs at their defaults. The communicator and the memory can be
  replaced: `"topk:communicator=scatterreduce"`, `"topk:memory=none"`. Names are read without regard to case, `-` and `_`, and
  the names of classes are names too, GRACE's included: `TopK`, `top-k`, `TopKCompressor`.
- *bits per element*: what one worker encodes, for a matrix of 1000 x 1000; uncompressed it is 32. What travels
  depends on the communicator as well: see the page of each method.
- *rounds*: collectives, one after the other, with four workers. All tensors of a bucket share them.
- *biased*: whether the mean of C(x) over its random numbers differs from x. What a method drops in the same direction
  again and again needs error feedback, or an optimizer made for it.
- *the optimizer needs*: nothing, for most: what they send stands in for the gradient. See
  [the optimizer](../concepts/optimizer.md#what-a-method-needs-of-the-optimizer).
- *bound*: delta, from `|x - C(x)|^2 <= (1 - delta) |x|^2`, or omega, from `E|C(x) - x|^2 <= omega |x|^2`, for that matrix.
"""
    return _end_line(text)


SENDS = {  # README's lines: a family, and what its methods send
    "cast": "narrower floats",
    "quantization": "a few bits of each number",
    "sparsification": "a few of the numbers",
    "low rank": "two thin factors of each matrix",
    "hybrid": "few bits of few numbers",
    "rotation": "few bits after a random rotation",
}


def readme_families() -> str:
    """The methods of README.md, a line for each family."""
    lines = []
    for family, sends in SENDS.items():
        of = ("baseline", family) if family == "cast" else (family,)
        names = ", ".join(name for name in own_methods() if recipe(name).family in of)
        lines.append(f"- **{family.capitalize()}**, {sends}: {names}")
    return "\n".join(lines)


def sharded_table() -> str:
    """Costs of one matrix of 1000 x 1000 for a rank in a step, sharded over 8 ranks, and over 2 machines of 4."""
    shards, replicas = Peer(0, 8), Peer(0, 2)
    rows, shard = torch.empty(8, LIKE.numel() // 8, device="meta"), torch.empty(250, 1000, device="meta")
    reference = cost(ReduceScatter(rows), 0, 8).sent, cost(AllReduce(shard), 0, 2).sent
    lines = []
    for spec in SHARDED:
        made = grace.method(spec)
        moved = [made.scatter_traffic(rows, shards) if made.has_scatter else None, made.traffic(shard, replicas)]
        if spec == "none":  # torch's own reduce-scatter
            moved[0] = cost(ReduceScatter(rows), 0, 8)
        line = [f"`{spec}`"]
        for like, sent, dense in zip((rows, shard), moved, reference, strict=True):
            if sent is None:
                line += ["refused", "", ""]
            else:
                memory = sum(x.nbytes for x in leaves(made.init(like)))
                line += [f"{sent.sent:,}", f"{sent.sent / dense:.1%}", f"{memory / 1e6:.3g} MB" if memory else "none"]
        lines.append(line)
    head = ["method", "FSDP: bytes", "of torch's", "memory", "HSDP: bytes", "of torch's", "memory"]
    return "\n\n".join([table(head, lines), COMMUNICATED, communicators_table(), WEIGHED, weights_table()])


def communicators_table() -> str:
    """Costs of averaging a shard between machines for a rank that is not the server, over each communicator."""
    lines = []
    for name in COMMUNICATORS.in_order():
        line = [f"`{name}`"]
        for spec in ("bf16", "qsgd:bits=4", "topk:ratio=0.01"):
            for machines in (2, 8):
                try:
                    made = grace.method(f"{spec},communicator={name}" if ":" in spec else f"{spec}:communicator={name}")
                except CompositionError:
                    line.append("refused")
                    continue
                sent = made.traffic(torch.empty(250, 1000, device="meta"), Peer(1, machines))
                line.append("varies" if sent is None else f"{sent.sent:,}")
        lines.append(line)
    return table(
        ["communicator", *(f"`{name}`, {n}" for name in ("bf16", "qsgd:bits=4", "topk") for n in (2, 8))], lines
    )


def weights_table() -> str:
    """Costs of gathering the matrix twice and reducing its gradient, for a rank of FSDP in a step, over 8 ranks."""
    world, n = 8, LIKE.numel() // 8
    rows = torch.empty(world, n, device="meta")
    plain = cost(ReduceScatter(rows), 0, world).sent
    whole = 2 * cost(AllGather(rows[0]), 0, world).sent + plain
    lines = []
    for weights, gradients in WEIGHTS:
        compressor = read_weights(weights)
        if compressor is None:
            part = rows[0]
        else:
            size = compressor.facts(n).payload
            assert size is not None
            part = torch.empty(sealed_bytes(size), dtype=torch.uint8, device="meta")
        gathered = 2 * cost(AllGather(part), 0, world).sent
        moved = grace.method(gradients).scatter_traffic(rows, Peer(0, world))
        assert moved is not None
        reduced = plain if gradients == "none" else moved.sent
        sent = gathered + reduced
        lines.append(
            [f"`{weights or 'none'}`", f"`{gradients}`", f"{gathered:,}", f"{reduced:,}", f"{sent / whole:.1%}"]
        )
    return table(["weights", "gradients", "weights: bytes", "gradients: bytes", "of plain FSDP2"], lines)


def own_methods() -> list[str]:
    """The registered methods that Grace itself defines, by family."""
    families = ["baseline", "cast", "quantization", "sparsification", "low rank"]
    own = [name for name in grace.methods() if recipe(name).factory.__module__.startswith("grace.methods.")]
    rank = {family: at for at, family in enumerate(families)}
    return sorted(own, key=lambda name: (rank.get(recipe(name).family, len(families)), recipe(name).family, name))


def stub(package: str) -> str:
    """The ``__init__.pyi`` of a package that finds its own modules, for type checkers."""
    contents = vars(importlib.import_module(package))
    names = sorted(contents["__all__"], key=_isort_key)
    imports = sorted((_isort_key(contents[name].__module__), contents[name].__module__, name) for name in names)
    lines = [f"from {module} import {name} as {name}" for _, module, name in imports]
    listed = "".join(f'    "{name}",\n' for name in names)
    mark = "# Written by docs/generate.py (make docs): what type checkers see of the modules that this package finds.\n"
    return mark + "\n".join(lines) + f"\n\n__all__ = [\n{listed}]\n"


def catalog_text() -> str:
    """The data of the command line, which it shows without torch: the methods, tasks and commands."""
    names = own_methods()
    rows = {row["name"]: row for row in describe_all()}
    tasks = describe_tasks()
    lists = {"methods": grace.methods(), "tasks": [row["name"] for row in tasks], "links": shell.LINKS}
    document = {
        "version": grace.__version__,
        "files": catalog.list_files(ROOT / "src/grace/methods"),
        "command": catalog.describe_command(get_command(app), lists),
        "tasks": tasks,
        "errors": error_sections(),
        "algorithms": describe_algorithms(),
        "methods": {name: _entry(name, rows[name]) for name in sorted(names)},
    }
    return catalog.write(document)


def error_sections() -> dict[str, str]:
    """The section on each class from the page on errors, without its links."""
    page = (ROOT / "docs/concepts/errors.md").read_text(encoding="utf-8")
    sections = re.findall(r"^### (\w+)\n\n(.*?)\s*(?=^##|\Z)", page, flags=re.MULTILINE | re.DOTALL)
    plain = ((name, re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", text)) for name, text in sections)
    return {name: re.sub(r"(?<!\n)\n(?![\n|`-])", " ", text) for name, text in plain}


def _entry(name: str, row: dict[str, str]) -> dict[str, Any]:
    factory = recipe(name).factory
    knobs = {field.name: spell_value(field.default) for field in dataclasses.fields(factory)}
    names = sorted({catalog.squash(name) for name in (name, factory.__name__, *recipe(name).aliases)})
    return {"row": row, "about": describe(name), "names": names, "knobs": knobs}


def _isort_key(name: str) -> tuple[bool, list[tuple[bool, int, str]]]:
    """CONSTANTS before Classes, and numbers by their size."""
    parts = re.findall(r"\d+|\D+", name)
    return not name.isupper(), [(not part.isdigit(), int(part) if part.isdigit() else 0, part) for part in parts]


def _end_line(text: str) -> str:
    return text.rstrip() + "\n"


def generate_all() -> dict[Path, str]:
    """Every generated file and its text. Tables within a page stand between two marks."""
    pages = {ROOT / "docs/methods" / f"{name}.md": page(name) for name in own_methods()}
    pages[ROOT / "docs/methods/index.md"] = index()
    for package in DISCOVERED:
        pages[ROOT / "src" / package.replace(".", "/") / "__init__.pyi"] = stub(package)
    for file, text in {"README.md": readme_families(), "docs/concepts/sharded.md": sharded_table()}.items():
        before, _, rest = (ROOT / file).read_text(encoding="utf-8").partition(START)
        _, mark, after = rest.partition(END)
        if not mark:
            raise ValueError(f"{file} must contain {START!r} and {END!r}")
        pages[ROOT / file] = f"{before}{START}\n{text}\n{END}{after}"
    pages[catalog.FILE] = catalog_text()
    return pages


def main() -> None:
    """Writes all of it, and removes the pages of methods that are no more."""
    pages = generate_all()
    for old in (ROOT / "docs/methods").glob("*.md"):
        if old not in pages:
            old.unlink()
    for path, text in pages.items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
