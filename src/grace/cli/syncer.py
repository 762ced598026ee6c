"""The command ``grace syncer``."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer


class Average(str, Enum):
    """The ways to average directions."""

    radial = "radial"
    plain = "plain"


def syncer(
    learners: Annotated[int, typer.Option("--learners", "-n", help="How many may be there at once.")],
    quorum: Annotated[int, typer.Option("--quorum", "-k", help="Of them, how many a merge waits for.")] = 1,
    address: Annotated[str, typer.Option("--address", help="Where it listens; [::] is all interfaces.")] = "[::]:4711",
    checkpoint: Annotated[
        Path | None, typer.Option("--checkpoint", "-c", help="A file: read if it is there, and written.")
    ] = None,
    save_every: Annotated[float, typer.Option("--save-every", help="Seconds from one checkpoint to the next.")] = 60.0,
    lr: Annotated[float, typer.Option("--lr", help="Learning rate of the outer optimizer.")] = 0.7,
    momentum: Annotated[float, typer.Option("--momentum", help="Nesterov momentum of the outer optimizer.")] = 0.9,
    average: Annotated[
        Average, typer.Option("--average", help="radial: norms and directions apart; or plain means.")
    ] = Average.radial,
    margin: Annotated[float, typer.Option("--margin", help="Share of the slack that more learners get.")] = 0.5,
    forget_after: Annotated[
        float, typer.Option("--forget-after", help="Seconds after which an absent learner is written off.")
    ] = 3600.0,
) -> None:
    """Run the syncer of decoupled learners until it is stopped. It needs no model: the first learner brings everything.

    Learners call [bold]grace.decoupled(model, optimizer, "host:4711", name="a", every=100)[/]. The port is for them alone: who
    reaches it can change the model.

    Example: [bold]grace syncer --learners 4 --quorum 2 --checkpoint syncer.pt[/]
    """
    import logging

    from grace.decoupled import serve

    logging.basicConfig(level=logging.INFO, format="%(message)s")
    serve(
        address, learners=learners, quorum=quorum, lr=lr, momentum=momentum, average=average.value, margin=margin,
        forget_after=forget_after, checkpoint=checkpoint, save_every=save_every,
        started=lambda where: typer.echo(f"syncer of {learners} learners, quorum {quorum}, at {where}", err=True),
    )  # fmt: skip
