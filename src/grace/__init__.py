"""Grace: gradient compression for distributed deep learning."""

from __future__ import annotations

import grace.methods as _methods  # registers them  # noqa: F401
from grace.adapters.local_steps import LocalSteps, local
from grace.adapters.torch_ddp import Handle, attach
from grace.collectives import Traffic
from grace.communicators import Allgather, Allreduce, Broadcast, ParameterServer, ScatterReduce
from grace.compressor import Compressor
from grace.errors import GraceError
from grace.facts import Facts
from grace.helpers import dequantize, desparsify, pack, quantize, sparsify, unpack
from grace.lent import Lent
from grace.loan import Loan
from grace.memories import EF21, EF21M, DistEF, ErrorFeedback, Momentum, MomentumCorrection
from grace.method import Exchanged, Method
from grace.methods import (
    ACPSGD,
    BF16,
    DGC,
    DRIVE,
    EDEN,
    FP8,
    FP16,
    LPC,
    QSGD,
    RHT,
    THC,
    AdaQ,
    Atomo,
    AtomoSVD,
    BlockRandomK,
    EFSignSGD,
    GradiVeQ,
    GradZip,
    GSpar,
    Identity,
    Inceptionn,
    Lossless,
    Natural,
    OneBit,
    PowerSGD,
    Qsparse,
    RandomK,
    SIDCo,
    SignSGD,
    Signum,
    Sketch,
    SketchedSGD,
    SketchML,
    Strom,
    TernGrad,
    ThreeLC,
    Threshold,
    TopK,
    U8bit,
    VarSparse,
)
from grace.peer import Peer
from grace.policy import Policy, Rule
from grace.registry import method, methods, register, spell
from grace.run.simulator import Simulator
from grace.schedules import Schedule
from grace.transports.torch_distributed import init_process_group
from grace.version import __version__ as __version__

__all__ = [
    "ACPSGD",
    "BF16",
    "DGC",
    "DRIVE",
    "EDEN",
    "EF21",
    "EF21M",
    "FP8",
    "FP16",
    "LPC",
    "QSGD",
    "RHT",
    "THC",
    "AdaQ",
    "Allgather",
    "Allreduce",
    "Atomo",
    "AtomoSVD",
    "BlockRandomK",
    "Broadcast",
    "Compressor",
    "DistEF",
    "EFSignSGD",
    "ErrorFeedback",
    "Exchanged",
    "Facts",
    "GSpar",
    "GraceError",
    "GradZip",
    "GradiVeQ",
    "Handle",
    "Identity",
    "Inceptionn",
    "Lent",
    "Loan",
    "LocalSteps",
    "Lossless",
    "Method",
    "Momentum",
    "MomentumCorrection",
    "Natural",
    "OneBit",
    "ParameterServer",
    "Peer",
    "Policy",
    "PowerSGD",
    "Qsparse",
    "RandomK",
    "Rule",
    "SIDCo",
    "ScatterReduce",
    "Schedule",
    "SignSGD",
    "Signum",
    "Simulator",
    "Sketch",
    "SketchML",
    "SketchedSGD",
    "Strom",
    "TernGrad",
    "ThreeLC",
    "Threshold",
    "TopK",
    "Traffic",
    "U8bit",
    "VarSparse",
    "attach",
    "dequantize",
    "desparsify",
    "init_process_group",
    "local",
    "method",
    "methods",
    "pack",
    "quantize",
    "register",
    "sparsify",
    "spell",
    "unpack",
]
