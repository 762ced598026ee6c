"""The command ``grace``: thin commands over the other packages.

``app`` puts the commands together; ``options``, ``output`` and ``errors`` are what they share; every other module has a
command or two. Results go to stdout, everything else to stderr.
"""

from __future__ import annotations

import sys

_COMMAND_LINE = ("typer", "rich", "click", "shellingham", "msgspec", "psutil")


def main() -> None:
    """Runs the command line; says how to install what it needs if that is missing."""
    try:
        from grace.cli.app import run
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _COMMAND_LINE:
            raise
        sys.stderr.write(f"grace needs {error.name} for its command line: pip install 'grace-dl[cli]'\n")
        sys.exit(1)
    run()
