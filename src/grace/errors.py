"""Everything that Grace raises on purpose.

::

    GraceError
    |-- ConfigurationError (ValueError)     a knob, a policy or a composition that cannot work: raised at construction
    |   |-- UnknownNameError                a method, knob or task that is not registered; names the nearest
    |   `-- CompositionError                pieces that do not fit together, such as Allreduce(TopK())
    |-- DataError (ValueError)              a data set that is not there, or whose files are not what they should be
    |-- InputError (TypeError)              a tensor that Grace does not exchange: complex, sparse, integer
    |-- PayloadError (ValueError)           bytes from the network that are not what they should be
    |-- StateError (ValueError)             a checkpoint that does not fit this model or method
    |-- NonFiniteError (ArithmeticError)    an inf or NaN in a gradient, where the user asked for an error
    |-- AgreementError (RuntimeError)       ranks that differ
    |   |-- FingerprintMismatch             ... in their methods, policies or models, found at the start
    |   |-- RoundMismatch                   ... in the collective that they ask for, found while running
    |   `-- StepMismatch (PayloadError)     ... in the step that they are at, found in what they sent
    `-- TransportError (RuntimeError)       a collective that failed: a dead worker, a time-out, a refused operation
        `-- AbsentError                     ranks that did not come in time
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


class GraceError(Exception):
    """The root of the tree."""


class ConfigurationError(GraceError, ValueError):
    """A knob, policy or composition that cannot work."""


class UnknownNameError(ConfigurationError):
    """A name that nobody registered."""


class CompositionError(ConfigurationError):
    """Pieces that do not fit together."""


class DataError(GraceError, ValueError):
    """A data set that is not there, or whose files are not what they should be."""


class InputError(GraceError, TypeError):
    """A tensor that Grace does not exchange."""


class PayloadError(GraceError, ValueError):
    """A payload that does not decode; the message names the field."""


class StateError(GraceError, ValueError):
    """A checkpoint that does not fit."""


class NonFiniteError(GraceError, ArithmeticError):
    """An inf or NaN in some rank's gradient (``nonfinite="error"``); ``tensors`` names where."""

    def __init__(self, message: str, tensors: Sequence[str] = ()):
        super().__init__(message)
        self.tensors = list(tensors)


class AgreementError(GraceError, RuntimeError):
    """Ranks that differ where they must not."""


class FingerprintMismatch(AgreementError):
    """Ranks that were configured differently."""


class RoundMismatch(AgreementError):
    """Ranks that ask for different collectives in one round."""


class StepMismatch(AgreementError, PayloadError):
    """Ranks that are at different steps. A header that was damaged on its way reads the same."""


class TransportError(GraceError, RuntimeError):
    """A collective that failed."""


class AbsentError(TransportError):
    """Ranks that did not come in time: ``ranks``, empty if nobody knows which."""

    def __init__(self, ranks: Sequence[int], message: str):
        super().__init__(message)
        self.ranks = list(ranks)

    def __reduce__(self) -> tuple[type[AbsentError], tuple[list[int], str]]:
        return type(self), (self.ranks, str(self))


def unknown(kind: str, given: str, legal: Iterable[str]) -> UnknownNameError:
    """The error for an unregistered name, with the legal names and the nearest one."""
    names = sorted(legal)
    near = difflib.get_close_matches(given, names, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return UnknownNameError(f"unknown {kind} {given!r}{hint} Legal: {', '.join(names) or 'none'}.")


def out_of_range(owner: str, knob: str, given: object, legal: str) -> ConfigurationError:
    """The error for a knob outside its range."""
    return ConfigurationError(f"{owner}: {knob}={given!r} is out of range; legal: {legal}")


def round_mismatch(asked: Sequence[str]) -> RoundMismatch:
    """The error for ranks that ask for different things: who asked for what. ``asked`` is in the order of the ranks."""
    ranks: dict[str, list[int]] = {}
    for rank, what in enumerate(asked):
        ranks.setdefault(what, []).append(rank)
    told = "; ".join(f"ranks {who}: {what}" for what, who in ranks.items())
    return RoundMismatch(f"ranks ask for different collectives: {told}")
