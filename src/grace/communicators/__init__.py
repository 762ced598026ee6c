"""Communicators: the generic exchanges, written once for every compressor (section IV of the survey).

=================  ========================  ===============================  ======================================
communicator       rounds                    bytes sent per worker            needs
=================  ========================  ===============================  ======================================
Allreduce          1                         2 w (W-1)/W                      wires that can be summed
Allgather          1 (+1 if sizes vary)      w (W-1)                          nothing
Broadcast          W (+1 if sizes vary)      w (W-1), exact where sizes vary  nothing
ScatterReduce      2 (+2 if sizes vary)      2 w (W-1)/W                      an average (no majority vote)
ParameterServer    W (+2 if sizes vary)      w; the server w (W-1)            an average (no majority vote)
=================  ========================  ===============================  ======================================

Letters: n numbers, w bytes of one wire, W workers, rank r; c = ceil(n/W) numbers of one worker's chunk.
"""

from __future__ import annotations

from grace.communicators.allgather import Allgather
from grace.communicators.allreduce import Allreduce
from grace.communicators.base import Communicator
from grace.communicators.broadcast import Broadcast
from grace.communicators.parameter_server import ParameterServer
from grace.communicators.scatter_reduce import ScatterReduce
from grace.communicators.two_hops import TwoHops

__all__ = [
    "Allgather",
    "Allreduce",
    "Broadcast",
    "Communicator",
    "ParameterServer",
    "ScatterReduce",
    "TwoHops",
]
