"""The environment variables that Grace reads, in one table, and the warning about one that is misspelt."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping

from grace.errors import EnvironmentWarning, nearest, one_of, stack_level

VARIABLES = {
    "GRACE_KERNELS": "which kernels run: reference, native, native-ISA or triton",
    "GRACE_PLANS": "0: each tensor is exchanged on its own; 1: tensors of one method as one batch",
    "GRACE_TRANSPORT": "what moves bytes where a script leaves the transport at auto, such as gloo or mpi",
    "GRACE_LOCAL_WORLD_SIZE": "how many workers a machine has",
    "GRACE_CACHE": "the folder in which built data sets are kept",
}
_PREFIX = "GRACE_"


def warn_misspelt(environment: Mapping[str, str] = os.environ) -> None:
    """Warns of each variable that Grace does not know, but whose name is nearly one that it does.

    Others that begin alike, such as a cluster's own, are nobody's mistake.
    """
    tails = {name.removeprefix(_PREFIX): name for name in VARIABLES}
    for name in sorted(environment):
        if not name.startswith(_PREFIX) or name in VARIABLES:
            continue
        if near := nearest(name.removeprefix(_PREFIX), tails):
            meant = one_of([tails[tail] for tail in near])
            warnings.warn(
                f"the environment variable {name} is not read; did you mean {meant}? Legal: {', '.join(VARIABLES)}",
                EnvironmentWarning,
                stacklevel=stack_level(),
            )
