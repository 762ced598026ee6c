"""The program ``grace``: whatever needs no torch is answered from a catalog, in a fraction of a second.

``grace list``, ``explain`` and ``tasks``, the help and the shell's completion read ``catalog.json``, which ``make docs``
writes; all else is :mod:`grace.cli`. Nothing here imports Grace, whose import brings torch; the command line imports from here
what both print.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Runs the program; answers from the catalog if it can."""
    from grace_command.quick import run

    if run(sys.argv[1:]):
        return
    try:
        from grace.cli import main as run_all

        run_all()
    except KeyboardInterrupt:  # while modules are imported, which takes seconds
        sys.stderr.write("stopped\n")
        sys.exit(130)
