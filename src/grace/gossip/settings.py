"""Settings of gossip, and the text that makes them: ``"choco:graph=ring,method=(topk:ratio=0.1),gamma=0.2"``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from torch import Tensor

from grace.contract.compressor import Compressor
from grace.contract.conversation import Conversation
from grace.contract.knobs import Share, Steps, as_call, check_knobs, name_owner
from grace.contract.method import Method
from grace.contract.wrapping import find_compressor, layers
from grace.errors import CompositionError, ConfigurationError, unknown
from grace.gossip.algorithms import DPSGD, Choco, DeepSqueeze
from grace.gossip.graph import Graph
from grace.registry import method as make_method
from grace.registry import spell
from grace.registry.algorithms import ALGORITHMS as KNOWN
from grace.registry.policy import SMALL
from grace.registry.text import parse, strip_parentheses
from grace.schedules import Scheduled

Algorithm: TypeAlias = Literal["dpsgd", "choco", "deepsqueeze"]
NonFinite: TypeAlias = Literal["agree", "error"]

ALGORITHMS: Mapping[str, str] = MappingProxyType(
    {name: algorithm.summary for name, algorithm in KNOWN.items() if algorithm.kind == "gossip"}
)
_LEAST_DELTA = 0.002  # of a compressor from which a step size is derived


@dataclass(frozen=True)
class GossipSettings:
    """Settings of gossip, the same on all ranks.

    Args:
        algorithm: "dpsgd", "choco" or "deepsqueeze".
        graph: a name of :data:`grace.gossip.GRAPHS`, the path of a file, or a :class:`~grace.gossip.Graph`.
        compressor: what is sent instead of the numbers, for all but dpsgd, which takes none.
        gamma: step size, 0 < gamma <= 1. None: 1 for dpsgd; else the contraction that the compressor declares for each tensor,
            such as 0.1 for the top tenth.
        average_every: steps from one exact average of all replicas, in place of gossip, to the next; 0: none.
        overlap: whether messages travel beside the next step, and are mixed in after it.
        nonfinite: parameters that are inf or NaN on some rank: nobody mixes them in this step, and where they are they go
            back to what they were ("agree"), or NonFiniteError on all ranks ("error").

    Raises:
        ConfigurationError: a setting out of range, a compressor that is missing or too many.
        CompositionError: a memory or a communicator around the compressor, a method with an exchange of its own, votes.
    """

    algorithm: Algorithm = "dpsgd"
    graph: str | Graph = "ring"
    compressor: Compressor | None = None
    gamma: Share | None = None
    average_every: Steps = 0
    overlap: bool = False
    nonfinite: NonFinite = "agree"

    def __post_init__(self) -> None:
        check_knobs(self)
        if self.algorithm == "dpsgd" and self.compressor is not None:
            raise ConfigurationError(
                f"gossip: dpsgd sends numbers as they are, got {as_call(self.compressor)}: compressed without a correction "
                "the average over the workers would drift; legal: algorithm='choco' or 'deepsqueeze', or no compressor"
            )
        if self.algorithm != "dpsgd" and self.compressor is None:
            raise ConfigurationError(
                f"gossip: {self.algorithm} needs a compressor, such as 'topk:ratio=0.1'; without one: algorithm='dpsgd'"
            )
        if self.graph == "one_peer_exponential" and self.algorithm == "choco":  # before the number of workers is known
            self._make(Graph.read("one_peer_exponential", 4), 1.0)

    def conversation(self, like: Tensor, graph: Graph) -> Conversation[Any]:
        """The conversation about a tensor like this one, of any shape. Small and 1-dimensional ones go uncompressed.

        Raises:
            ConfigurationError: no step size, and none can be derived.
        """
        if self.compressor is None or like.ndim <= 1 or like.numel() < SMALL:
            return DPSGD(graph, self.gamma or 1.0) if self.compressor is None else DPSGD(graph)
        return self._make(graph, self._step_size(like.numel(), self.compressor))

    def _make(self, graph: Graph, gamma: float) -> Conversation[Any]:
        kind = Choco if self.algorithm == "choco" else DeepSqueeze
        assert self.compressor is not None
        return kind(graph, self.compressor, gamma)

    def _step_size(self, n: int, compressor: Compressor) -> float:
        if self.gamma is not None:
            return self.gamma
        delta = compressor.facts(n).contraction
        if delta is None or delta < _LEAST_DELTA:
            told = "no contraction" if delta is None else f"a contraction of {delta:.2g} at worst"
            raise ConfigurationError(
                f"gossip: {as_call(compressor)} declares {told}, from which no step size follows; give gamma=, "
                "0 < gamma <= 1: begin with 0.3, and halve it as long as handle.disagreement grows"
            )
        return min(1.0, delta)

    def texts(self, graph: Graph) -> dict[str, object]:
        """The settings that all ranks must have in common, each under its name."""
        return {
            "algorithm": self.algorithm,
            "graph": f"{graph.name} {graph.cycle!r}" if graph.world <= 16 else f"{graph.name} {hash(graph.cycle)}",
            "compressor": as_call(self.compressor) if self.compressor is not None else "none",
            "gamma": self.gamma,
            "average_every": self.average_every,
            "overlap": self.overlap,
            "nonfinite_parameters": self.nonfinite,
        }


name_owner(GossipSettings, "gossip")
_KNOBS = ("graph", "method", "gamma", "average_every", "overlap", "nonfinite")


def is_gossip(text: str) -> bool:
    """True if a text names an algorithm of gossip: one of :data:`ALGORITHMS`, with or without knobs."""
    return text.strip().partition(":")[0] in ALGORITHMS


def read_gossip(
    compressor: str | Compressor | Method[Any] | None = None, algorithm: str | None = None, **given: Any
) -> GossipSettings:
    """The settings that a user's words make.

    Args:
        compressor: a compressor, or its text, ``"topk:ratio=0.1"``; or the text of all,
            ``"choco:graph=ring,method=(topk:ratio=0.1),gamma=0.2"``.
        algorithm: by default "choco" with a compressor, and "dpsgd" without.
        given: fields of :class:`GossipSettings`, which go before those in the text; None: not given.

    Raises:
        UnknownNameError: an unknown algorithm, knob or method; names the nearest.
        ConfigurationError, CompositionError: as :class:`GossipSettings`.

    Example:
        >>> settings = read_gossip("choco:graph=exponential,method=(topk:ratio=0.1),gamma=0.2")
        >>> settings.algorithm, settings.graph, settings.compressor.ratio, settings.gamma
        ('choco', 'exponential', 0.1, 0.2)
    """
    knobs: dict[str, Any] = {}
    if isinstance(compressor, str) and is_gossip(compressor):
        name, knobs = parse(compressor)
        for knob in knobs:
            if knob not in _KNOBS:
                raise unknown(f"knob of {name}", knob, _KNOBS)
        if algorithm is not None and algorithm != name:
            raise ConfigurationError(f"gossip: {compressor!r} and algorithm={algorithm!r} differ; give one of them")
        algorithm, compressor = name, knobs.pop("method", None)
        compressor = strip_parentheses(compressor) if isinstance(compressor, str) else compressor
    made = read_compressor(compressor)
    algorithm = algorithm or ("dpsgd" if made is None else "choco")
    if algorithm not in ALGORITHMS:
        raise unknown("algorithm", str(algorithm), ALGORITHMS)
    knobs.update({knob: value for knob, value in given.items() if value is not None})
    if knobs.get("nonfinite", "agree") not in ("agree", "error"):
        raise ConfigurationError(f"gossip: nonfinite={knobs['nonfinite']!r}; legal: 'agree', 'error'")
    return GossipSettings(algorithm, compressor=made, **knobs)  # type: ignore[arg-type]  # checked there


def read_compressor(compressor: str | Compressor | Method[Any] | None) -> Compressor | None:
    """The compressor that gossip sends with, in the variant whose error stays bounded; None for "none".

    Raises:
        CompositionError: a memory or communicator is named, or a method has an exchange of its own.
    """
    if compressor is None:
        return None
    if isinstance(compressor, str):
        name, knobs = parse(compressor)
        for knob in knobs:
            if knob.partition(".")[0] in ("memory", "communicator", "machine", "start"):
                raise CompositionError(
                    f"gossip: {compressor!r} names a {knob.partition('.')[0]}; legal: a compressor with its own knobs: "
                    "gossip has its own messages, and corrects errors itself"
                )
        if name == "none":
            return None
        made = make_method(name, **knobs, memory="none")
        if isinstance(made, Scheduled) or (inner := find_compressor(made)) is None:
            what = "has knobs that follow the step" if isinstance(made, Scheduled) else "has an exchange of its own"
            raise CompositionError(f"gossip: {compressor!r} {what}; legal: a compressor with fixed knobs, such as topk")
        return inner.with_memory()
    if isinstance(compressor, Compressor):
        return compressor.with_memory()
    if isinstance(compressor, Method) and (inner := find_compressor(compressor)) is not None:
        outer = ", ".join(type(layer).__name__ for layer in layers(compressor) if not isinstance(layer, Compressor))
        raise CompositionError(
            f"gossip: {spell(compressor)} has {outer} around the compressor; legal: the compressor alone, {as_call(inner)}: "
            "gossip has its own messages, and corrects errors itself"
        )
    raise CompositionError(f"gossip: {compressor!r:.80} is no compressor; legal: a text such as 'topk:ratio=0.1'")


def with_graph(settings: GossipSettings, world: int) -> tuple[GossipSettings, Graph]:
    """The settings with their graph of W workers, and that graph.

    Raises:
        ConfigurationError: as :meth:`Graph.read`.
    """
    graph = Graph.read(settings.graph, world)
    return replace(settings, graph=graph), graph
