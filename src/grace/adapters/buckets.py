"""Groups of gradients that travel together, where nothing else decides it."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor


def fill_buckets(parameters: Mapping[str, Tensor], most: int) -> list[list[str]]:
    """Names of parameters of any shape, from the last to the first, roughly the order in which gradients become ready, in
    lists of at most ``most`` bytes, or of one name.
    """
    buckets: list[list[str]] = []
    size = 0
    for name, p in reversed(list(parameters.items())):
        more = p.numel() * p.element_size()
        if not buckets or size + more > most:
            buckets.append([])
            size = 0
        buckets[-1].append(name)
        size += more
    return buckets
