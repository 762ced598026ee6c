# Written by docs/generate.py (make docs): what type checkers see of the modules that this package finds.
from grace.methods.acpsgd import ACPSGD as ACPSGD
from grace.methods.adaq import AdaQ as AdaQ
from grace.methods.atomo import Atomo as Atomo
from grace.methods.atomosvd import AtomoSVD as AtomoSVD
from grace.methods.bf16 import BF16 as BF16
from grace.methods.blockrandomk import BlockRandomK as BlockRandomK
from grace.methods.chunktopk import ChunkTopK as ChunkTopK
from grace.methods.dgc import DGC as DGC
from grace.methods.drive import DRIVE as DRIVE
from grace.methods.e3m0 import E3M0 as E3M0
from grace.methods.eden import EDEN as EDEN
from grace.methods.efsignsgd import EFSignSGD as EFSignSGD
from grace.methods.fp8 import FP8 as FP8
from grace.methods.fp16 import FP16 as FP16
from grace.methods.gradiveq import GradiVeQ as GradiVeQ
from grace.methods.gradzip import GradZip as GradZip
from grace.methods.gspar import GSpar as GSpar
from grace.methods.inceptionn import Inceptionn as Inceptionn
from grace.methods.lossless import Lossless as Lossless
from grace.methods.lpc import LPC as LPC
from grace.methods.minmax import MinMax as MinMax
from grace.methods.natural import Natural as Natural
from grace.methods.none import Identity as Identity
from grace.methods.onebit import OneBit as OneBit
from grace.methods.powersgd import PowerSGD as PowerSGD
from grace.methods.qsgd import QSGD as QSGD
from grace.methods.qsparse import Qsparse as Qsparse
from grace.methods.randomk import RandomK as RandomK
from grace.methods.rht import RHT as RHT
from grace.methods.sidco import SIDCo as SIDCo
from grace.methods.signsgd import SignSGD as SignSGD
from grace.methods.signum import Signum as Signum
from grace.methods.sketch import Sketch as Sketch
from grace.methods.sketchedsgd import SketchedSGD as SketchedSGD
from grace.methods.sketchml import SketchML as SketchML
from grace.methods.strom import Strom as Strom
from grace.methods.terngrad import TernGrad as TernGrad
from grace.methods.thc import THC as THC
from grace.methods.three_lc import ThreeLC as ThreeLC
from grace.methods.threshold import Threshold as Threshold
from grace.methods.topk import TopK as TopK
from grace.methods.u8bit import U8bit as U8bit
from grace.methods.varsparse import VarSparse as VarSparse

__all__ = [
    "ACPSGD",
    "BF16",
    "DGC",
    "DRIVE",
    "E3M0",
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
    "ChunkTopK",
    "EFSignSGD",
    "GSpar",
    "GradZip",
    "GradiVeQ",
    "Identity",
    "Inceptionn",
    "Lossless",
    "MinMax",
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
