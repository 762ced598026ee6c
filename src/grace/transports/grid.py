"""A transport of transports: one between all ranks, and one along each axis of a grid."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from grace.collectives import Collective, signature
from grace.errors import ConfigurationError, TransportError
from grace.grid import Grid
from grace.transports.base import Transport, describe, find_axes
from grace.transports.machine import MachineTransport


class GridTransport:
    """Carries collectives of all ranks over one transport, and those along an axis over the transport of this rank's line.

    An error on a line closes it all here when :meth:`close` hears of it, so that ranks on every line hear of it too.

    Args:
        whole: between all ranks.
        grid: how they lie.
        lines: for each axis, the transport between the ranks on this one's line, in their order. They get ready in
            :meth:`connect`. The grid's transport takes them all over, and closes them.

    Raises:
        ConfigurationError: transports that do not fit the grid; all are closed then.

    ``axes`` says where this rank stands: for each axis its place and how many there are.
    """

    def __init__(self, whole: Transport, grid: Grid, lines: Mapping[str, Transport]):
        self._whole, self._lines, self.grid = whole, dict(lines), grid
        self.rank, self.world = whole.rank, whole.world
        self.axes = grid.place(self.rank)
        given = {axis: (line.rank, line.world) for axis, line in lines.items()}
        if grid.world != self.world or given != self.axes:
            error = ConfigurationError(
                f"{grid} puts rank {self.rank} of {grid.world} at {self.axes}; the transports are of {self.world} ranks, and "
                f"at {given}"
            )
            self.close(error)
            raise error
        self._ready = False

    @property
    def name(self) -> str:
        """The name of the transport between all ranks, the grid's sizes, and the axes that go another way: ``gloo, 2 x 4``,
        ``gloo, 2 x 4, along 'machine' shared memory``.
        """
        kind = getattr(self._whole, "name", type(self._whole).__name__)
        others = [
            f"along {axis!r} {describe(line)}"
            for axis, line in self._lines.items()
            if getattr(line, "name", kind) != kind or (isinstance(line, MachineTransport) and line.why)
        ]
        return ", ".join([str(kind), " x ".join(map(str, self.grid.sizes.values())), *others])

    @property
    def why(self) -> str:
        """See :func:`grace.transports.base.describe`."""
        return str(getattr(self._whole, "why", ""))

    def run(self, op: Collective) -> Tensor:
        """See :class:`grace.transports.base.Transport`.

        Raises:
            TransportError: also says along which axis it went, between which ranks.
        """
        if not op.axis:
            return self._whole.run(op)
        line = self._lines.get(op.axis)
        if line is None:
            raise TransportError(
                f"rank {self.rank}: {signature(op)} is refused: legal axes: {', '.join(map(repr, self._lines))}; nothing was "
                "sent"
            )
        self.connect()
        try:
            return line.run(replace(op, axis=""))
        except TransportError as error:
            raise TransportError(f"{self._describe(op.axis)}: {error}") from error

    def all_gather_text(self, text: str, *, seconds: float) -> list[str]:
        """See :class:`grace.transports.base.Transport`."""
        return self._whole.all_gather_text(text, seconds=seconds)

    def connect(self, *, seconds: float = 60.0) -> None:
        """Makes the lines ready, once; all ranks call it after they have agreed on the grid, or ask for a first collective.

        Raises:
            TransportError: some ranks of a line did not come within ``seconds``; names the axis.
        """
        if self._ready:
            return
        for axis, line in self._lines.items():
            try:
                line.all_gather_text("", seconds=seconds)
            except TransportError as error:
                raise TransportError(f"{self._describe(axis)}: {error}") from error
        self._ready = True

    def close(self, error: BaseException | None = None) -> None:
        """See :class:`grace.transports.base.Transport`. All are closed, whatever one of them raises."""
        with contextlib.ExitStack() as stack:
            for part in (self._whole, *self._lines.values()):
                stack.callback(part.close, error)

    def _describe(self, axis: str) -> str:
        ranks = ", ".join(map(str, self.grid.line(self.rank, axis)))
        return f"along the axis {axis!r}, between ranks {ranks} ({describe(self._lines[axis])})"


def lay_out(transport: Transport, sizes: Mapping[str, int], inside: str = "") -> Transport:
    """The transport with these axes: itself if it needs none or has them, else a grid of it and parts of it.

    Args:
        transport: between all ranks; taken over.
        sizes: of the axes; their product is the number of ranks.
        inside: the axis inside a machine: ranks along it share memory, if they can.

    Raises:
        ConfigurationError: it has other axes, or cannot be divided; it is closed then.
    """
    has = {axis: size for axis, (_, size) in find_axes(transport).items()}
    if not sizes or has == dict(sizes):
        return transport
    split = getattr(transport, "split", None)
    error: ConfigurationError | None = None
    if has:
        error = ConfigurationError(f"the transport's grid is {has}, where the method takes {dict(sizes)}")
    elif split is None:
        error = ConfigurationError(
            f"{dict(sizes)}: the transport {describe(transport)} cannot be divided among machines; legal: torch's process "
            "groups, or a grace.transports.grid.GridTransport of transports of your own"
        )
    if error is not None:
        transport.close()
        raise error
    assert split is not None
    grid = Grid(sizes)
    lines = {axis: split(grid.line(transport.rank, axis)) for axis in sizes}
    if sizes.get(inside, 1) > 1 and "nccl" not in str(getattr(transport, "name", "")):  # which stays on the devices
        lines[inside] = MachineTransport(lines[inside], grid.line(transport.rank, inside))
    return GridTransport(transport, grid, lines)
