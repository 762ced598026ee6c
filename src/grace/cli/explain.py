"""``grace list`` and ``grace explain``: a method's documentation, its declared facts, and its traffic beside dense
all-reduces. :mod:`grace_command` prints most of this from the catalog, which is made here; this serves everything that is not
in it.
"""

from __future__ import annotations

import inspect
import math
import re
import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.text import Text
from torch import nn

import grace
from grace.auto.classes import LOOSE, evidence_of, permitted, steps_of
from grace.auto.explain import Explanation
from grace.auto.settings import NAME, Auto
from grace.cli.algorithms import describe_algorithm, describe_algorithms
from grace.cli.options import Json, complete_method
from grace.cli.output import show, write_json
from grace.collectives import Traffic, ring_bytes
from grace.communicators import Hierarchical
from grace.contract.knobs import as_call
from grace.contract.method import Method
from grace.contract.peer import Peer
from grace.contract.wrapping import layers
from grace.errors import ConfigurationError
from grace.registry import documentation, parse, recipe
from grace.registry.discovery import load
from grace.run.plan import ExchangePlan, plan
from grace.verify.peak import peak_of
from grace_command import catalog
from grace_command.views import algorithm_text, auto_text, error_text, list_table, method_table

SHAPES = ((64, 64, 3, 3), (1024, 1024), (4096, 4096))  # a convolution, a small and a large matrix
WORLDS = (2, 4, 8, 32, 128)
_MEASURED = 4  # workers that the survey's runs had
_BETWEEN = "goes between machines: its traffic is counted there, beside a dense all-reduce of the same parts"
_SECTION = re.compile(r"^([A-Z][A-Za-z ]*):$")


# ---- the commands ----------------------------------------------------------------------------------------------------
def list_(as_json: Json = False) -> None:
    """List the registered methods, and the algorithms that exchange something other than gradients.

    Example: [bold]grace list[/]
    """
    rows = describe_all()
    if as_json:
        write_json(rows)
    else:
        show(list_table(rows, describe_algorithms()))


def explain(
    method: Annotated[
        str | None,
        typer.Argument(
            metavar="METHOD",
            autocompletion=complete_method,
            help="A method, with knobs after a colon; auto; an algorithm, as diloco; or an error, as UnknownNameError.",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model", metavar="MODULE:FUNCTION", help="Show what it does to each parameter of this model instead."
        ),
    ] = None,
    workers: Annotated[int, typer.Option("--workers", min=1, help="With --model: how many.")] = 4,
    granularity: Annotated[
        str, typer.Option("--granularity", help="With --model: parameter, bucket or model.")
    ] = "parameter",
    run: Annotated[
        Path | None,
        typer.Option("--run", metavar="FILE", help="Show what auto has chosen in this run, and why, instead."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Explain a method: what it sends, what it promises, and its bytes beside a dense all-reduce.

    With --run: what auto has chosen in a run; the file is a result of grace bench train, or handle.explain().save(FILE).

    With --model: parameter, shape, method, bytes and their share, one by one. The function takes nothing and returns a
    torch.nn.Module; file.py:function does as well.

    Example: [bold]grace explain topk:ratio=0.01 --model train.py:make_model[/]
    """
    if (method is None) == (run is None):
        raise ConfigurationError("explain: a METHOD, or --run FILE; one of the two")
    if run is not None:
        chosen = Explanation.load(run)
        if as_json:
            write_json(chosen.as_dict())
        else:
            show(Text(str(chosen)), soft=True)
        return
    assert method is not None
    if model is not None:
        table = plan_model(model, method, workers, granularity)
        if as_json:
            write_json(table.as_dict())
        else:
            show(Text(str(table)), soft=True)
        return
    if (error := catalog.find_error(method)) is not None:
        if as_json:
            write_json(error)
        else:
            show(error_text(error))
        return
    if method.partition(":")[0] == NAME:
        about = describe_auto(method)
        if as_json:
            write_json(about)
        else:
            show(auto_text(about))
        return
    if (algorithm := describe_algorithm(method)) is not None:
        if as_json:
            write_json(algorithm)
        else:
            show(algorithm_text(algorithm))
        return
    told = describe(method)
    if as_json:
        write_json(told)
    else:
        show(method_table(told))


# ---- what they print --------------------------------------------------------------------------------------------------
def describe_all() -> list[dict[str, str]]:
    """All registered methods: name, family, recipe with its defaults spelled out, the first line of their docs, and what they
    need of the optimizer.
    """
    rows = []
    for name in grace.methods():
        summary = documentation(name).partition("\n")[0]
        family = recipe(name).family
        method = grace.method(name)
        row = {"name": name, "family": family, "recipe": as_call(method), "summary": summary}
        rows.append({**row, "optimizer": str(method.needs)})
    return rows


def describe_auto(text: str) -> dict[str, Any]:
    """Settings, summary and documentation of ``auto``, by section.

    Raises:
        ConfigurationError: a setting that does not exist, or out of range.
    """
    about = inspect.getdoc(Auto) or ""
    settings = Auto.read(text)
    sections = {"Args": sections_of(about)["Args"], f"Candidates, among {_MEASURED} workers": _candidates(settings)}
    return {"name": NAME, "settings": str(settings), "summary": about.partition("\n")[0], "sections": sections}


def _candidates(settings: Auto) -> str:
    """The methods that may be used, with what each sends, loses after as many steps, and how many it takes to bf16's quality;
    and what is left out.
    """
    names, left_out = permitted(
        LOOSE if settings.error is not None else settings.quality, _MEASURED, None, settings.methods or None,
        memoryless=settings.error is not None, goal=settings.goal,
    )  # fmt: skip
    lines = []
    for name in names:
        sent = traffic_row(grace.method(name), SHAPES[1], _MEASURED)["relative_to_bf16"]
        bytes_ = "bytes that depend on the data" if sent is None else f"{100 * sent:.3g} % of bf16's bytes"
        lines.append(f"{name}: {bytes_}; {evidence_of(name)}; to bf16's quality {steps_of(name)}")
    return "\n".join([*lines, *(f"{name} left out: {why}" for name, why in left_out.items())])


def describe(text: str, shapes: Sequence[tuple[int, ...]] = SHAPES, worlds: Sequence[int] = WORLDS) -> dict[str, Any]:
    """Everything about the method that this string makes.

    Raises:
        UnknownNameError, ConfigurationError: it makes none.
    """
    method = grace.method(text)
    name = recipe(parse(text)[0]).name
    sections = sections_of(documentation(name))
    facts = [{"shape": list(shape), **_declared(method, shape)} for shape in shapes]
    traffic = [traffic_row(method, shape, world) for shape in shapes for world in worlds if _fits(method, world)]
    return {
        "name": name,
        "family": recipe(name).family,
        "method": grace.spell(method),
        "recipe": repr(method),
        "summary": sections.pop("", ""),
        "sections": sections,
        "optimizer": {"needs": str(method.needs), "why": method.needs.why},
        "facts": facts,
        "memory": _memory(method),
        "traffic": traffic,
        "warnings": [*warnings_of(traffic), *([_BETWEEN] if _find_hierarchy(method) else [])],
    }


def _declared(method: Method[Any], shape: tuple[int, ...]) -> dict[str, Any]:
    """The facts that it declares for tensors of a shape."""
    facts = asdict(method.facts(torch.empty(shape, device="meta", dtype=torch.float32)))
    return {name: value for name, value in facts.items() if name not in ("kept", "peak")}  # these are counted: "memory"


def _memory(method: Method[Any]) -> dict[str, float] | None:
    """The memory that it needs beside the gradient, in multiples of it, to two digits."""
    try:
        shares = peak_of(method)
    except Exception:  # somebody's method that fails tells why where it is used
        return None
    return None if shares is None else {name: float(f"{share:.2g}") for name, share in shares._asdict().items()}


def plan_model(target: str, method: str, workers: int, granularity: str) -> ExchangePlan:
    """The exchange plan of a worker for the model that ``target``, ``module:function``, returns.

    Raises:
        ConfigurationError: it cannot be loaded, or returns no module with parameters to train.
    """
    make = load(target, "model")
    if not callable(make):
        raise ConfigurationError(f"model {target!r} is {type(make).__name__}; legal: a function that returns a module")
    module = make if isinstance(make, nn.Module) else make()
    if not isinstance(module, nn.Module):
        raise ConfigurationError(f"model {target!r} returns {type(module).__name__}; legal: a torch.nn.Module")
    trained = {name: p.detach().to("meta") for name, p in module.named_parameters() if p.requires_grad}
    if not trained:
        raise ConfigurationError(f"model {target!r} has no parameter that requires a gradient")
    return plan(trained, method, workers, granularity=granularity)  # type: ignore[arg-type]


def sections_of(text: str) -> dict[str, str]:
    """A docstring by its headings; what comes before the first is under the empty name."""
    sections: dict[str, list[str]] = {"": []}
    lines = sections[""]
    for line in text.splitlines():
        heading = _SECTION.match(line)
        if heading:
            lines = sections.setdefault(heading[1], [])
        else:
            lines.append(line)
    return {name: textwrap.dedent("\n".join(block)).strip() for name, block in sections.items() if any(block)}


def _fits(method: Method[Any], world: int) -> bool:
    """True if so many workers can lie as the method wants them to."""
    try:
        method.axes(world)
    except ConfigurationError:
        return False
    return True


def traffic_row(method: Method[Any], shape: tuple[int, ...], world: int) -> dict[str, Any]:
    """Rounds and bytes of one exchange, for the worker that sends most; bytes are None where they depend on the data."""
    like = torch.empty(shape, device="meta", dtype=torch.float32)
    ranks = sorted({0, 1, world - 1})
    hierarchy, machine = _find_hierarchy(method), 1
    count = method.traffic
    if hierarchy is not None:
        count, machine = hierarchy.between, hierarchy.machine
    moved = [count(like, Peer(rank, world)) for rank in ranks if rank < world]
    known = [traffic for traffic in moved if traffic is not None]
    most: Traffic | None = max(known, key=lambda t: t.sent, default=None)
    fp32, bf16 = (math.ceil(ring_bytes(size * like.numel() / machine, world // machine)) for size in (4, 2))
    row: dict[str, Any] = {"shape": list(shape), "elements": like.numel(), "workers": world}
    row |= {"rounds": None, "sent_bytes": None, "relative_to_fp32": None, "relative_to_bf16": None}
    if most is not None:
        row |= {"rounds": most.rounds, "sent_bytes": most.sent}
        row |= {"relative_to_fp32": most.sent / max(fp32, 1), "relative_to_bf16": most.sent / max(bf16, 1)}
    return row


def _find_hierarchy(method: Method[Any]) -> Hierarchical | None:
    return next((layer for layer in layers(method) if isinstance(layer, Hierarchical)), None)


def warnings_of(traffic: Sequence[dict[str, Any]]) -> list[str]:
    """Warnings where a method moves more than a dense all-reduce would."""
    out = []
    for name, key in (("fp32", "relative_to_fp32"), ("bf16", "relative_to_bf16")):
        worse = sorted({row["workers"] for row in traffic if row[key] is not None and row[key] > 1})
        if worse:
            worlds = ", ".join(map(str, worse))
            out.append(f"moves more bytes than a dense {name} all-reduce with {worlds} workers (of those in the table)")
    return out
