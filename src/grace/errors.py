"""Everything that Grace raises on purpose. Each class has its section in docs/concepts/errors.md.

What runs but is hardly intended is a GraceWarning (UserWarning), on rank 0: OptimizerWarning, an optimizer with which a method
diverges, or that a method must know and was not given; UncompressedWarning, a method that no tensor gets, or that saves
nothing; DivergenceWarning, a training that drifts apart; ReplicasWarning, replicas that differed.

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
    |   |-- StepMismatch (PayloadError)     ... in the step that they are at, found in what they sent
    |   `-- ReplicasDifferError             ... in the means that they applied, or in their parameters
    `-- TransportError (RuntimeError)       a collective that failed: a dead worker, a time-out, a refused operation
        `-- AbsentError                     ranks that did not come in time
"""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Iterable, Mapping, Sequence

_OWN = ("grace", "grace_bench")  # packages whose lines and classes are Grace's


class GraceError(Exception):
    """The root of the tree. ``see``: how to read on, which a traceback says on a line of its own (from Python 3.11 on)."""

    def __init__(self, *args: object):
        super().__init__(*args)
        self.__notes__ = [f"Read on: {self.see}"]

    @property
    def see(self) -> str:
        """Reference for errors of this kind: an address, or a command that prints it."""
        return _section(type(self))


class ConfigurationError(GraceError, ValueError):
    """A knob, policy or composition that cannot work."""


class UnknownNameError(ConfigurationError):
    """A name that is not registered."""


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


class GraceWarning(UserWarning):
    """The root of the warnings. Their text ends with how to read on, since no warning is shown with its notes."""

    def __str__(self) -> str:
        return f"{super().__str__().rstrip('.')}. Read on: {_section(type(self))}"


class OptimizerWarning(GraceWarning):
    """A method that needs another optimizer, or that must know the optimizer and was not given it."""


class UncompressedWarning(GraceWarning):
    """Nothing is compressed, or no less is sent than in bf16, although a method was asked for."""


class DivergenceWarning(GraceWarning):
    """The memories and the gradients keep growing: this training diverges."""


class ReplicasWarning(GraceWarning):
    """Replicas differed, and were repaired."""


class EnvironmentWarning(GraceWarning):
    """An environment variable with a name nearly that of one that Grace reads, or with a value that can make NCCL hang."""


class UnexchangedWarning(GraceWarning):
    """Parameters that are trained without an exchange of their gradients: each rank trains its own. It comes on each rank."""


class KernelsWarning(GraceWarning):
    """The native kernels are not there: what runs is slower."""


class AgreementError(GraceError, RuntimeError):
    """Ranks that differ where they must not."""


class FingerprintMismatch(AgreementError):
    """Ranks that were configured differently."""


class RoundMismatch(AgreementError):
    """Ranks that ask for different collectives in one round."""


class StepMismatch(AgreementError, PayloadError):
    """Ranks that are at different steps. A header that was damaged on its way looks the same."""


class ReplicasDifferError(AgreementError):
    """Ranks that have applied different means, or have different parameters. ``step``: the first one in which a mean was seen
    to differ, None if only the parameters were; ``ranks``: those that differ from most.
    """

    def __init__(self, message: str, step: int | None = None, ranks: Sequence[int] = ()):
        super().__init__(message)
        self.step, self.ranks = step, list(ranks)

    def __reduce__(self) -> tuple[type[ReplicasDifferError], tuple[str, int | None, list[int]]]:
        return type(self), (str(self), self.step, self.ranks)


class TransportError(GraceError, RuntimeError):
    """A collective that failed."""


class AbsentError(TransportError):
    """Ranks that did not come in time: ``ranks``, empty if it is unknown which."""

    def __init__(self, ranks: Sequence[int], message: str):
        super().__init__(message)
        self.ranks = list(ranks)

    def __reduce__(self) -> tuple[type[AbsentError], tuple[list[int], str]]:
        return type(self), (self.ranks, str(self))


def _section(kind: type[BaseException]) -> str:
    """Reference for errors of this kind; for a class that is not Grace's own, about the class that it extends."""
    own = next(base.__name__ for base in kind.__mro__ if base.__module__.partition(".")[0] in _OWN)
    page = _page()
    return f"grace explain {own}" if page is None else f"{page}#{own.lower()}"


@functools.cache
def _page() -> str | None:
    """The page on errors, on the site that pyproject.toml names as Documentation, if it does."""
    import importlib.metadata  # errors are rare, and starts are not

    try:
        urls = importlib.metadata.metadata("grace-dl").get_all("Project-URL") or []
    except importlib.metadata.PackageNotFoundError:  # sources on a path, not installed
        urls = []
    sites = (url.partition(", ")[2] for url in urls if url.startswith("Documentation, "))
    site = next(sites, None)
    return None if site is None else f"{site.rstrip('/')}/concepts/errors.html"


def stack_level() -> int:
    """For ``warnings.warn``, in the function that calls it: the nearest line that is not Grace's own."""
    frame, level = inspect.currentframe(), -1
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in _OWN:
        frame, level = frame.f_back, level + 1
    return max(1, level + 1)


_FEW = 16  # legal names that a message lists


def nearest(given: str, names: Iterable[str], cutoff: float = 0.6) -> list[str]:
    """Up to three of these names, the nearest first; their case does not matter."""
    lower = {name.lower(): name for name in names}
    return [lower[name] for name in difflib.get_close_matches(given.lower(), lower, n=3, cutoff=cutoff)]


def one_of(names: Iterable[str]) -> str:
    """``'a', 'b' or 'c'``."""
    *most, last = map(repr, names)
    return f"{', '.join(most)} or {last}" if most else last


def unknown(kind: str, given: str, legal: Iterable[str], hint: str = "") -> UnknownNameError:
    """The error for an unregistered name, with the nearest legal ones, and all of them where they are few.

    ``hint``: a sentence on what else to do.
    """
    names = sorted(legal)
    near = nearest(given, names)
    parts = [f"unknown {kind} {given!r}; did you mean {one_of(near)}?" if near else f"unknown {kind} {given!r}."]
    parts += [f"Legal: {', '.join(names) or 'none'}."] if len(names) <= _FEW else []
    return UnknownNameError(" ".join([*parts, hint]).rstrip())


def out_of_range(owner: str, knob: str, given: object, legal: str) -> ConfigurationError:
    """The error for a knob outside its range."""
    return ConfigurationError(f"{owner}: {knob}={given!r} is out of range; legal: {legal}")


def round_mismatch(asked: Mapping[int, str]) -> RoundMismatch:
    """The error for ranks that ask for different things: who asked for what."""
    ranks: dict[str, list[int]] = {}
    for rank, what in asked.items():
        ranks.setdefault(what, []).append(rank)
    told = "; ".join(f"ranks {who}: {what}" for what, who in ranks.items())
    return RoundMismatch(f"ranks ask for different collectives: {told}")
