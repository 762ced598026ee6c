# Written by docs/generate.py (make docs): what type checkers see of the modules that this package finds.
from grace.memories.base import Memory as Memory
from grace.memories.distef import DistEF as DistEF
from grace.memories.ef21 import EF21 as EF21
from grace.memories.ef21 import EF21M as EF21M
from grace.memories.error_feedback import ErrorFeedback as ErrorFeedback
from grace.memories.momentum import Momentum as Momentum
from grace.memories.momentum_correction import MomentumCorrection as MomentumCorrection

__all__ = [
    "EF21",
    "EF21M",
    "DistEF",
    "ErrorFeedback",
    "Memory",
    "Momentum",
    "MomentumCorrection",
]
