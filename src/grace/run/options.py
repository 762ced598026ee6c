"""Options of an exchange beside the method, common to all integrations: checked once, and handed on whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias

from grace.contract.knobs import Count, Range, check_knobs, name_owner
from grace.contract.method import Method
from grace.registry.policy import Policy
from grace.transports.launchers import local_world

NonFinite: TypeAlias = Literal["propagate", "skip", "error"]
Granularity: TypeAlias = Literal["parameter", "bucket", "model"]
OnDifference: TypeAlias = Literal["error", "broadcast"]


@dataclass(frozen=True)
class Options:
    """Options of an exchange; the same on all ranks. A door takes them one by one, with these defaults, and makes this of
    them.

    Args:
        seed: of all random streams.
        nonfinite: what happens to a tensor in which some rank saw an inf or NaN: its mean is NaN ("propagate", so that loss
            scaling sees it) or 0 ("skip"), or NonFiniteError is raised ("error"). An accelerator raises it two steps later,
            since the host does not wait for the answer.
        steps_per_epoch: steps in an epoch, for schedules that count epochs; None: unknown.
        check: compare all collectives between ranks before they start; slow, for debugging.
        granularity: what is compressed as one tensor: each "parameter", each "bucket" of ``bucket_bytes``, or the "model".
        bucket_bytes: how much a bucket holds at least before the next one begins.
        check_replicas_every: steps from one comparison of the replicas to the next; 0: none. See :mod:`grace.run.replicas`.
        on_difference: what replicas that differ lead to: ReplicasDifferError ("error"), or copies of those that most ranks
            have ("broadcast"), where the parameters and the optimizer are known.
        checksum: whether payloads carry four bytes that are checked on receipt; see :mod:`grace.transports.checksummed`.
        local_world_size: how many workers a machine has: those of ``machine=local``, and the most that share memory. None:
            what GRACE_LOCAL_WORLD_SIZE says, or else the launcher.

    Raises:
        ConfigurationError: an option of another type, or out of range.

    Example:
        >>> Options(seed=3, granularity="model").bucket_bytes
        26214400
    """

    seed: int = 0
    nonfinite: NonFinite = "propagate"
    steps_per_epoch: Count | None = None
    check: bool = False
    granularity: Granularity = "parameter"
    bucket_bytes: int = 25 << 20
    check_replicas_every: Annotated[int, Range(0)] = 1000
    on_difference: OnDifference = "error"
    checksum: bool = False
    local_world_size: Count | None = None

    def __post_init__(self) -> None:
        check_knobs(self)

    def read(self, method: Policy | Method[Any] | str) -> Policy:
        """The policy that a user's words make where these options hold: as :meth:`grace.Policy.of`, and raises what it does.

        >>> Options(local_world_size=4).read("topk:memory=none,machine=local").method.machine
        4
        """
        with local_world(self.local_world_size):
            return Policy.of(method)


name_owner(Options, "grace")
DEFAULTS = Options()
