"""Coarse operations on rows of numbers, the hot paths of the methods: a folder for each family of them.

``grace.compute.dispatch`` says what a family's files are, and which of them runs.
"""

from __future__ import annotations

from grace.compute.portable import *
from grace.kernels.affine import *
from grace.kernels.blocks import *
from grace.kernels.casts import *
from grace.kernels.count_sketches import *
from grace.kernels.dynamic_8bit import *
from grace.kernels.exceedances import *
from grace.kernels.finite import *
from grace.kernels.fp8 import *
from grace.kernels.index_codes.fixed import *
from grace.kernels.index_codes.variable import *
from grace.kernels.linear_quantization import *
from grace.kernels.log2_quantization import *
from grace.kernels.lookup_table import *
from grace.kernels.low_rank import *
from grace.kernels.low_rank.grouped import *
from grace.kernels.minmax_sketch import *
from grace.kernels.momentum import *
from grace.kernels.packing import *
from grace.kernels.quantiles import *
from grace.kernels.random_masks import *
from grace.kernels.rotation import *
from grace.kernels.sampling import *
from grace.kernels.selection import *
from grace.kernels.signs import *
from grace.kernels.spans import *
from grace.kernels.sparse import *
from grace.kernels.statistics import *
from grace.kernels.stochastic_levels import *
from grace.kernels.sums import *
from grace.kernels.tagged_fixed_point import *
from grace.kernels.tensor_list import *
from grace.kernels.ternary import *
from grace.kernels.variable_sparse import *
