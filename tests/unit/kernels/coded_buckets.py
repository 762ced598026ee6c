"""Shared parts of the tests of kernels whose wires have variable length: buckets, exchanges of them, and damage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from grace.compute import backends
from grace.errors import PayloadError
from grace.flags.finite import cpu_as_accelerator
from grace.kernels import TensorList
from tests.unit.kernels.native_checks import offset
from tests.unit.kernels.triton_checks import agree

Sizes = tuple[int, ...]


def bucket(sizes: Sizes, rank: int, density: float) -> TensorList:
    """Tensors that begin at odd places, most of whose numbers are small, and of the third tiny; the first is not finite on
    rank 1.
    """
    made, many = torch.Generator().manual_seed(rank), TensorList(sizes, (), (), torch.device("cpu"))
    parts = list[list[Tensor]]()
    for t, n in enumerate(sizes):
        scale = 1e-38 if t == 2 else 1.0
        x = torch.randn(1, n, generator=made) * torch.where(
            torch.rand(1, n, generator=made) < density, scale, scale / 100
        )
        memory = torch.randn(1, n, generator=made) * (scale / 64)
        parts.append([offset(part, t % 4) for part in (x, memory, torch.zeros(1, n))])
    if rank == 1:
        parts[0][0][0, -1] = torch.inf
    many.point(*(list(column) for column in zip(*parts, strict=True)))
    return many


@dataclass(frozen=True)
class Coded:
    """A family's operations, with one code; and what makes the tensors of a worker."""

    code: Any
    places: Callable[..., Any]
    choose: Callable[..., Any]
    write: Callable[..., Any]
    add_up: Callable[..., Any]
    bucket: Callable[[Sizes, int, float], TensorList] = bucket

    def messages(self, sizes: Sizes, density: float, W: int) -> tuple[Any, Tensor, list[TensorList], list[Tensor]]:
        """Positions of the wires of W workers, these, the workers' tensors, and which are finite."""
        each = [self.bucket(sizes, rank, density) for rank in range(W)]
        choices = [self.choose(many.like, many, self.code) for many in each]
        widths = [choice.widths.tolist() for choice in choices]
        layouts = [self.places(widths, rank, sizes, self.code) for rank in range(W)]
        rows = torch.zeros(W, layouts[0].size, dtype=torch.uint8)
        for row, many, choice, places in zip(rows, each, choices, layouts, strict=True):
            self.write(row, many, self.code, choice, places)
        return layouts[0], rows, each, [choice.finite for choice in choices]

    def exchange(self, sizes: Sizes, density: float, W: int) -> None:
        """Widths, wires, flags, sums, and rests of what is finite, are those of the specification."""

        def draw() -> list[Tensor]:
            with cpu_as_accelerator():
                places, rows, each, finite = self.messages(sizes, density, W)
                legal = self.add_up(rows, each[0], self.code, places, 0.3)
            assert legal.all()
            told = zip(each, finite, strict=True)
            rests = [rest for many, fine in told for rest, ok in zip(many.rests or (), fine, strict=True) if ok]
            return [torch.tensor(places.widths), rows, *finite, *each[0].xs, *rests]

        agree(draw, (self.code, sizes, density))

    def damaged(self, damage: tuple[tuple[int, int, bool], ...], sizes: Sizes, density: float) -> None:
        """Wires are refused as by the specification: for each byte of the second tensor's, what it becomes, and whether that
        is legal.
        """
        with cpu_as_accelerator():
            with backends.using("reference"):
                places, rows, _, _ = self.messages(sizes, density, 2)
            for at, byte, right in damage:
                spoiled, legal = rows.clone(), dict[str, list[bool]]()
                begin, width = places.begins[1] + 4, places.widths[1][1]
                spoiled[1, begin + at % width] = byte
                for backend in ("reference", "triton"):
                    with backends.using(backend):
                        try:
                            many = self.bucket(sizes, 2, 1.0)
                            legal[backend] = self.add_up(spoiled, many, self.code, places, 1.0).tolist()
                        except PayloadError:
                            legal[backend] = [True, False]
                assert legal["triton"] == legal["reference"] == [True, right], (at, byte)


def compare_damaged(
    rows: Tensor,
    begin: int,
    steps: range,
    bucket: Callable[[], TensorList],
    add_up: Callable[[Tensor, TensorList], Tensor],
    rank: int = 0,
) -> set[bool]:
    """Wires ``rows [W, s]`` are refused as by the specification, whichever bit is another of the first tensor's, which begins
    at ``begin`` in that rank's: whether some are legal, and some not.
    """
    answers = set[bool]()
    for step in steps:
        spoiled, legal, sums = rows.clone(), dict[str, list[bool]](), dict[str, Tensor]()
        spoiled[rank, begin + step // 8] ^= 1 << step % 8
        for backend in ("reference", "triton"):
            many = bucket()
            with cpu_as_accelerator(), backends.using(backend):
                try:
                    legal[backend] = add_up(spoiled, many).tolist()
                except PayloadError:
                    legal[backend] = [False, *[True] * (len(many) - 1)]
            sums[backend] = many.xs[0]
        assert legal["triton"][0] <= legal["reference"][0], step
        assert all(legal["triton"][1:]), step
        assert not legal["triton"][0] or torch.equal(sums["triton"], sums["reference"]), step
        answers.add(legal["triton"][0])
    return answers
