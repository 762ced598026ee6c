"""The methods: one paper, one file. Importing this package registers them."""

from __future__ import annotations

from grace.methods.acpsgd import ACPSGD
from grace.methods.atomosvd import AtomoSVD
from grace.methods.cast import BF16, FP16
from grace.methods.efsignsgd import EFSignSGD
from grace.methods.gradiveq import GradiVeQ
from grace.methods.gradzip import GradZip
from grace.methods.none import Identity
from grace.methods.powersgd import PowerSGD
from grace.methods.qsgd import QSGD
from grace.methods.randomk import RandomK
from grace.methods.signsgd import SignSGD
from grace.methods.threshold import Threshold
from grace.methods.topk import TopK

__all__ = [
    "ACPSGD",
    "BF16",
    "FP16",
    "QSGD",
    "AtomoSVD",
    "EFSignSGD",
    "GradZip",
    "GradiVeQ",
    "Identity",
    "PowerSGD",
    "RandomK",
    "SignSGD",
    "Threshold",
    "TopK",
]
