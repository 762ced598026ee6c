"""GRACE's package (github.com/sands-lab/grace) on top of Grace: scripts and compressors that were written for it keep running.

``grace_dl.torch``, ``grace_dl.dist`` and ``grace_dl.tensorflow`` have GRACE's classes at GRACE's import paths. They come from
one table (:mod:`grace_dl.table`) when they are imported. Where compressor, memory and communicator are all GRACE's own, they
spell a Grace method, and Grace does the work. If one part is your own, GRACE's protocol runs (:mod:`grace_dl.protocol`), over
Grace's transports.

A script that imports Horovod runs under ``grace migrate``, or after :func:`stand_in`. :func:`adopt` turns a compressor that
was written for GRACE into a Grace method.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from grace_dl.finder import Finder

if TYPE_CHECKING:
    from grace_dl.adopted import adopt as adopt
    from grace_dl.horovod import stand_in as stand_in

__version__ = "1.0"  # of GRACE's interface
__all__ = ["adopt", "stand_in"]

if not any(isinstance(finder, Finder) for finder in sys.meta_path):
    sys.meta_path.append(Finder())


def __getattr__(name: str) -> Any:  # on demand: importing this package imports no toolkit
    if name == "adopt":
        from grace_dl.adopted import adopt

        return adopt
    if name == "stand_in":
        from grace_dl.horovod import stand_in

        return stand_in
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
