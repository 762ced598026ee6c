"""The command ``grace``."""

from __future__ import annotations

import sys

_COMMAND_LINE = ("typer", "rich", "click", "shellingham", "msgspec")


def main() -> None:
    """Runs the command line; says how to install it where it is missing."""
    try:
        from grace.bench.commands import run
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _COMMAND_LINE:
            raise
        sys.stderr.write(f"grace needs {error.name} for its command line: pip install 'grace-dl[cli]'\n")
        sys.exit(1)
    run()


if __name__ == "__main__":
    main()
