"""Settings for all tests: one thread, for the same speed everywhere; examples that are the same in each run; Triton's kernels
in its interpreter where there is no GPU.
"""

from __future__ import annotations

import os

import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # triton reads it when it is imported
settings.register_profile(
    "grace",
    derandomize=True,
    deadline=None,
    max_examples=40,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("grace")
