"""The state of gossip beside that of its session, and how it is read: nothing from a file is taken on trust."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from grace.errors import StateError
from grace.gossip.worker import GossipWorker
from grace.run.saved import check_fits, copy_state, fill, read_count

_KEYS = ("gossip", "steps", "conversations", "replica", "kept", "flight", "spoiled", "alike")


def save_states(states: Mapping[str, Any]) -> dict[str, Any]:
    """The states of conversations as plain tuples of tensors, copied."""
    return {name: copy_state(state) for name, state in states.items()}


def read_saved(
    saved: Mapping[str, Any],
    settings: str,
    worker: GossipWorker,
    kept: Mapping[str, Tensor],
    replica: Mapping[str, Tensor],
    *,
    flies: bool,
) -> dict[str, object]:
    """Checks what was saved; returns what all ranks must have in common of it, and changes nothing.

    Args:
        saved: the state.
        settings: the text of this run's settings.
        worker: of this run.
        kept: tensors like those that are kept, by name, of any shapes.
        replica: tensors like the parameters.
        flies: whether messages travel beside training, so that some may be on their way.

    Raises:
        StateError: it does not fit.
    """
    if missing := [key for key in _KEYS if key not in saved]:
        raise StateError(f"not a state of gossip: it lacks {', '.join(missing)}")
    if saved["gossip"] != settings:
        raise StateError(f"the state was saved by gossip with {saved['gossip']!r:.300}, this is {settings!r:.300}")
    steps = read_count(saved["steps"], "steps")
    check_fits("replica", saved["replica"], replica)
    check_fits("wide copy", saved["kept"], kept)
    flight = saved["flight"]
    if not isinstance(flight, Mapping) or (flight and not flies):
        raise StateError("the state has messages on their way, and this run has none: overlap differs")
    check_fits("mixing on its way", flight, {name: kept[name] for name in flight if name in kept} if flight else {})
    spoiled = saved["spoiled"]
    if type(spoiled) is not list or any(name not in kept for name in spoiled) or (spoiled and not flies):
        raise StateError(f"the state says of {spoiled!r:.80} that it was not finite; legal: parameters, with overlap")
    if type(saved["alike"]) is not bool:
        raise StateError(f"the state says alike={saved['alike']!r:.80}; legal: True or False")
    conversations = saved["conversations"]
    if not isinstance(conversations, Mapping) or conversations.keys() != worker.talks.keys():
        raise StateError("the state has conversations about other tensors")
    for name, talk in worker.talks.items():
        fill(name, talk.init(kept[name]), conversations[name])
    return {"steps of gossip": steps, "not finite": spoiled, "replicas alike": saved["alike"]}
