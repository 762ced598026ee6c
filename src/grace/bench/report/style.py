"""How figures look, on a page and in a file: one palette, with a second and a third sign beside the colour."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

# Paul Tol's "bright" and "muted" schemes, chosen apart for the colour-blind; baselines are black.
COLOURS = (
    "#4477AA",
    "#EE6677",
    "#228833",
    "#AA3377",
    "#66CCEE",
    "#CC9933",
    "#332288",
    "#EE7733",
    "#999933",
    "#BB5566",
)
# The same hues on a dark ground, after Tol's "light" scheme.
COLOURS_ON_DARK = (
    "#77AADD",
    "#FF99A8",
    "#44BB99",
    "#DD88C0",
    "#99DDFF",
    "#EEDD88",
    "#A99BF5",
    "#EE8866",
    "#BBCC33",
    "#D9808F",
)
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)))
MARKERS = "osD^vPX*<>"
INK, FAINT, MUTED = "#222222", "#dddddd", "#555555"
RC: Any = {
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.edgecolor": "#888888",
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "svg.hashsalt": "grace",  # the same results give the same file
}


@dataclass(frozen=True, slots=True)
class Sign:
    """What marks a method in every figure: indices into ``COLOURS`` (-1: ink), ``DASHES`` and ``MARKERS``."""

    colour: int
    dash: int
    marker: int

    @property
    def line(self) -> dict[str, Any]:
        """For matplotlib's ``plot``."""
        ink = self.colour < 0
        return {
            "color": "black" if ink else COLOURS[self.colour],
            "linestyle": DASHES[self.dash],
            "linewidth": 2.0 if ink else 1.4,
            "zorder": 3 if ink else 4,
        }


def sign(index: int, *, baseline: bool = False) -> Sign:
    """The sign of the method with this index, counted among the baselines or among the others.

    Two others share all of it only when they lie 30 apart.
    """
    if baseline:
        return Sign(-1, index % len(DASHES), index % len(MARKERS))
    return Sign(index % len(COLOURS), index % len(DASHES), (index + index // len(COLOURS)) % len(MARKERS))
