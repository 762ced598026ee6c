"""Looks of figures, on the page and in a file: one palette each for light and dark, and two more signs beside color."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grace_bench.report.marks import Spec

# Paul Tol's "bright" and "muted" schemes, chosen apart for the color-blind; baselines are ink.
COLORS = (
    "#4477AA", "#EE6677", "#228833", "#AA3377", "#66CCEE", "#CC9933", "#332288", "#EE7733", "#999933", "#BB5566",
)  # fmt: skip
# The same hues on a dark ground, after Tol's "light" scheme.
COLORS_ON_DARK = (
    "#77AADD", "#FF99A8", "#44BB99", "#DD88C0", "#99DDFF", "#EEDD88", "#A99BF5", "#EE8866", "#BBCC33", "#D9808F",
)  # fmt: skip
_PARTS = (0, 5, 1, 2, 3)  # colors of what is not a method: the parts of a step, the operations of a codec
INK, QUIET = -1, -2
DASHES: tuple[tuple[float, ...], ...] = (
    (),
    (9, 4),
    (2, 3),
    (9, 3, 2, 3),
)  # pixels on and off; methods have the first three
# The variables of the page's style sheet, and the tones of its figures.
TONES = {
    "light": {
        "ground": "#f6f7f9", "card": "#ffffff", "ink": "#1d2330", "quiet": "#5b6475", "line": "#dfe3ea", "grid": "#e8ebf0",
        "accent": "#2f5f98", "accent-soft": "#e6eef8", "alert": "#9c2f2f", "alert-soft": "#fbeeee", "note": "#6b5200",
        "note-soft": "#fff6dd", "shadow": "0 1px 2px rgb(20 30 50 / 6%), 0 2px 8px rgb(20 30 50 / 4%)",
    },
    "dark": {
        "ground": "#12151b", "card": "#1a1f28", "ink": "#e7eaf0", "quiet": "#a2abbb", "line": "#323a48", "grid": "#2a313d",
        "accent": "#8fb8ea", "accent-soft": "#22344b", "alert": "#ff9c9c", "alert-soft": "#3a2226", "note": "#f0d993",
        "note-soft": "#383018", "shadow": "none",
    },
}  # fmt: skip


def _polygon(*points: tuple[float, float]) -> str:
    return "M" + "L".join(f"{x:.3g},{y:.3g}" for x, y in points) + "Z"


def _turn(shape: list[tuple[float, float]], degrees: float) -> list[tuple[float, float]]:
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    return [(x * cos - y * sin, x * sin + y * cos) for x, y in shape]


_TRIANGLE = [(0.0, -1.1), (1.0, 0.75), (-1.0, 0.75)]
_PLUS = [(0.36 * x, 0.36 * y) for x, y in (
    (-1, -3), (1, -3), (1, -1), (3, -1), (3, 1), (1, 1), (1, 3), (-1, 3), (-1, 1), (-3, 1), (-3, -1), (-1, -1))]  # fmt: skip
_STAR = [_turn([(0, -1.2 if k % 2 == 0 else -0.5)], 36 * k)[0] for k in range(10)]
# SVG paths between -1 and 1: Vega draws them as symbols, and the page as the signs of its legend.
MARKERS = (
    "M1,0A1,1,0,1,1,-1,0A1,1,0,1,1,1,0Z",
    _polygon((-0.88, -0.88), (0.88, -0.88), (0.88, 0.88), (-0.88, 0.88)),
    _polygon((0, -1.2), (1.2, 0), (0, 1.2), (-1.2, 0)),
    _polygon(*_TRIANGLE),
    _polygon(*_turn(_TRIANGLE, 180)),
    _polygon(*_PLUS),
    _polygon(*_turn(_PLUS, 45)),
    _polygon(*_STAR),
    _polygon(*_turn(_TRIANGLE, -90)),
    _polygon(*_turn(_TRIANGLE, 90)),
)


@dataclass(frozen=True, slots=True)
class Sign:
    """The look of a method in every figure: indices into ``COLORS`` (-1: ink, -2: the quiet tone of the limit), ``DASHES``
    and ``MARKERS``.
    """

    color: int
    dash: int
    marker: int

    @property
    def shape(self) -> dict[str, Any]:
        """The fields of a row that do not depend on light and dark."""
        return {"shape": MARKERS[self.marker], "dash": DASHES[self.dash], "width": 2.4 if self.color < 0 else 1.6}

    def paint(self, tone: str) -> dict[str, str]:
        """The fields of a row that do; ``tone`` is a key of ``TONES``. Baselines are hollow."""
        if self.color < 0:
            return {"stroke": TONES[tone]["ink" if self.color == INK else "quiet"], "fill": TONES[tone]["card"]}
        color = (COLORS_ON_DARK if tone == "dark" else COLORS)[self.color]
        return {"stroke": color, "fill": color}


def sign(index: int, *, baseline: bool = False) -> Sign:
    """The sign of the method with this index, counted among the baselines or among the others.

    Two others share all of it only when they lie 30 apart.
    """
    if baseline:
        return Sign(INK, index % len(DASHES), index % len(MARKERS))
    return Sign(index % len(COLORS), index % 3, (index + index // len(COLORS)) % len(MARKERS))


# Without communication: not a way to train, so it looks unlike those that are.
LIMIT = Sign(QUIET, 2, 6)


def config(tone: str) -> dict[str, Any]:
    """Vega-Lite's configuration: everything about a figure except what it shows."""
    own = TONES[tone]
    palette = COLORS_ON_DARK if tone == "dark" else COLORS
    return {
        "background": own["card"],
        "font": "Liberation Sans, Arial, Helvetica, sans-serif",  # vl-convert carries it: files are the same everywhere
        "view": {"stroke": None},
        "axis": {
            "labelColor": own["quiet"], "labelFontSize": 11, "titleColor": own["quiet"], "titleFontSize": 12,
            "titleFontWeight": "normal", "titlePadding": 8, "domainColor": own["line"], "tickColor": own["line"],
            "gridColor": own["grid"], "labelLimit": 260, "labelOverlap": True, "labelSeparation": 8,
        },
        "axisBand": {"domain": False, "ticks": False, "labelPadding": 6, "grid": False},
        "title": {
            "anchor": "start", "frame": "group", "color": own["ink"], "fontSize": 12, "subtitleColor": own["quiet"],
            "subtitleFontSize": 11, "subtitlePadding": 4, "offset": 8,
        },
        "legend": {
            "orient": "top", "direction": "horizontal", "title": None, "labelColor": own["ink"], "labelFontSize": 11,
            "offset": 6, "labelLimit": 300,
        },
        "range": {"category": [palette[k] for k in _PARTS]},
        "text": {"color": own["ink"]},
        "style": {  # other names than those of Vega-Lite's marks, which would take them
            "seeds": {"opacity": 1, "fillOpacity": 0.12},
            "quartiles": {"fillOpacity": 0.55},
            "front": {"color": own["accent"], "strokeOpacity": 0.4, "strokeWidth": 7},
            "near": {"color": own["accent"], "opacity": 1, "fillOpacity": 0.12},
            "spread": {"strokeOpacity": 0.55, "strokeWidth": 1},
            "diagonal": {"color": own["quiet"], "strokeWidth": 1},
            "goal": {"color": own["quiet"], "strokeWidth": 1.3, "strokeDash": [5, 4]},
            "small": {"color": own["quiet"], "fontSize": 10},
            "ground": {"color": own["card"], "stroke": own["card"], "strokeWidth": 3, "fontSize": 11},
            "beside": {"color": own["ink"], "fontSize": 11},
            "exposed": {"color": own["accent"], "strokeOpacity": 0.6},
            "measured": {"color": own["ink"], "opacity": 1},
        },
    }  # fmt: skip


def titled(
    title: str, says: str | Sequence[str], plot: Mapping[str, Any], look: Mapping[str, Any] | None = None
) -> Spec:
    """A figure with a title, and lines below it that say what it shows; ``look``: by default the light one."""
    lines = says if isinstance(says, str) else ". ".join(says)
    return {
        "title": {"text": title, "subtitle": says, "fontSize": 15}, "description": f"{title}. {lines}", **plot, "padding": 14,
        "config": look or config("light"),
    }  # fmt: skip


def tone_rule(tone: str) -> str:
    """The variables of the page's style sheet."""
    variables = "; ".join(f"--{name}: {value}" for name, value in TONES[tone].items())
    return f':root[data-theme="{tone}"] {{ {variables}; color-scheme: {tone}; }}'
