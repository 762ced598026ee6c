"""Weights that travel in few bits: the all-gather of a model under ``fully_shard`` through a compressor.

The owner of a shard keeps it in float32 or bfloat16, and the optimizer changes that. What is gathered, and what all ranks
compute with, the owner too, is ``D(C(shard))``: the same bits on every rank, in the forward and the backward pass of a step.
As in ZeRO++ (Wang et al., 2023, arXiv 2306.10209) and QSDP (Markov et al., ICML 2023, arXiv 2302.02390).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from grace.adapters.fsdp import ParameterGroup
from grace.auto.settings import wanted
from grace.collectives import AllGather, Exchange
from grace.contract.compressor import Compressor
from grace.contract.knobs import as_call
from grace.contract.peer import Peer
from grace.contract.wrapping import find_compressor, layers
from grace.errors import CompositionError, ConfigurationError, InputError
from grace.flags.finite import Flag, and_, fill_unless_
from grace.flags.refusals import Refusals
from grace.registry import method as make_method
from grace.registry import recipe_of
from grace.registry.policy import SMALL
from grace.run.options import Options
from grace.run.session import Session
from grace.transports.base import Transport
from grace.transports.choose import transport_beside
from grace.wire import HEADER, join, read_headers, seal

SHORT = {"int8": "lpc:bits=8,block=256,nearest=true", "int4": "lpc:bits=4,block=128,nearest=true"}
_LEAVES_OUT = ("sparsification", "low rank", "hybrid")  # families that send a part of the numbers
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def read_weights(given: Any) -> Compressor | None:
    """The compressor that ``weights=`` stands for: "int8", "int4", a method's string, a compressor, a method of one.

    Raises:
        ConfigurationError: "auto", or bits by budget.
        CompositionError: a method that cannot carry weights: one with a memory or an exchange of its own, or one whose
            messages vary in size, vote, or leave numbers out.
    """
    if given is None:
        return None
    if wanted(given) is not None:
        raise ConfigurationError(
            "weights='auto': what fewer bits of the weights cost in quality was measured in no run that auto could go by. "
            f"Name what they travel in; {_LEGAL}"
        )
    compressor, remembers = given, False
    if not isinstance(given, Compressor):
        made = make_method(SHORT.get(given, given) if isinstance(given, str) else given)
        remembers = any(type(layer).__module__.startswith("grace.memories") for layer in layers(made))
        compressor = find_compressor(made)
    if not isinstance(compressor, Compressor):
        raise CompositionError(f"weights={_spell(given)} has an exchange of its own; {_LEGAL}")
    *_, core = layers(compressor)
    entry = recipe_of(type(core))
    why = (
        "sends messages that vary in size" if compressor.varies
        else "takes votes" if compressor.aggregation == "majority"
        else "leaves numbers out" if entry is not None and entry.family in _LEAVES_OUT
        else ""
    )  # fmt: skip
    if why:
        raise CompositionError(f"weights={_spell(given)} {why}; {_LEGAL}")
    if remembers:
        raise CompositionError(
            f"weights={_spell(given)} has a memory, and weights are sent anew each time, with nothing to make up for; legal: "
            "memory=none behind it"
        )
    return None if compressor.transparent else compressor


_LEGAL = "legal: int8, int4, fp8, bf16, and other compressors of fixed size that keep every number, such as qsgd:bits=8"


def _spell(given: Any) -> str:
    return given if isinstance(given, str) else as_call(given)


class _Part(NamedTuple):
    """A parameter within a rank's part of a gather. c: its numbers. compressed: whether it is, or travels as it is."""

    c: int
    compressed: bool


class Weights:
    """Gathers the weights of a model's groups of parameters through a compressor. Collective: all ranks of a shard group.

    Tensors of at most one dimension, and of fewer than 1,024 numbers, travel beside the others as they are. A shard in which
    there is an inf or NaN arrives as NaN.

    Args:
        groups: all of the model's.
        compressor: of rows.
        options: how to exchange.
        transport: as for :func:`grace.attach`.
        version: what keys random rounding: the same in the forward and backward pass of a step, and another in the next.

    Raises:
        ConfigurationError: parameters that are gathered in several dtypes, or in a way of their own.
    """

    def __init__(
        self,
        groups: Sequence[ParameterGroup],
        compressor: Compressor,
        options: Options,
        transport: str | Transport | None,
        version: Callable[[], int],
    ):
        self.compressor, self._version = compressor, version
        self._layouts = {id(group): self._lay_out(group) for group in groups}
        like = {
            group.name: torch.empty(
                sum(part.c for part in self._layouts[id(group)]), device="meta", dtype=torch.float32
            )
            for group in groups
        }
        options = replace(options, check_replicas_every=0, nonfinite="propagate", on_difference="error")
        knobs = {"weights": as_call(compressor)}
        self.session = Session(like, "none", transport_beside(groups[0].shards, transport), options, knobs=knobs)

    def _lay_out(self, group: ParameterGroup) -> list[_Part]:
        parts, dtypes = [], set()
        for p in group.inside.fsdp_params:
            local = p.sharded_param.to_local()
            if hasattr(local, "fsdp_pre_all_gather"):
                raise ConfigurationError(
                    f"weights=: a parameter beside {group.name!r} is a {type(local).__name__}, which is gathered in a way of "
                    "its own; leave weights= out"
                )
            dtypes.add(group.inside.mp_policy.param_dtype or p.sharded_param.dtype)
            small = len(p._orig_size) <= 1 or math.prod(p._orig_size) < SMALL
            parts.append(_Part(math.prod(p.padded_sharded_param_size), not small))
        if len(dtypes) > 1 or not dtypes <= set(DTYPES):
            names = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes))
            raise ConfigurationError(
                f"weights=: the parameters beside {group.name!r} are gathered as {names}; legal: one of float32, bfloat16 and "
                "float16 for all parameters of a module that fully_shard was applied to, as "
                "mp_policy=MixedPrecisionPolicy(param_dtype=...) makes it"
            )
        return parts

    def gather(self, group: ParameterGroup, shard: Tensor, out: Tensor) -> None:
        """Fills ``out [W * n]`` with what all ranks' ``shard [n]`` says, this rank's too; ``shard`` may lie in ``out``.

        Raises:
            InputError: the parameters are not those that were there at the beginning.
        """
        session, parts = self.session, self._layouts[id(group)]
        if shard.numel() != sum(part.c for part in parts):
            raise InputError(
                f"the parameters beside {group.name!r} are not those that were there when Grace was attached; attach again"
            )
        session.stats.dense_bytes += (
            out.numel() * out.element_size() // 2
        )  # a gather moves half of what an all-reduce moves
        session.run(self._exchange(group.name, parts, shard, out.view(session.world, -1)), counted=True)

    def _exchange(self, name: str, parts: list[_Part], shard: Tensor, out: Tensor) -> Exchange[None]:
        session, compressor, version = self.session, self.compressor, self._version()
        peer = Peer(session.rank, session.world, version, f"weights/{name}", session.options.seed)
        mine_only = compressor.randomness == "private"
        stream = peer.private(compressor.id) if mine_only else peer.shared(compressor.id)
        wires: list[Tensor] = []
        finite: Flag = True
        for index, (part, x) in enumerate(zip(parts, torch.split(shard, [part.c for part in parts]), strict=True)):
            wire = x.view(1, -1)
            if part.compressed:
                wire, fine = compressor.encode_(x.to(torch.float32, copy=True).view(1, -1), stream.fork(index))
                finite = and_(finite, fine)
            wires.append(wire)
        sealed = yield AllGather(seal(join(*wires), finite, version)[0])  # [W, s]
        flags = [read_headers(message[None], version, rank) for rank, message in enumerate(sealed)]
        at, place = HEADER, 0
        for index, (part, wire) in enumerate(zip(parts, wires, strict=True)):
            end = at + wire.shape[1] * wire.element_size()
            theirs, target = (
                sealed[:, at:end].clone(memory_format=torch.contiguous_format).view(wire.dtype),
                out[:, place : place + part.c],
            )
            at, place = end, place + part.c
            if not part.compressed:
                target.copy_(theirs)
                continue
            rows = target.new_zeros(target.shape, dtype=torch.float32)
            known = [rank for rank, fine in enumerate(flags) if fine is not False]  # what others sent means nothing
            some = len(known) < len(flags)
            with Refusals() as refusals:
                filled = rows[known] if some else rows
                compressor.decompress_add_(
                    theirs[known] if some else theirs, filled, 1.0, peer.shared(compressor.id).fork(index)
                )
            if some:
                rows[known] = filled
            for row, fine in zip(rows, flags, strict=True):
                fill_unless_(and_(fine, refusals.ok), row, math.nan)
            target.copy_(rows)
