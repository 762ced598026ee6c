"""The methods: one paper, one file. Importing this package registers them."""

from __future__ import annotations

from grace.methods.atomo import Atomo
from grace.methods.blockrandomk import BlockRandomK
from grace.methods.cast import BF16, FP16
from grace.methods.efsignsgd import EFSignSGD
from grace.methods.gspar import GSpar
from grace.methods.lossless import Lossless
from grace.methods.none import Identity
from grace.methods.powersgd import PowerSGD
from grace.methods.qsgd import QSGD
from grace.methods.qsparse import Qsparse
from grace.methods.randomk import RandomK
from grace.methods.sidco import SIDCo
from grace.methods.signsgd import SignSGD
from grace.methods.threshold import Threshold
from grace.methods.topk import TopK

__all__ = [
    "BF16",
    "FP16",
    "QSGD",
    "Atomo",
    "BlockRandomK",
    "EFSignSGD",
    "GSpar",
    "Identity",
    "Lossless",
    "PowerSGD",
    "Qsparse",
    "RandomK",
    "SIDCo",
    "SignSGD",
    "Threshold",
    "TopK",
]
