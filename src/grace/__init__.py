"""Grace: gradient compression for distributed deep learning."""

from __future__ import annotations

import grace.methods as _methods  # registers them  # noqa: F401
from grace.adapters.torch_ddp import Handle, attach
from grace.collectives import Traffic
from grace.communicators import Allgather, Allreduce, Broadcast, ParameterServer, ScatterReduce
from grace.errors import GraceError
from grace.memories import ErrorFeedback, Momentum
from grace.method import Compressor, Exchanged, Facts, Method, Peer
from grace.methods import BF16, FP16, QSGD, EFSignSGD, Identity, PowerSGD, RandomK, SignSGD, Threshold, TopK
from grace.policy import Policy, Rule
from grace.registry import method, methods, register, spell
from grace.run.simulator import Simulator
from grace.transports.torch_distributed import init_process_group

__version__ = "0.1.0"

__all__ = [
    "BF16",
    "FP16",
    "QSGD",
    "Allgather",
    "Allreduce",
    "Broadcast",
    "Compressor",
    "EFSignSGD",
    "ErrorFeedback",
    "Exchanged",
    "Facts",
    "GraceError",
    "Handle",
    "Identity",
    "Method",
    "Momentum",
    "ParameterServer",
    "Peer",
    "Policy",
    "PowerSGD",
    "RandomK",
    "Rule",
    "ScatterReduce",
    "SignSGD",
    "Simulator",
    "Threshold",
    "TopK",
    "Traffic",
    "attach",
    "init_process_group",
    "method",
    "methods",
    "register",
    "spell",
]
