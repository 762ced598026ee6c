"""Drives one worker's exchange over a real network."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import TypeVar

import torch
from torch import Tensor

from grace.collectives import Broadcast, Exchange
from grace.transports.base import Network

T = TypeVar("T")


def drive(exchange: Exchange[T], network: Network) -> T:
    """Runs an exchange to its end. Errors of the network are raised inside the exchange, so that it can clean up."""
    try:
        op = next(exchange)
        while True:
            try:
                answer = network.run(op)
            except BaseException as error:
                with contextlib.suppress(StopIteration):
                    exchange.throw(error)
                raise  # an exchange that goes on, or ends, after a failed collective would leave the ranks out of step
            op = exchange.send(answer)
    except StopIteration as stop:
        result: T = stop.value
        return result


@torch.no_grad()
def broadcast_(tensors: Iterable[Tensor], network: Network, root: int) -> None:
    """Copies the root's numbers into these tensors, of whatever shape and dtype, on all ranks."""
    for x in tensors:
        if x.numel():
            local = x.detach().contiguous().view(-1).view(torch.uint8)
            x.copy_(network.run(Broadcast(local, root)).view(x.dtype).view(x.shape))
