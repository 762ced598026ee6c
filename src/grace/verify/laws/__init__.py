"""The laws, one in each file. Each is a function of a method and its inputs that raises AssertionError where it is broken; the
file's ``check`` runs it for a report.

Letters: W workers; n numbers; T steps; xs holds one tensor per worker.
"""

from __future__ import annotations

from grace.verify.laws.agreeing import agreement
from grace.verify.laws.bias import draw_means, unbiased
from grace.verify.laws.bytes_moved import traffic, varies
from grace.verify.laws.conserving import conservation, scatter_conserves
from grace.verify.laws.corrupting import corruption_is_refused
from grace.verify.laws.donating import answers_may_alias, in_place
from grace.verify.laws.edge_inputs import finite_stays_finite
from grace.verify.laws.error_bounds import bounds
from grace.verify.laws.failing import failure_leaves_memory
from grace.verify.laws.fusing import fused_equals_alone
from grace.verify.laws.keeping_rest import rest_is_free
from grace.verify.laws.losing_nothing import nothing_lost
from grace.verify.laws.nonfinite import nonfinite_is_agreed
from grace.verify.laws.randomness import independence, own_randomness
from grace.verify.laws.recovery import exact_recovery
from grace.verify.laws.rows import rows_stand_alone
from grace.verify.laws.saving import state_survives
from grace.verify.laws.wires import payload, summable
from grace.verify.running import (
    STEPS_PER_EPOCH,
    assert_untouched,
    average,
    clone_state,
    copy_tensor,
    leaves,
    run,
    same_bits,
    snapshot,
    tolerance,
)
from grace.verify.subject import conserves, is_memory, remembers

__all__ = [
    "STEPS_PER_EPOCH",
    "agreement",
    "answers_may_alias",
    "assert_untouched",
    "average",
    "bounds",
    "clone_state",
    "conservation",
    "conserves",
    "copy_tensor",
    "corruption_is_refused",
    "draw_means",
    "exact_recovery",
    "failure_leaves_memory",
    "finite_stays_finite",
    "fused_equals_alone",
    "in_place",
    "independence",
    "is_memory",
    "leaves",
    "nonfinite_is_agreed",
    "nothing_lost",
    "own_randomness",
    "payload",
    "remembers",
    "rest_is_free",
    "rows_stand_alone",
    "run",
    "same_bits",
    "scatter_conserves",
    "snapshot",
    "state_survives",
    "summable",
    "tolerance",
    "traffic",
    "unbiased",
    "varies",
]
