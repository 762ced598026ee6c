"""Communicators: the generic exchanges, written once for every compressor (section IV of the survey).

=================  ========================  ===============================  ======================================
communicator       rounds                    bytes sent per worker            needs
=================  ========================  ===============================  ======================================
Allreduce          1                         2 w (W-1)/W                      wires that can be summed
Allgather          1 (+1 if sizes vary)      w (W-1)                          nothing
Broadcasts         W (+1 if sizes vary)      w (W-1), exact where sizes vary  nothing
ScatterReduce      2 (+2 if sizes vary)      2 w (W-1)/W                      an average (no majority vote)
ParameterServer    W (+2 if sizes vary)      w; the server w (W-1)            an average (no majority vote)
=================  ========================  ===============================  ======================================

Letters: n numbers, w bytes of one wire, W workers, rank r; c = ceil(n/W) numbers of one worker's chunk.
"""

from __future__ import annotations

from grace.contract.method import Method
from grace.registry.discovery import import_classes

_found = import_classes(__name__, __path__, Method)
globals().update(_found)
__all__ = sorted(_found)
