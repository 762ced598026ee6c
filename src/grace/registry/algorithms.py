"""Algorithms that exchange something other than the gradients of every step: no methods, but named beside them.

Their settings are read where they are built: ``grace.adapters.outer.presets``, ``grace.optim.text`` and
``grace.gossip.settings``. Here is what a message or a list says of a name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class Algorithm:
    """A named algorithm.

    kind: "outer loop", "optimizer" or "gossip". use: the line of a training script. page: the page about it.
    """

    kind: str
    summary: str
    use: str
    page: str


def _outer(text: str, summary: str) -> Algorithm:
    return Algorithm("outer loop", summary, f'grace.outer(model, optimizer, "{text}")', "docs/concepts/local-steps.md")


def _optimizer(call: str, summary: str) -> Algorithm:
    name, _, knobs = call.partition(":")
    use = f"grace.optim.{name}({', '.join(('model.named_parameters()', 'lr=1e-3', knobs)).rstrip(', ')})"
    return Algorithm("optimizer", summary, use, "docs/concepts/compressed-optimizers.md")


def _gossip(text: str, summary: str) -> Algorithm:
    return Algorithm("gossip", summary, f'grace.gossip(model, optimizer, "{text}")', "docs/concepts/gossip.md")


ALGORITHMS: Mapping[str, Algorithm] = MappingProxyType({
    "local_sgd": _outer("local_sgd:every=32", "Local SGD: the average of the replicas after every H steps."),
    "post_local_sgd": _outer(
        "post_local_sgd:every=32,warmup_steps=1000", "Post-local SGD: averaged gradients at the start, then local SGD."
    ),
    "diloco": _outer(
        "diloco:every=32", "DiLoCo: the mean change of H steps, applied by SGD with Nesterov momentum."
    ),
    "streaming_diloco": _outer(
        "streaming_diloco:every=32", "Streaming DiLoCo: DiLoCo in parts, compressed, beside the next steps."
    ),
    "sparseloco": _outer("sparseloco:every=32", "SparseLoCo: the largest changes of H steps, two bits each."),
    "muloco": _outer("muloco:every=32", "MuLoCo: DiLoCo in two bits, with Muon as the inner optimizer."),
    "onebitadam": _optimizer("OneBitAdam:freeze_step=1000", "1-bit Adam: momenta in one bit, once the variance is frozen."),
    "zerooneadam": _optimizer("ZeroOneAdam:freeze_step=1000", "0/1 Adam: 1-bit Adam with fewer than one exchange a step."),
    "onebitlamb": _optimizer("OneBitLamb:freeze_step=1000", "1-bit LAMB: 1-bit Adam for large batches."),
    "demo": _optimizer("DeMo", "DeMo: the largest cosine components of momenta, a third of a bit for each number."),
    "dion": _optimizer("Dion:rank_fraction=0.25", "Dion: orthonormal updates of low rank, from factors of the momenta."),
    "dpsgd": _gossip("dpsgd:graph=ring", "D-PSGD: uncompressed averages with the neighbours in a graph."),
    "choco": _gossip(
        "choco:method=(topk:ratio=0.1)", "CHOCO-SGD: compressed differences to what the neighbours know."
    ),
    "deepsqueeze": _gossip(
        "deepsqueeze:method=(topk:ratio=0.1)", "DeepSqueeze: compressed parameters with error compensation."
    ),
})  # fmt: skip


def name_of_algorithm(text: str) -> str | None:
    """The name of the algorithm that a text, with or without settings, names; None: it names none.

    Example:
        >>> name_of_algorithm("DiLoCo:every=32"), name_of_algorithm("topk:ratio=0.01")
        ('diloco', None)
    """
    name = text.strip().partition(":")[0].lower().replace("-", "_")
    return name if name in ALGORITHMS else None


def say_where(name: str) -> str | None:
    """A sentence for someone who takes an algorithm for a method: where it is used; None: it is no algorithm."""
    known = name_of_algorithm(name)
    if known is None:
        return None
    algorithm = ALGORITHMS[known]
    article = "an" if algorithm.kind[0] in "aeiou" else "a kind of" if algorithm.kind == "gossip" else "a"
    return (
        f"{name!r} is {article} {algorithm.kind}, not a method, which compresses the gradients of every step; "
        f"use it as {algorithm.use}, or read on: grace explain {known}"
    )
