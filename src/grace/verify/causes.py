"""Likely cause among several broken laws: one law rests on another, and a method that breaks that breaks both."""

from __future__ import annotations

from collections.abc import Sequence

RESTS_ON = {
    "agreement": ("randomness",),
    "rows": ("randomness",),
    "conservation": ("rows", "agreement", "traffic"),  # rows that are scattered are counted, too
    "nothing lost": ("conservation",),
    "unbiased": ("randomness",),
    "error bound": ("unbiased",),
    "traffic": ("payload", "rows"),
    "exact recovery": ("conservation", "error bound"),
    "fused equals alone": ("agreement",),
    "answers in place": ("agreement",),
    "rest is free": ("conservation",),
    "state survives": ("failure", "randomness"),
    "non-finite agreed": ("failure", "agreement"),
    "corruption": ("rows", "payload", "agreement"),
    "edge inputs": ("conservation", "rest is free"),
}
"""For each law those that it rests on; what these rest on counts, too."""


def put_causes_first(broken: Sequence[str]) -> tuple[str, ...]:
    """The broken laws, those first that rest on no other broken one.

    Example:
        >>> put_causes_first(["nothing lost", "rows", "conservation"])
        ('rows', 'nothing lost', 'conservation')
    """
    causes = [law for law in broken if is_cause(law, broken)]
    return (*causes, *(law for law in broken if law not in causes))


def is_cause(law: str, broken: Sequence[str]) -> bool:
    """True if a broken law follows from no other broken one."""
    return not any(below in broken for below in _list_below(law))


def _list_below(law: str) -> set[str]:
    """All laws that a law rests on."""
    direct = RESTS_ON.get(law, ())
    return set(direct).union(*map(_list_below, direct))
