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
_QUEUES = "CUDA_DEVICE_MAX_CONNECTIONS"


def explain_one_queue(environment: Mapping[str, str] = os.environ) -> str | None:
    """The danger of one hardware queue for all streams of a GPU, as Megatron asks for it; None if there are more.

    Grace's collectives have a communicator and a stream of their own beside those of the model (tensor parallelism,
    SyncBatchNorm). With one queue the kernel of one communicator may stand behind the other's, in another order on each rank:
    each then waits for the other.
    """
    if environment.get(_QUEUES) != "1":
        return None
    return (
        f"{_QUEUES}=1 gives all streams of a GPU one queue: NCCL's communicators of the model and of Grace can then wait for "
        f"each other on different ranks without end; unset it, or set {_QUEUES}=8 or more"
    )


def warn_one_queue() -> None:
    """Warns of :func:`explain_one_queue`: called where NCCL gets a second communicator."""
    if (text := explain_one_queue()) is not None:
        warnings.warn(text, EnvironmentWarning, stacklevel=stack_level())


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
