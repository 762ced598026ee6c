"""The catalog: what registered methods say about themselves, the tasks and the commands, as of the last ``make docs``."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import re
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("catalog.json")
_PLUGINS = "grace.methods"  # entry points of installed packages


@cache
def read() -> dict[str, Any]:
    """The whole catalog.

    version: Grace's. files: the modules that its methods are from. tasks: as ``grace tasks --json`` prints them.
    methods: by name: row, as in ``grace list --json``; about, as ``grace explain NAME --json``; its names, squashed; knobs,
        with their defaults as strings spell them.
    algorithms: as ``grace list`` shows them.
    errors: what to do about each class. command: the tree of commands, see :func:`describe_command`.
    """
    content: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return content


def is_whole() -> bool:
    """True if the catalog has all methods here; in a checkout it may lack a new file."""
    spec = importlib.util.find_spec("grace")  # finds it without importing it
    places = [] if spec is None else spec.submodule_search_locations or []
    listings = [list_files(Path(place) / "methods") for place in places]
    return read()["files"] in listings and not plugins()


def list_files(folder: Path) -> list[str]:
    """The modules of a folder."""
    return sorted(file.stem for file in folder.glob("*.py"))


def plugins() -> list[str]:
    """Methods of other packages, which the catalog does not know."""
    return [point.name for point in importlib.metadata.entry_points(group=_PLUGINS)]


def method_names() -> list[str]:
    """All names of methods, those of other packages included."""
    return sorted({*read()["methods"], *plugins()})


def find(text: str) -> dict[str, Any] | None:
    """The method that this string names, if all its knobs are at their defaults; else None. With other knobs its facts and
    bytes are others, which only the method itself can tell.

    Example:
        >>> find("Top-K:ratio=0.01")["about"]["name"]
        'topk'
        >>> find("topk:ratio=0.02") is find("nonsense") is find("my.py:Mine") is None
        True
    """
    name, colon, tail = text.strip().partition(":")
    entry = next((method for method in read()["methods"].values() if squash(name) in method["names"]), None)
    if entry is None or not colon:
        return entry
    pairs = [part.split("=") for part in tail.split(",")]
    knobs = [pair[0].strip() for pair in pairs]
    plain = all(len(pair) == 2 and entry["knobs"].get(pair[0].strip()) == pair[1].strip() for pair in pairs)
    return entry if plain and len(knobs) == len(set(knobs)) else None


def find_error(name: str) -> dict[str, str] | None:
    """Advice about the class of errors or warnings of this name, if there is one.

    Example:
        >>> find_error("grace.InputError")["about"].partition(":")[0]
        'A tensor that Grace does not exchange'
    """
    wanted = name.rpartition(".")[2].lower()
    told = ({"error": error, "about": about} for error, about in read()["errors"].items())
    return next((error for error in told if error["error"].lower() == wanted), None)


def squash(name: str) -> str:
    """As the registry compares names of methods: without case, ``-``, ``_`` and the suffix of GRACE's classes."""
    text = re.sub(r"[-_\s]", "", name.lower())
    return text.removesuffix("compressor") or text


# ---- writing --------------------------------------------------------------------------------------------------------
def describe_command(command: Any, completions: dict[str, Sequence[str]]) -> dict[str, Any]:
    """A description of a command and those below it, for the help of a group and for the shell's completion.

    Args:
        command: typer's.
        completions: lists that values are completed from, by name.
    """
    told: dict[str, Any] = {
        "help": (command.help or "").partition("\n\n")[0],
        "params": [_describe_param(param, completions) for param in command.params if "completion" not in param.name],
    }
    below = getattr(command, "commands", {})
    return told | (
        {"commands": {name: describe_command(inner, completions) for name, inner in below.items()}} if below else {}
    )


def _describe_param(param: Any, completions: dict[str, Sequence[str]]) -> dict[str, Any]:
    offered = [getattr(choice, "value", choice) for choice in param.shell_complete(None, "")]
    told = {
        "names": ["/".join(filter(None, pair)) for pair in _pair(param.opts, param.secondary_opts)],
        "option": param.param_type_name == "option",
        "flag": bool(getattr(param, "is_flag", False)),
        "required": param.required,
        "metavar": param.metavar,
        "help": param.help,
        "completes": next((name for name, values in completions.items() if offered == list(values)), None),
    }
    return {key: value for key, value in told.items() if value not in (None, False)}


def _pair(names: Sequence[str], opposites: Sequence[str]) -> list[tuple[str, str]]:
    return [(name, opposites[at] if at < len(opposites) else "") for at, name in enumerate(names)]


def write(document: dict[str, Any]) -> str:
    """The catalog's text, in short lines, so that diffs can be read."""
    return _write(document, 3) + "\n"


def _write(value: Any, depth: int, indent: str = "") -> str:
    if not depth or not isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False)
    inner: Callable[[Any], str] = lambda item: _write(item, depth - 1, indent + " ")  # noqa: E731
    lines = [f"{indent} {json.dumps(key)}: {inner(item)}" for key, item in value.items()]
    return "{\n" + ",\n".join(lines) + f"\n{indent}}}"
