"""``grace migrate``: a script that was written for GRACE, unchanged."""

from __future__ import annotations

import ast
import json
import sys
from typing import Annotated, Any

import typer

from grace.cli.options import Json
from grace.cli.output import write_json
from grace.errors import ConfigurationError


def migrate(
    context: typer.Context,
    script: Annotated[str | None, typer.Argument(metavar="SCRIPT", help="The script; what follows is for it.")] = None,
    explain: Annotated[
        str | None,
        typer.Option("--explain", metavar="PARAMS", help="Say what this dict of GRACE's helper is in Grace."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Run a script that was written for GRACE, with its imports of grace_dl and Horovod, unchanged.

    Start it as the script was: alone, by mpirun -n 4 grace migrate SCRIPT, or by torchrun --nproc-per-node 4 -m grace.cli
    migrate SCRIPT. Where Horovod is installed it is used, and knows grace=; elsewhere Grace stands in for it. The exit
    status is the script's.

    Example: [bold]mpirun -n 2 grace migrate train.py --epochs 3[/]
    """
    if explain is not None:
        document = describe(explain)
        if as_json:
            write_json(document)
        else:
            typer.echo(document["method"])
            for part, change in document["differs"].items():
                typer.echo(f"  {part}: {change}")
        return
    if script is None:
        raise typer.BadParameter("a script is missing: grace migrate train.py ...")
    from grace_dl.script import run

    sys.exit(run(script, context.args))


def describe(text: str) -> dict[str, Any]:
    """Translates a dict of GRACE's helper into Grace, and names what that changes.

    Raises:
        ConfigurationError: not a dict, a name or key that GRACE did not have, or parts that cannot work together.
    """
    from grace_dl.table import describe as describe_params

    try:
        params = json.loads(text)
    except json.JSONDecodeError:
        try:
            params = ast.literal_eval(text)  # as a script has it
        except (ValueError, SyntaxError):
            params = None
    if not isinstance(params, dict):
        raise ConfigurationError(
            f"--explain {text!r}; legal: a dict such as {{'compressor': 'topk', 'memory': 'residual'}}"
        )
    try:
        return describe_params(params)
    except NotImplementedError as error:
        raise ConfigurationError(str(error)) from error
