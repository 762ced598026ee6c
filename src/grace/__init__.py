"""Grace: gradient compression for distributed deep learning."""

from __future__ import annotations

import typing as _typing

import grace.methods as _methods
from grace import communicators as _communicators
from grace import memories as _memories
from grace import optim as optim
from grace.adapters.attach import attach
from grace.adapters.broadcast import broadcast_object, broadcast_optimizer_state, broadcast_parameters
from grace.adapters.doors import register_door
from grace.adapters.handle import Handle
from grace.adapters.momentum import momentum_in_memory
from grace.adapters.outer.door import LocalSteps, local, outer
from grace.adapters.outer.loop import OuterLoop
from grace.adapters.torch_optimizer import DistributedOptimizer
from grace.auto.settings import Auto
from grace.collectives import Traffic
from grace.communicators import *
from grace.contract.compressor import Compressor
from grace.contract.conversation import Conversation
from grace.contract.facts import Facts
from grace.contract.lent import Lent
from grace.contract.loan import Loan
from grace.contract.method import Exchanged, Method
from grace.contract.needs import Needs
from grace.contract.peer import Peer
from grace.contract.wrapping import layers
from grace.environment import warn_misspelt as _warn_misspelt
from grace.errors import (
    DivergenceWarning,
    GraceError,
    GraceWarning,
    OptimizerWarning,
    UncompressedWarning,
    UnexchangedWarning,
)
from grace.memories import *
from grace.methods import *
from grace.registry import method, register, register_communicator, register_memory, spell
from grace.registry.policy import Policy, Rule
from grace.run.simulator import Simulator
from grace.schedules import Schedule
from grace.survey import dequantize, desparsify, pack, quantize, sparsify, unpack
from grace.transports.candidates import register_transport
from grace.transports.choose import transport
from grace.transports.meeting import init_process_group
from grace.version import __version__ as __version__

if _typing.TYPE_CHECKING:  # what calls of these packages give
    from grace.decoupled import decoupled
    from grace.gossip.door import gossip
    from grace.registry import methods
else:
    from grace import decoupled, gossip, methods

__all__ = [
    "Auto",
    "Compressor",
    "Conversation",
    "DistributedOptimizer",
    "DivergenceWarning",
    "Exchanged",
    "Facts",
    "GraceError",
    "GraceWarning",
    "Handle",
    "Lent",
    "Loan",
    "LocalSteps",
    "Method",
    "Needs",
    "OptimizerWarning",
    "OuterLoop",
    "Peer",
    "Policy",
    "Rule",
    "Schedule",
    "Simulator",
    "Traffic",
    "UncompressedWarning",
    "UnexchangedWarning",
    "attach",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "decoupled",
    "dequantize",
    "desparsify",
    "gossip",
    "init_process_group",
    "layers",
    "local",
    "method",
    "methods",
    "momentum_in_memory",
    "outer",
    "pack",
    "quantize",
    "register",
    "register_communicator",
    "register_door",
    "register_memory",
    "register_transport",
    "sparsify",
    "spell",
    "transport",
    "unpack",
]
__all__ += _communicators.__all__
__all__ += _memories.__all__
__all__ += _methods.__all__
_warn_misspelt()
