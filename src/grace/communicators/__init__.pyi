# Written by docs/generate.py (make docs): what type checkers see of the modules that this package finds.
from grace.communicators.allgather import Allgather as Allgather
from grace.communicators.allreduce import Allreduce as Allreduce
from grace.communicators.base import Communicator as Communicator
from grace.communicators.broadcast import Broadcasts as Broadcasts
from grace.communicators.hierarchical import Hierarchical as Hierarchical
from grace.communicators.one_hop import OneHop as OneHop
from grace.communicators.parameter_server import ParameterServer as ParameterServer
from grace.communicators.scatter_reduce import ScatterReduce as ScatterReduce
from grace.communicators.two_hops import TwoHops as TwoHops

__all__ = [
    "Allgather",
    "Allreduce",
    "Broadcasts",
    "Communicator",
    "Hierarchical",
    "OneHop",
    "ParameterServer",
    "ScatterReduce",
    "TwoHops",
]
