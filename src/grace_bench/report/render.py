"""Draws figures with vl-convert, which carries Vega, its fonts and its JavaScript: nothing is fetched."""

from __future__ import annotations

import contextlib
import html
import re
from pathlib import Path
from typing import Any

from grace.errors import ConfigurationError
from grace_bench.extras import need
from grace_bench.files import write_atomically
from grace_bench.report.marks import Spec
from grace_bench.tasks.embedded.cache import cache_folder

_DENSITY = 2.0  # pixels of a PNG for each of the figure's


def renderer() -> Any:
    """The module vl_convert.

    Raises:
        MissingExtraError: it is not installed.
    """
    return need("vl_convert", extra="bench")


def check_kind(out: Path, *kinds: str) -> None:
    """Checks the name of a figure's file, which ends in one of these.

    Raises:
        ConfigurationError: it does not.
    """
    if out.suffix not in kinds:
        raise ConfigurationError(
            f"--out {str(out)!r} is no figure; legal: a file name that ends in {' or '.join(kinds)}"
        )


def save(figure: Spec, out: Path, name: str) -> list[Path]:
    """Writes a Vega-Lite document as ``name.svg`` and ``name.png`` into ``out``; the same document gives the same files.

    Raises:
        MissingExtraError: vl-convert is not installed.
        OSError: a file cannot be written.
    """
    own = renderer()
    svg = own.vega_to_svg(_clip_once(own.vegalite_to_vega(figure)), allowed_base_urls=[])
    names: dict[str, str] = {}  # Vega counts its frames over all figures of a process
    svg = re.sub(r"\bclip\d+\b", lambda match: names.setdefault(match[0], f"clip{len(names)}"), svg)
    svg = svg.replace("<svg ", f'<svg role="img" aria-label="{html.escape(figure["description"])}" ', 1)
    paths = [out / re.sub(r"[^A-Za-z0-9._-]+", "_", f"{name}.{kind}") for kind in ("svg", "png")]
    write_atomically(paths[0], svg)
    write_atomically(paths[1], own.svg_to_png(svg, scale=_DENSITY))
    return paths


def _clip_once(vega: Spec) -> Spec:
    """Cuts all lines of a panel with one frame, where Vega-Lite gives each its own: a PNG takes seconds, not minutes."""
    for at, mark in enumerate(vega.get("marks", [])):
        if mark.get("name", "").endswith("_pathgroup"):
            clips = [line.pop("clip", False) for line in mark["marks"]]
            size = {side: {"field": {"group": side}} for side in ("width", "height")}
            vega["marks"][at] = {"type": "group", "clip": any(clips), "encode": {"update": size}, "marks": [mark]}
        else:
            _clip_once(mark)
    return vega


def runtime() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script; putting them together takes seconds, so it is kept in the cache.

    Raises:
        MissingExtraError: vl-convert is not installed.
    """
    own = renderer()
    versions = f"{own.get_vega_version()}-{own.get_vegalite_versions()[-1]}-{own.get_vega_embed_version()}"
    with contextlib.suppress(OSError, RuntimeError):  # RuntimeError: a user without a home
        kept = cache_folder() / f"vega-{versions}.js"
        if kept.exists():
            return kept.read_text(encoding="utf-8")
        script: str = own.javascript_bundle()
        write_atomically(kept, script)
        return script
    return str(own.javascript_bundle())
