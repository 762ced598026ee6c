"""Parameters that an optimizer changes although their gradients were not exchanged: each rank trains its own.

An exchange may be missed for many reasons, and none of them is an error of torch's: the module inside the wrapper was called,
the wrapper's hooks were lost, a second backward pass added to means, a parameter came later. They have in common that a
gradient has come since the last exchange, or comes to a parameter that nobody exchanges, and that an optimizer steps with it.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from grace.adapters.backward import on_arrival
from grace.adapters.optimizer_steps import HeldParameters, listen
from grace.adapters.trained import find_in_ddp, is_split
from grace.errors import ConfigurationError, UnexchangedWarning, stack_level
from grace.run.session import Session

_WHOLE = 3  # exchanges in which every gradient is watched: what a loop does wrong, it does from its first step on
_WATCHED = 8  # parameters that are watched after that: a hook takes a microsecond, and some models have a thousand
_TOLD = 5  # names in a warning

_LOST = (
    "they got gradients, and no exchange was made. Call the wrapped model itself, not its .module; after .to() to another "
    "dtype or device, as .double(), which takes the wrapper's hooks away, wrap the module anew and attach again"
)
_TWICE = (
    "a backward pass added to their gradients after these had been exchanged. Add the losses up and call backward() once, or "
    "make all passes but the last under no_sync(), forward and backward"
)
_NEW = "they are no part of what was wrapped and attached. {}"


@dataclass(slots=True)
class _Trained:
    """Parameters that one optimizer trains, of any shapes, by name: those that are exchanged, and those that nobody exchanges.

    sizes: of its groups of parameters, by which new parameters are noticed. seen: exchanges made when it last stepped.
    """

    sizes: list[int]
    held: Mapping[str, Tensor]
    strangers: Mapping[str, Tensor]
    seen: int


class Unexchanged:
    """Names the parameters of one model that an optimizer has changed without an exchange, each once, on each rank.

    Args:
        model: the wrapped module; new parameters are found in it. It is not kept alive.
        exchanged: those whose gradients are exchanged, of any shapes, by name.
        ignored: names of those that are left out on purpose.
        apart: whether gradients of the running backward pass are meant to stay this rank's, as under ``no_sync``.
        remedy: what to do about parameters that came later, for users.
        optimizer: the one that was given with the model; parameters that no model has are named if it trains them.
        session: whose replicas are compared every so many steps.
    """

    def __init__(
        self,
        model: nn.Module,
        exchanged: Mapping[str, Tensor],
        ignored: Iterable[str],
        *,
        apart: Callable[[], bool],
        remedy: str,
        optimizer: torch.optim.Optimizer | None,
        session: Session,
    ):
        self._model, self._exchanged, self._ignored = weakref.ref(model), exchanged, frozenset(ignored)
        self.apart, self._remedy, self._session = apart, remedy, session
        self._given = None if optimizer is None else weakref.ref(optimizer)
        self._known = HeldParameters({p: name for name, p in exchanged.items()})
        self._of: weakref.WeakKeyDictionary[torch.optim.Optimizer, _Trained] = weakref.WeakKeyDictionary()
        self._told: set[str] = set()
        self._arrived: set[str] = set()  # whose gradients have come since the last exchange
        self._exchanges = 0
        self._hooks: dict[str, RemovableHandle] = {}
        self._open = True
        listen(self)

    # ---- what has come, and what was exchanged ----------------------------------------------------------------------
    def watch(self) -> None:
        """Notes which gradients come: all until some exchanges have been made, then those of a few parameters."""
        me = weakref.ref(self)
        for name, p in self._exchanged.items():
            if name not in self._hooks:
                self._hooks[name] = p.register_post_accumulate_grad_hook(on_arrival(me, name))  # type: ignore[no-untyped-call]

    def arrive(self, name: str) -> None:
        """Notes that a backward pass has accumulated into this gradient."""
        if not self.apart():
            self._arrived.add(name)

    def exchanged(self) -> None:
        """Notes that all gradients that have come are means now."""
        self._arrived.clear()
        self._exchanges += 1
        if self._exchanges == _WHOLE and len(self._hooks) > _WATCHED:
            names = list(self._hooks)
            kept = {names[place * (len(names) - 1) // (_WATCHED - 1)] for place in range(_WATCHED)}
            for name in names:
                if name not in kept:
                    self._hooks.pop(name).remove()

    # ---- what was changed -------------------------------------------------------------------------------------------
    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """Names what this optimizer has changed, and was not exchanged; see :mod:`grace.adapters.optimizer_steps`."""
        if not self._open:
            return
        trained = self._find(optimizer)
        held = trained.held
        if self._arrived and held:
            lost = trained.seen == self._exchanges
            come = held if lost and len(self._hooks) < len(self._exchanged) else self._arrived
            self._name({name: p for name, p in held.items() if name in come}, _LOST if lost else _TWICE)
            self._arrived.difference_update(held)
        if trained.strangers:
            self._name(trained.strangers, _NEW.format(self._remedy))
        if held:
            trained.seen = self._exchanges
            if self._given is None or self._given() is optimizer:
                self._session.replicas.count_optimizer_step()

    def _name(self, parameters: Mapping[str, Tensor], why: str) -> None:
        """Warns of those among them that have changed."""
        changed = [n for n, p in parameters.items() if p.requires_grad and p.grad is not None and n not in self._told]
        if changed:
            self._told.update(changed)
            warnings.warn(
                f"an optimizer changes {list_names(changed)} on this rank alone: {why}. Ranks drift apart from here on",
                UnexchangedWarning,
                stacklevel=stack_level(),
            )

    def _find(self, optimizer: torch.optim.Optimizer) -> _Trained:
        """Sorts what this optimizer trains; remembered until it has other parameters."""
        sizes = [len(group["params"]) for group in optimizer.param_groups]
        known = self._of.get(optimizer)
        if known is None or known.sizes != sizes:
            held, seen = self._known.by(optimizer), 0 if known is None else known.seen
            known = self._of[optimizer] = _Trained(sizes, held, self._find_strangers(optimizer, held.values()), seen)
        return known

    def _find_strangers(self, optimizer: torch.optim.Optimizer, held: Iterable[Tensor]) -> dict[str, Tensor]:
        model = self._model()
        if model is None:
            return {}
        exchanged, given = set(held), self._given is not None and self._given() is optimizer
        named = {p: name for name, p in model.named_parameters()}
        strangers: dict[str, Tensor] = {}
        for number, group in enumerate(optimizer.param_groups):
            for place, p in enumerate(group["params"]):
                if p in exchanged or named.get(p) in self._ignored or is_split(p):
                    continue
                if p in named:
                    strangers[named[p]] = p
                elif given:
                    strangers[f"group{number}.{place}, of shape {tuple(p.shape)} and in no model that is attached"] = p
        if given and any(p not in named for p in strangers.values()):  # it may train other models, which exchange
            elsewhere = find_in_ddp({name: p for name, p in strangers.items() if p not in named})
            strangers = {name: p for name, p in strangers.items() if name not in elsewhere}
        return strangers

    def close(self) -> None:
        """Names nothing from now on."""
        self._open = False
        for hook in self._hooks.values():
            hook.remove()
        self._hooks.clear()


def list_names(names: Iterable[str]) -> str:
    """The first few names, and how many more there are."""
    given = list(names)
    more = len(given) - _TOLD
    return ", ".join(repr(name) for name in given[:_TOLD]) + (f" and {more} more" if more > 0 else "")


def refuse_foreign(optimizer: torch.optim.Optimizer | None, parameters: Iterable[Tensor], optimizes: str) -> None:
    """Refuses an optimizer that trains nothing of a model: its settings would be checked and followed in vain.

    Args:
        optimizer: None passes.
        parameters: all of the model, of any shapes.
        optimizes: a line of code that makes the right one.

    Raises:
        ConfigurationError: it trains other parameters only; names some.
    """
    if optimizer is None:
        return
    of_model = set(parameters)
    held = [
        (names[place] if (names := group.get("param_names")) else f"group{number}.{place} of shape {tuple(p.shape)}", p)
        for number, group in enumerate(optimizer.param_groups)
        for place, p in enumerate(group["params"])
    ]
    if held and not any(p in of_model for _, p in held):
        raise ConfigurationError(
            f"optimizer= trains {list_names(name for name, _ in held)}, and no parameter of this model: it is of another "
            f"model, or was made before the model's parameters were replaced. Give the one of this model, {optimizes}; or "
            "leave optimizer= out, and set handle.lr where a memory follows the learning rate"
        )
