"""A worker's state in plain containers of tensors, and back: nothing read from a file is taken on trust."""

from __future__ import annotations

import sys
import zlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from grace.contract.method import Method
from grace.errors import ConfigurationError, StateError
from grace.registry import read_method, spell
from grace.registry.policy import Policy

VERSION = 2  # of the state
_KEYS = {
    "version": int, "rank": int, "world": int, "step": int, "seed": int, "policy": str, "methods": Mapping,
    "states": Mapping, "owed": Mapping, "checksum": int,
}  # fmt: skip

_ALONE, _SHARED = frozenset({"own", "together"}), frozenset({"shared"})  # kinds of parts of a state


class OwnState(OrderedDict[str, Any]):
    """The state of one rank, as a door gives it. ``torch.distributed.checkpoint`` would keep one rank's tensors of each name
    and drop the others': so it is refused the items. Pickled, it is an OrderedDict, which ``weights_only`` admits.
    """

    def items(self) -> Any:
        """As of any dictionary.

        Raises:
            StateError: ``torch.distributed.checkpoint`` asks.
        """
        refuse_dcp()
        return super().items()

    def __reduce__(self) -> tuple[Any, ...]:
        return OrderedDict, (), None, None, iter(self.items())


def refuse_dcp() -> None:
    """Keeps the state of one rank out of a checkpoint of all ranks, where it would stand for the others', too.

    Raises:
        StateError: ``torch.distributed.checkpoint`` is among the callers.
    """
    frame = sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_globals.get("__name__", "").startswith("torch.distributed.checkpoint."):
            raise StateError(
                "torch.distributed.checkpoint keeps one rank's tensors of each name, and memories are each rank's own; save "
                "and load handle.checkpoint() instead of the handle or its state_dict(): "
                'dcp.save({"grace": handle.checkpoint()})'
            )


@dataclass(frozen=True, slots=True)
class WorkerState:
    """State that a worker goes on from. states: method and state by tensor. owed: left by earlier methods, by tensor.
    instalments: over how many gradients that is spread, where not over one.
    """

    step: int
    seed: int
    states: dict[str, tuple[Method[Any], Any]]
    owed: dict[str, Tensor]
    instalments: Mapping[str, int] = field(default_factory=dict)

    def save(self, rank: int, world: int, policy: Policy) -> dict[str, Any]:
        """Plain containers; tensors are copied."""
        states = {name: copy_state(state) for name, (_, state) in self.states.items()}
        owed = {name: x.clone() for name, x in self.owed.items()}
        held = {id(method): method for method, _ in self.states.values()}  # most tensors have the same
        texts = {key: spell(method) for key, method in held.items()}
        who: dict[str, Any] = {"version": VERSION, "rank": rank, "world": world, "step": self.step, "seed": self.seed}
        if self.instalments:
            who["instalments"] = dict(self.instalments)
        return {
            **who,
            "policy": repr(policy),
            "methods": {name: texts[id(method)] for name, (method, _) in self.states.items()},
            "states": states,
            "owed": owed,
            "checksum": _checksum(who, states, owed),
        }

    def debts(self) -> dict[str, Tensor]:
        """Residuals owed to the model, by tensor, in units of the tensor: left by earlier methods, and in memories."""
        out = {name: x.clone() for name, x in self.owed.items()}
        for name, (method, state) in self.states.items():
            owed = method.owed(state)
            if owed is not None:
                out[name] = out[name] + owed if name in out else owed.clone()
        return out

    def shared_parts(self) -> dict[str, tuple[str, list[Any]]]:
        """The parts of the state that are the same on all workers, by tensor: the text of the method, and the shared parts
        of its state, in order.
        """
        parts: dict[str, tuple[str, list[Any]]] = {}
        for name, (method, state) in self.states.items():
            if shared := list(_pick(state, method.kinds(state), _SHARED)):
                parts[name] = (spell(method), [copy_state(part) for part in shared])
        return parts

    def afresh(self) -> list[str]:
        """The methods of which a worker of another run cannot take over all that this one knows: momenta, and what workers
        hold together. These parts start afresh there.
        """
        return sorted({
            spell(method)
            for method, state in self.states.values()
            if any(isinstance(part, Tensor) for part in _pick(state, method.kinds(state), _ALONE))
        })  # fmt: skip

    @classmethod
    def begin(
        cls,
        step: int,
        seed: int,
        shared: Mapping[str, tuple[str, list[Any]]],
        policy: Policy,
        like: Mapping[str, Tensor],
    ) -> WorkerState:
        """A fresh state at step ``step``, with what is ``shared`` where the method is the same; see :meth:`shared_parts`.
        ``like`` has a tensor for every name that may occur.

        Raises:
            StateError: what is shared does not fit.
        """
        states = {}
        for name, (text, parts) in shared.items():
            method = policy.method_for(name, like[name], step) if name in like else None
            if method is not None and spell(method) == text:
                fresh = method.init(like[name])
                states[name] = (method, restore_shared(fresh, method.kinds(fresh), list(parts), name))
        return cls(step, seed, states, {})

    @classmethod
    def read(cls, saved: Any, rank: int, world: int, policy: Policy, like: Mapping[str, Tensor]) -> WorkerState:
        """The inverse of :meth:`save`. ``like`` has a tensor for every name that may occur.

        Raises:
            StateError: it is damaged, of another version, rank, number of workers or policy, or of tensors that are not here.
        """
        check_form(saved)
        for key, expected in (("version", VERSION), ("rank", rank), ("world", world)):
            if saved[key] != expected:
                other = "" if key != "world" else (
                    "; handle.checkpoint(), saved with torch.distributed.checkpoint, loads on any number of workers"
                )  # fmt: skip
                raise StateError(
                    f"the state is of {key} {saved[key]}, this is {key} {expected}; each rank loads its own{other}"
                )
        if saved["policy"] != repr(policy):
            raise StateError(f"the state was saved under {saved['policy']}, this is {policy!r}; load, then switch")
        states: dict[str, tuple[Method[Any], Any]] = {}
        for name, plain in saved["states"].items():
            if name not in like:
                raise StateError(f"the state has a tensor {name!r} that this run does not have")
            method = _find_method(name, saved["methods"].get(name), policy)
            states[name] = (method, fill(name, method.init(like[name]), plain))
        if absent := saved["methods"].keys() - states.keys():
            raise StateError(f"the state lacks what it has a method for: {', '.join(sorted(map(repr, absent)))}")
        if strange := saved["owed"].keys() - like.keys():
            raise StateError(
                f"the state owes to tensors that this run does not have: {', '.join(sorted(map(str, strange)))}"
            )
        owed = {}
        for name, x in saved["owed"].items():
            dtype = torch.promote_types(like[name].dtype, torch.float32)
            if isinstance(x, Tensor) and x.dtype in (like[name].dtype, dtype):
                dtype = x.dtype
            owed[name] = fill(name, torch.zeros_like(like[name], dtype=dtype), x)
        instalments = _read_instalments(saved.get("instalments", {}), owed)
        who = {key: saved[key] for key in ("version", "rank", "world", "step", "seed", "instalments") if key in saved}
        if saved["checksum"] != _checksum(who, saved["states"], saved["owed"]):
            raise StateError(
                f"the tensors of this state are not those that rank {rank} saved with it: the file is damaged, or it holds "
                "those of several ranks. torch.distributed.checkpoint keeps one rank's tensors of each name: give it "
                "handle.checkpoint() instead of handle.state_dict()"
            )
        return cls(saved["step"], saved["seed"], states, owed, instalments)


def check_form(saved: Any) -> None:
    """Raises a StateError unless this has the keys of a state, with values of the right types."""
    if not isinstance(saved, Mapping):
        raise StateError(f"not a Grace state: a dictionary is needed, got {type(saved).__name__}")
    if not saved:
        raise StateError("not a Grace state: the dictionary is empty")
    if missing := _KEYS.keys() - saved.keys():
        raise StateError(f"not a Grace state: it lacks {', '.join(sorted(missing))}")
    for key, kind in _KEYS.items():
        value = saved[key]
        if not isinstance(value, kind) or isinstance(value, bool):
            raise StateError(f"not a Grace state: its {key} should be {kind.__name__}, got {value!r}")
    if saved["step"] < 0:
        raise StateError(f"not a Grace state: its step should be at least 0, got {saved['step']}")


def _read_instalments(saved: Any, owed: Mapping[str, Tensor]) -> dict[str, int]:
    """Over how many gradients each debt is spread.

    Raises:
        StateError: of what is not owed, or not so many.
    """
    if not isinstance(saved, Mapping) or any(
        name not in owed or type(count) is not int or count < 1 for name, count in saved.items()
    ):
        raise StateError(f"not a Grace state: its instalments should be numbers >= 1 for what is owed, got {saved!r}")
    return dict(saved)


def _find_method(name: str, text: object, policy: Policy) -> Method[Any]:
    """The method that a state belongs to: one of the policy, or, after a switch, one that it had before."""
    for rule in policy.rules:
        if isinstance(rule.method, Method) and spell(rule.method) == text:
            return rule.method
    if not isinstance(text, str):
        raise StateError(f"{name!r} was saved under {text!r}, which is not the text of a method")
    try:
        return read_method(text)
    except ConfigurationError as error:
        raise StateError(
            f"{name!r} was saved under {text}, which is neither in the policy nor can be used: {error}"
        ) from error


def check_fits(what: str, tensors: Any, like: Mapping[str, Tensor]) -> None:
    """Refuses saved tensors, of any shapes, that are not like those of this run.

    Args:
        what: they are, in words.
        tensors: that were saved, by name.
        like: a tensor for each of these names.

    Raises:
        StateError: which does not fit.
    """
    if not isinstance(tensors, Mapping):
        raise StateError(f"the {what} that was saved should be tensors by name, got {type(tensors).__name__}")
    if strange := tensors.keys() ^ like.keys():
        raise StateError(f"the {what} that was saved has other parameters: {', '.join(sorted(map(str, strange)))}")
    for name, x in tensors.items():
        p = like[name]
        if not isinstance(x, Tensor) or x.shape != p.shape or x.dtype != p.dtype:
            got = f"{x.dtype} {tuple(x.shape)}" if isinstance(x, Tensor) else f"{x!r:.80}"
            raise StateError(f"the {what} of {name!r} should be {p.dtype} {tuple(p.shape)}, got {got}")


def read_count(value: Any, what: str) -> int:
    """A whole number >= 0 that was saved.

    Raises:
        StateError: it is none.
    """
    if type(value) is not int or value < 0:
        raise StateError(f"the state says {what} {value!r:.80}; legal: a whole number >= 0")
    return value


def fill(name: str, fresh: Any, plain: Any) -> Any:
    """``plain`` in the shape of ``fresh``, a state that ``init`` has just made.

    Raises:
        StateError: it does not fit.
    """
    if isinstance(fresh, Tensor):
        if not isinstance(plain, Tensor) or plain.shape != fresh.shape or plain.dtype != fresh.dtype:
            was = f"{plain.dtype} {tuple(plain.shape)}" if isinstance(plain, Tensor) else repr(plain)
            raise StateError(f"the state of {name!r} should hold {fresh.dtype} {tuple(fresh.shape)}, got {was}")
        return fresh.copy_(plain)
    if isinstance(fresh, tuple):
        if not isinstance(plain, tuple | list) or len(plain) != len(fresh):
            raise StateError(f"the state of {name!r} should have {len(fresh)} parts, got {plain!r}")
        parts = [fill(name, f, p) for f, p in zip(fresh, plain, strict=True)]
        return type(fresh)(*parts) if hasattr(fresh, "_fields") else tuple(parts)
    if isinstance(fresh, float) and isinstance(plain, Tensor) and plain.ndim == 0:
        return float(plain)  # a number on an accelerator that the host had not read
    if fresh is None and isinstance(plain, tuple | list):  # a state that begins with the first exchange
        return copy_state(_as_tuples(name, plain))
    number = isinstance(fresh, int | float) and isinstance(plain, int | float)
    if not (number or type(plain) is type(fresh)):
        raise StateError(f"the state of {name!r} should be {fresh!r}, got {plain!r}")
    return plain


def _as_tuples(name: str, plain: Any) -> Any:
    if isinstance(plain, tuple | list):
        return tuple(_as_tuples(name, part) for part in plain)
    if isinstance(plain, Tensor | int | float) or plain is None:
        return plain
    raise StateError(f"the state of {name!r} should hold tensors and numbers, got {plain!r}")


def restore_shared(fresh: Any, kinds: Any, parts: list[Any], name: str) -> Any:
    """A fresh state whose shared parts are these, in their order; takes them from the list.

    Raises:
        StateError: they do not fit.
    """
    if isinstance(fresh, tuple):
        filled = [restore_shared(f, k, parts, name) for f, k in zip(fresh, kinds, strict=True)]
        return type(fresh)(*filled) if hasattr(fresh, "_fields") else tuple(filled)
    if kinds != "shared":
        return fresh
    if not parts:
        raise StateError(f"a part of the shared state of {name!r} is missing")
    return fill(name, fresh, parts.pop(0))


def _pick(state: Any, kinds: Any, wanted: frozenset[str]) -> Iterator[Any]:
    if isinstance(state, tuple):
        for part, kind in zip(state, kinds, strict=True):
            yield from _pick(part, kind, wanted)
    elif kinds in wanted or (isinstance(kinds, tuple) and not wanted.isdisjoint(kinds)):  # of a stack of tensors
        yield state


def copy_state(state: Any) -> Any:
    """A state as tuples, tensors and numbers; tensors are copied."""
    if isinstance(state, Tensor):
        return state.clone()
    # Of a list: a tuple that grows out of a generator fails when another thread lists all objects meanwhile.
    return tuple([copy_state(part) for part in state]) if isinstance(state, tuple) else state


def _checksum(who: Mapping[str, Any], states: Mapping[str, Any], owed: Mapping[str, Any]) -> int:
    """Binds tensors to the rank that saved them, whatever container they traveled in."""
    total = zlib.crc32(repr(sorted(who.items())).encode())
    for label, leaf in (*_leaves("states", states), *_leaves("owed", owed)):
        if isinstance(leaf, Tensor):
            total = zlib.crc32(label.encode(), total)
            total = zlib.crc32(leaf.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data, total)
        else:
            total = zlib.crc32(f"{label} {leaf!r}".encode(), total)
    return total


def _leaves(label: str, part: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(part, Mapping):
        for key in sorted(part):
            yield from _leaves(f"{label}/{key}", part[key])
    elif isinstance(part, tuple | list):
        for index, item in enumerate(part):
            yield from _leaves(f"{label}/{index}", item)
    else:
        yield label, part
