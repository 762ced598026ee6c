"""The door of gossip: ``grace.gossip(model, optimizer, "topk:ratio=0.1", graph="ring")``."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import nn

from grace.contract.compressor import Compressor
from grace.errors import ConfigurationError
from grace.gossip.graph import Graph
from grace.gossip.handle import GossipHandle
from grace.gossip.settings import Algorithm, GossipSettings, NonFinite, read_gossip
from grace.run.options import Options
from grace.transports.base import Transport


def gossip(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    compressor: str | Compressor | GossipSettings | None = None,
    *,
    graph: str | Graph | None = None,
    algorithm: Algorithm | None = None,
    gamma: float | None = None,
    average_every: int | None = None,
    overlap: bool | None = None,
    nonfinite: NonFinite | None = None,
    seed: int = Options.seed,
    check: bool = Options.check,
    checksum: bool = Options.checksum,
    automatic: bool = True,
    group: dist.ProcessGroup | None = None,
    transport: str | Transport | None = "auto",
) -> GossipHandle:
    """From now on each rank trains a replica of its own, and after each step mixes its parameters with those of its neighbours
    in a graph. All ranks call it alike.

    It starts with rank 0's parameters on all ranks; then the replicas differ, and stay near their average. Buffers, such as
    the running averages of BatchNorm, and the state of the optimizer stay local. All ranks must make the same number of steps.

    Args:
        model: a plain module, not wrapped.
        optimizer: what trains it; ``optimizer.step()`` mixes.
        compressor: what is sent instead of the parameters, without memory or communicator: ``"topk:ratio=0.1"``. None: they
            are sent as they are. Or the text of all, ``"choco:graph=ring,method=(topk:ratio=0.1),gamma=0.2"``.
        graph: "ring" (the default), "torus", "exponential", "one_peer_exponential", "full", the path of a JSON file, or a
            :class:`grace.gossip.Graph`.
        algorithm: "choco" (the default with a compressor), "deepsqueeze", or "dpsgd" (without one).
        gamma: step size, 0 < gamma <= 1; by default 1 for dpsgd, else the contraction that the compressor declares.
        average_every: steps from one exact average of all replicas to the next, >= 0; 0, the default: none.
        overlap: whether messages travel beside the next step, and are mixed in after it: one step later. D-PSGD is then as in
            its paper, ``x_i = sum_j w_ij x_j - lr g_i``.
        nonfinite: parameters that are inf or NaN on some rank: nobody mixes them in this step, and there they go back to what
            they were ("agree", the default), or NonFiniteError on all ranks ("error").
        seed: of all random streams.
        check: compare all collectives between ranks before they start; slow, for debugging.
        checksum: whether payloads carry four bytes that are checked on receipt: for machines that flip bits.
        automatic: whether the optimizer's hook mixes. If not, call ``handle.step()`` after each step: with a gradient scaler,
            which may skip a step on one rank alone.
        group: the ranks; by default all. They get a process group of their own beside it.
        transport: between the ranks, in place of such a group: an object, or a name as for :func:`grace.transport`.

    Returns:
        A handle: ``stats``, ``graph``, ``disagreement``, ``measure()``, ``average()``, ``averaged_model()``, ``state_dict()``,
        ``load_state_dict(s)``, ``checkpoint()``, ``step()``, ``detach()``.

    Raises:
        ConfigurationError: a wrapped model, one worker only, a setting out of range, a graph that is cut or keeps no average.
        CompositionError: a memory or communicator around the compressor, a graph that varies with choco, a majority vote.
        UnknownNameError: an unknown algorithm, knob or method.
        InputError: a complex or otherwise unsuitable parameter, by name.
        FingerprintMismatch: ranks that differ in settings or model, on every rank, within a minute.
    """
    given = {
        "graph": graph, "gamma": gamma, "average_every": average_every, "overlap": overlap, "nonfinite": nonfinite,
    }  # fmt: skip
    settings = _settings(compressor, algorithm, given)
    options = Options(seed, check=check, checksum=checksum, check_replicas_every=0)
    return GossipHandle(model, optimizer, settings, options, automatic=automatic, group=group, transport=transport)


def _settings(
    compressor: str | Compressor | GossipSettings | None, algorithm: Algorithm | None, given: Mapping[str, object]
) -> GossipSettings:
    if not isinstance(compressor, GossipSettings):
        return read_gossip(compressor, algorithm, **given)
    if told := [knob for knob, value in {"algorithm": algorithm, **given}.items() if value is not None]:
        raise ConfigurationError(f"gossip: {', '.join(told)} and a GossipSettings, which is complete; give one of them")
    return compressor
