"""Parts of a model that are exchanged in turn, and when."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Mapping
from typing import TypeVar

from grace.adapters.outer.presets import OuterSettings
from grace.errors import ConfigurationError

Key = TypeVar("Key", bound=Hashable)


class Fragments:
    """The names of each fragment, and the steps of a window in which its exchange starts and ends.

    Fragment f of P ends at step ``(f + 1) every / P`` of each window of ``every`` steps, and starts ``delay`` steps before. So
    never more than one is in flight, and none at the end of a window.

    Args:
        sizes: numbers of each parameter, by name, in an order that the ranks share.
        settings: ``every``, ``fragments`` and ``delay`` of them.

    Raises:
        ConfigurationError: more fragments than parameters.

    Example:
        >>> fragments = Fragments({"a": 4, "b": 3, "c": 2}, OuterSettings(every=8, fragments=2, delay=1))
        >>> fragments.names
        (('a',), ('b', 'c'))
        >>> [fragments.starting(step) for step in range(1, 9)]
        [None, None, 0, None, None, None, 1, None]
        >>> [fragments.ending(step) for step in range(1, 9)]
        [None, None, None, 0, None, None, None, 1]
        >>> [fragments.flying(step) for step in range(1, 9)]
        [None, None, 0, None, None, None, 1, None]
    """

    def __init__(self, sizes: Mapping[str, int], settings: OuterSettings):
        if settings.fragments > len(sizes):
            raise ConfigurationError(
                f"outer: fragments={settings.fragments}, and the optimizer trains {len(sizes)} parameters; legal: at most "
                "one fragment for each"
            )
        self.names = balance(sizes, settings.fragments)
        self._period, self._delay = settings.period, settings.delay

    def __len__(self) -> int:
        return len(self.names)

    def starting(self, step: int) -> int | None:
        """The fragment whose exchange starts at the end of this step of the window, 1 to ``every``."""
        return self.ending(step + self._delay)

    def ending(self, step: int) -> int | None:
        """The fragment whose mean is applied at the end of this step."""
        fragment, over = divmod(step, self._period)
        return fragment - 1 if over == 0 and 1 <= fragment <= len(self) else None

    def flying(self, step: int) -> int | None:
        """The fragment that is in flight once this step of the window, 0 to ``every``, has ended."""
        started = (step + self._delay) // self._period
        return started - 1 if started * self._period > step else None


def balance(sizes: Mapping[Key, int], parts: int) -> tuple[tuple[Key, ...], ...]:
    """Splits names, or other keys, into parts whose sizes are about equal: the largest first, each to the part that has the
    least so far. In a part they keep their order.
    """
    order = {name: place for place, name in enumerate(sizes)}
    heap = [(0, 0, part) for part in range(parts)]  # size, names, part: no part stays empty, whatever is empty
    filled: list[list[Key]] = [[] for _ in range(parts)]
    for name in sorted(sizes, key=lambda name: (-sizes[name], order[name])):
        size, count, part = heapq.heappop(heap)
        filled[part].append(name)
        heapq.heappush(heap, (size + sizes[name], count + 1, part))
    return tuple(tuple(sorted(part, key=order.__getitem__)) for part in filled)
