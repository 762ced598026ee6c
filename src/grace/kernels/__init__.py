"""Coarse operations on rows of numbers, the hot paths of the methods: a folder for each family of them.

``grace.compute.dispatch`` says what a family's files are, and which of them runs.
"""

from __future__ import annotations

from grace.compute.portable import *
from grace.kernels.affine import *
from grace.kernels.blocks import *
from grace.kernels.casts import *
from grace.kernels.codebook import *
from grace.kernels.counted import *
from grace.kernels.factors import *
from grace.kernels.finite import *
from grace.kernels.fixed import *
from grace.kernels.floats import *
from grace.kernels.gap_lists import *
from grace.kernels.hashing import *
from grace.kernels.index_lists import *
from grace.kernels.levels import *
from grace.kernels.low_rank import *
from grace.kernels.many import *
from grace.kernels.minmax import *
from grace.kernels.momentum import *
from grace.kernels.packing import *
from grace.kernels.powers import *
from grace.kernels.quantiles import *
from grace.kernels.quartic import *
from grace.kernels.rotation import *
from grace.kernels.sampling import *
from grace.kernels.selection import *
from grace.kernels.signs import *
from grace.kernels.spans import *
from grace.kernels.sparse import *
from grace.kernels.statistics import *
from grace.kernels.subsets import *
from grace.kernels.sums import *
from grace.kernels.tables import *
from grace.kernels.tagged import *
from grace.kernels.tails import *
