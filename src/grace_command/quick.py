"""Answers of ``grace`` from the catalog."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from grace_command import catalog
from grace_command.text import describe_os_error

_COMPLETION = "_GRACE_COMPLETE"  # set by the shell when it asks
_HELP = (["--help"], ["bench", "--help"])


def greeting(version: str) -> str:
    """The text that ``grace`` prints without arguments."""
    return f"""Grace {version}: gradient compression for distributed deep learning. Four commands to try:

  grace explain auto                                          what chooses a method for you while you train
  grace list                                                  the methods, each in a line
  grace explain topk:ratio=0.01                               what one sends, and what it promises
  grace train --method topk:ratio=0.01 --workers 2            train a small model with it, here

grace --help shows all commands, grace COMMAND --help one of them."""


def run(arguments: Sequence[str]) -> bool:
    """Answers if it can. False, with nothing written, if that takes more than the catalog or something is wrong."""
    try:
        return _run(list(arguments))
    except KeyboardInterrupt:
        sys.stderr.write("stopped\n")
        sys.exit(130)
    except BrokenPipeError:  # the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        message = describe_os_error(error)
        if message is None:
            raise
        sys.stderr.write(f"error: {message}\n")
        sys.exit(1)
    except ModuleNotFoundError:  # typer or rich: the command line says what to install
        return False


def _run(arguments: list[str]) -> bool:
    if _COMPLETION in os.environ or arguments in _HELP:
        from grace_command.shell import program

        program()()
        return True
    if arguments in ([], ["--version"]):
        version = catalog.read()["version"]
        _write(f"grace {version}" if arguments else greeting(version))
        return True
    as_json = "--json" in arguments
    words = [word for word in arguments if word != "--json"]
    if len(arguments) - len(words) > 1 or any(word.startswith("-") for word in words):
        return False
    match words:
        case ["list"] if catalog.is_whole():
            rows = [entry["row"] for entry in catalog.read()["methods"].values()]
            return _show("list_table", rows, as_json, catalog.read()["algorithms"])
        case ["tasks"]:
            return _show("tasks_table", catalog.read()["tasks"], as_json)
        case ["explain", text] if (entry := catalog.find(text)) is not None:
            return _show("method_table", entry["about"], as_json)
        case ["explain", text] if (error := catalog.find_error(text)) is not None:
            return _show("error_text", error, as_json)
    return False


def _show(view: str, document: Any, as_json: bool, *more: Any) -> bool:
    if as_json:
        _write(json.dumps(document, indent=1, ensure_ascii=False))
    else:
        from grace_command import text, views

        text.show(getattr(views, view)(document, *more))
        sys.stdout.flush()
    return True


def _write(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
