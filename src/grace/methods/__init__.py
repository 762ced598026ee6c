"""The methods: one paper, one file. Importing this package registers them."""

from __future__ import annotations

from grace.methods.acpsgd import ACPSGD
from grace.methods.adaq import AdaQ
from grace.methods.atomo import Atomo
from grace.methods.atomosvd import AtomoSVD
from grace.methods.bf16 import BF16
from grace.methods.blockrandomk import BlockRandomK
from grace.methods.dgc import DGC
from grace.methods.drive import DRIVE
from grace.methods.eden import EDEN
from grace.methods.efsignsgd import EFSignSGD
from grace.methods.fp8 import FP8
from grace.methods.fp16 import FP16
from grace.methods.gradiveq import GradiVeQ
from grace.methods.gradzip import GradZip
from grace.methods.gspar import GSpar
from grace.methods.inceptionn import Inceptionn
from grace.methods.lossless import Lossless
from grace.methods.lpc import LPC
from grace.methods.natural import Natural
from grace.methods.none import Identity
from grace.methods.onebit import OneBit
from grace.methods.powersgd import PowerSGD
from grace.methods.qsgd import QSGD
from grace.methods.qsparse import Qsparse
from grace.methods.randomk import RandomK
from grace.methods.rht import RHT
from grace.methods.sidco import SIDCo
from grace.methods.signsgd import SignSGD
from grace.methods.signum import Signum
from grace.methods.sketch import Sketch
from grace.methods.sketchedsgd import SketchedSGD
from grace.methods.sketchml import SketchML
from grace.methods.strom import Strom
from grace.methods.terngrad import TernGrad
from grace.methods.thc import THC
from grace.methods.three_lc import ThreeLC
from grace.methods.threshold import Threshold
from grace.methods.topk import TopK
from grace.methods.u8bit import U8bit
from grace.methods.varsparse import VarSparse

__all__ = [
    "ACPSGD",
    "BF16",
    "DGC",
    "DRIVE",
    "EDEN",
    "FP8",
    "FP16",
    "LPC",
    "QSGD",
    "RHT",
    "THC",
    "AdaQ",
    "Atomo",
    "AtomoSVD",
    "BlockRandomK",
    "EFSignSGD",
    "GSpar",
    "GradZip",
    "GradiVeQ",
    "Identity",
    "Inceptionn",
    "Lossless",
    "Natural",
    "OneBit",
    "PowerSGD",
    "Qsparse",
    "RandomK",
    "SIDCo",
    "SignSGD",
    "Signum",
    "Sketch",
    "SketchML",
    "SketchedSGD",
    "Strom",
    "TernGrad",
    "ThreeLC",
    "Threshold",
    "TopK",
    "U8bit",
    "VarSparse",
]
