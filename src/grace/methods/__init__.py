"""The methods: one paper, one file. Importing this package registers them."""

from __future__ import annotations

from grace.methods.adaq import AdaQ
from grace.methods.cast import BF16, FP16
from grace.methods.dgc import DGC
from grace.methods.efsignsgd import EFSignSGD
from grace.methods.none import Identity
from grace.methods.powersgd import PowerSGD
from grace.methods.qsgd import QSGD
from grace.methods.randomk import RandomK
from grace.methods.signsgd import SignSGD
from grace.methods.sketch import Sketch
from grace.methods.sketchedsgd import SketchedSGD
from grace.methods.sketchml import SketchML
from grace.methods.strom import Strom
from grace.methods.threshold import Threshold
from grace.methods.topk import TopK
from grace.methods.varsparse import VarSparse

__all__ = [
    "BF16",
    "DGC",
    "FP16",
    "QSGD",
    "AdaQ",
    "EFSignSGD",
    "Identity",
    "PowerSGD",
    "RandomK",
    "SignSGD",
    "Sketch",
    "SketchML",
    "SketchedSGD",
    "Strom",
    "Threshold",
    "TopK",
    "VarSparse",
]
