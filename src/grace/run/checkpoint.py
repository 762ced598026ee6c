"""A checkpoint for ``torch.distributed.checkpoint`` that loads on any number of workers.

What the workers owe the model is the mean of their memories. As long as that mean is kept, what was applied plus what is owed
equals what was computed, whoever owes it. So each worker of the new run owes the old mean.
"""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import torch
from torch import Tensor

from grace.collectives import AllGather, AllReduce, Broadcast, Exchange
from grace.contract.together import together
from grace.errors import ConfigurationError, StateError
from grace.registry.policy import Policy
from grace.run.session import Session

Memories: TypeAlias = Literal["mean", "all"]
MEMORIES: tuple[Memories, ...] = get_args(Memories)
VERSION = 1  # of the checkpoint
_log = logging.getLogger("grace")
_ABOUT = {"version": int, "memories": str, "workers": int, "step": int, "seed": int, "shared": dict}


class Chooser(NamedTuple):
    """The chooser of a session's methods (``auto`` or an adaptive policy), as a checkpoint knows it.

    Attributes:
        save: what to keep of it, beside the methods: entries of what a checkpoint says of itself.
        going_on: around the loading of a checkpoint that says this of itself. It gives the policy that is used meanwhile, and
            goes on from that afterwards; None: the session's own is. Its second argument: whether workers' states are loaded,
            which belong to the methods that they were saved under, and not only what is owed.
    """

    save: Callable[[], dict[str, Any]]
    going_on: Callable[[Mapping[str, Any], bool], AbstractContextManager[Policy | None]]


GIVEN = Chooser(dict, lambda about, states: contextlib.nullcontext())  # methods that nothing chooses


class Checkpoint:
    """A ``Stateful``: safe in ``torch.distributed.checkpoint.save``, where all ranks take part, and in ``load``.

    Args:
        session: of this rank.
        memories: "mean" saves the mean of the workers' memories, once for all; it loads on any number of workers, and under
            any method. "all" saves each worker's state: the same number of workers goes on with the same bits, any other
            number with the mean.
        workers: for "all" only, how many workers saved it, if not as many as there are now.
        whole: whether rank 0's dictionary holds all that is saved, for libraries in which one rank writes a file that all
            read. Then the file itself says what it holds, and how many workers saved it.
        chooser: what chooses the session's methods.

    With "mean", or on another number of workers, momenta and other states of a single worker start afresh: then the logger
    "grace" says so on rank 0, and :attr:`afresh` lists the methods.
    """

    def __init__(
        self,
        session: Session,
        memories: Memories = "mean",
        workers: int | None = None,
        whole: bool = False,
        chooser: Chooser = GIVEN,
    ):
        self._whole, self._chooser = whole, chooser
        if memories not in MEMORIES:
            raise ConfigurationError(f"memories={memories!r} is unknown; legal: 'mean', 'all'")
        if workers is not None and (memories == "mean" or not (type(workers) is int and workers >= 1)):
            raise ConfigurationError(f"workers={workers!r}: legal: a whole number >= 1, with memories='all'")
        self._session, self._memories = session, memories
        self._workers = session.world if workers is None else workers
        self.afresh: tuple[str, ...] = ()

    # ---- saving -----------------------------------------------------------------------------------------------------
    def state_dict(self) -> dict[str, Any]:
        """Build what to save, or the form of what to load. All ranks call it."""
        session = self._session
        state = session.worker.state
        about = {
            "version": VERSION, "memories": self._memories, "workers": session.world, "step": state.step,
            "seed": state.seed, "shared": state.shared_parts(), "afresh": state.afresh(), "methods": session.methods(),
            **self._chooser.save(),
        }  # fmt: skip
        out: dict[str, Any] = {"about": pack(about)}
        if self._memories == "mean":
            out["owed"] = self._mean(state.debts())
        else:  # keys that no other rank has: equal keys would count as copies of one
            packed = pack(session.state_dict())
            if self._whole:
                out.update(session.run(_gather(packed, session.rank, session.world, _device(session))))
                return out
            out.update({f"worker.{rank}": packed for rank in self._share()})
        return out

    def _share(self) -> list[int]:
        """Ranks whose states this rank reads: its own, or, with another number of workers, every world-th."""
        return list(range(self._session.rank, self._workers, self._session.world))

    def _mean(self, debts: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """By parameter: the mean over ranks of what is owed to each group. Zeros where nothing is owed."""
        session = self._session
        means = dict(zip(debts, session.run(together([_average(x) for x in debts.values()])), strict=True))
        out = {}
        for group in session.groups:
            like = group.like(session.like)
            mean = means.get(group.name)
            if mean is None:
                device = "cpu" if like.is_meta else like.device
                mean = torch.zeros(like.shape, dtype=torch.promote_types(like.dtype, torch.float32), device=device)
            out.update({name: part.clone() for name, part in group.split(mean).items()})
        return out

    # ---- loading ----------------------------------------------------------------------------------------------------
    def load_state_dict(self, saved: Any) -> None:
        """Goes on from ``saved``. All ranks call it; either all of them load, or none.

        Raises:
            StateError: it does not fit; nothing has changed then.
        """
        if self._whole:
            self._read_kind(saved)
        about, problem = dict[str, Any](), None
        try:
            about = self._about(saved)
        except StateError as error:
            problem = error
        with self._chooser.going_on(about, self._memories == "all") as policy:
            self._load(saved, about, policy, problem)

    def _load(self, saved: Any, about: dict[str, Any], policy: Policy | None, problem: StateError | None) -> None:
        session, state, exact_state = self._session, None, None
        debts: dict[str, Tensor] = {}
        exact = self._memories == "all" and self._workers == session.world
        more: Mapping[str, object] = {}
        try:
            if problem is None:
                more = {**self._read_more(saved), **name_methods(about, policy)}
                if exact:
                    exact_state = self._states(saved, policy)[session.rank]
                else:
                    debts = self._debts(saved, policy)
                    state = session.begin_state(about["step"], about["seed"], about["shared"])
        except StateError as error:
            problem = error
        if exact and problem is None:
            session.load_state_dict(exact_state, also=lambda _: more)
            return
        session.compare_loads(problem, {} if state is None else {"step": state.step, "seed": state.seed, **more})
        assert state is not None
        if self._memories == "all":  # up to here each rank has only what it has read
            debts = self._mean({name: x * session.world for name, x in debts.items()})
        session.adopt(state, debts)
        self.afresh = tell_afresh(about, session.rank)

    def _read_more(self, saved: Any) -> Mapping[str, object]:
        """Reads the additional data of a derived class, without changing anything, and returns what all ranks must have in
        common of them, by name.

        Raises:
            StateError: it does not fit.
        """
        return {}

    def _read_kind(self, saved: Any) -> None:
        """Reads which kind of memories the checkpoint holds. If it cannot be read, it is refused later, on all ranks."""
        with contextlib.suppress(StateError, KeyError, TypeError):
            about = unpack(saved["about"])
            if about["memories"] in MEMORIES and type(about["workers"]) is int and about["workers"] >= 1:
                self._memories, self._workers = about["memories"], about["workers"]

    def _about(self, saved: Any) -> dict[str, Any]:
        if not isinstance(saved, Mapping) or "about" not in saved:
            raise StateError("not a checkpoint of Grace: it lacks 'about'")
        about = unpack(saved["about"])
        for key, kind in _ABOUT.items():
            if not isinstance(about, dict) or type(about.get(key)) is not kind:
                raise StateError(f"not a checkpoint of Grace: its {key} should be {kind.__name__}")
        if about["version"] != VERSION or about["memories"] != self._memories:
            raise StateError(
                f"the checkpoint is of version {about['version']} with memories={about['memories']!r}, this is version "
                f"{VERSION} with memories={self._memories!r}"
            )
        if self._memories == "all" and about["workers"] != self._workers:
            raise StateError(
                f"{about['workers']} workers saved this checkpoint, not {self._workers}; "
                f"load it with handle.checkpoint(memories='all', workers={about['workers']})"
            )
        if type(about.get("afresh", [])) is not list:
            raise StateError("not a checkpoint of Grace: its afresh should be list")
        if about["step"] < 0:
            raise StateError(f"not a checkpoint of Grace: its step is {about['step']}")
        for name, pair in about["shared"].items():
            if not (isinstance(pair, tuple) and [type(part) for part in pair] == [str, list]):
                raise StateError(f"not a checkpoint of Grace: the shared state of {name!r} is {pair!r}")
        check_choice(about)
        return dict(about)

    def _debts(self, saved: Mapping[str, Any], policy: Policy | None) -> dict[str, Tensor]:
        """The error that this rank is to owe, by parameter; with "all", its share of it, by group."""
        session = self._session
        if self._memories == "mean":
            owed = saved.get("owed")
            if not isinstance(owed, Mapping) or owed.keys() != session.like.keys():
                raise StateError("the checkpoint is of other parameters")
            for name, x in owed.items():
                if not isinstance(x, Tensor) or x.shape != session.like[name].shape or not x.is_floating_point():
                    raise StateError(f"the checkpoint's debt to {name!r} does not have the shape of the parameter")
            return dict(owed)
        total: dict[str, Tensor] = {}
        for rank, saved_state in self._states(saved, policy).items():
            state = session.read_state(saved_state, rank, self._workers)
            for name, x in state.debts().items():
                total[name] = total[name] + x / self._workers if name in total else x / self._workers
        for group in session.groups:  # the same on all ranks, even those that have none to read
            like = group.like(session.like)
            zeros = torch.zeros(like.shape, dtype=torch.promote_types(like.dtype, torch.float32), device="cpu")
            total.setdefault(group.name, zeros if like.is_meta else zeros.to(like.device))
        return {group.name: total[group.name] for group in session.groups}

    def _states(self, saved: Mapping[str, Any], policy: Policy | None) -> dict[int, Any]:
        """By worker, the states that this rank reads, as saved under this policy; None: under that of which they tell."""
        if missing := [rank for rank in self._share() if f"worker.{rank}" not in saved]:
            raise StateError(f"the checkpoint lacks the states of workers {missing}")
        states = {rank: unpack(saved[f"worker.{rank}"]) for rank in self._share()}
        if policy is None:
            return states
        return {
            rank: {**state, "policy": repr(policy)} if isinstance(state, Mapping) else state
            for rank, state in states.items()
        }


def check_choice(about: Mapping[str, Any]) -> None:
    """Checks what a checkpoint says of its methods, and of what chose them, if it says anything.

    Raises:
        StateError: it is something else.
    """
    methods = about.get("methods", {})
    if type(methods) is not dict or any(type(text) is not str for pair in methods.items() for text in pair):
        raise StateError(f"not a checkpoint of Grace: it should say the method of each tensor, got {methods!r}")
    if type(about.get("auto", {})) is not dict:
        raise StateError(f"not a checkpoint of Grace: its auto should be dict, got {about['auto']!r}")


def name_methods(about: Mapping[str, Any], policy: Policy | None) -> dict[str, object]:
    """The methods that all ranks must have in common, where those of a checkpoint are used."""
    return {} if policy is None else {f"method of {name}": text for name, text in about.get("methods", {}).items()}


def tell_afresh(about: Mapping[str, Any], rank: int) -> tuple[str, ...]:
    """The methods of a checkpoint that leave momenta or the like behind; rank 0 tells the log of them."""
    afresh = tuple(map(str, about.get("afresh", ())))
    if afresh and rank == 0:
        _log.warning(
            "the checkpoint is of %s workers; what each of them alone had, such as momenta, starts afresh under %s. What is "
            "owed goes on",
            about.get("workers", "other"), ", ".join(afresh),
        )  # fmt: skip
    return afresh


def _average(x: Tensor) -> Exchange[Tensor]:
    wide = x.to(torch.promote_types(x.dtype, torch.float32), copy=True)
    return (yield AllReduce(wide, donate=True))


def _gather(packed: bytes, rank: int, world: int, device: torch.device) -> Exchange[dict[str, bytes]]:
    """Each worker's bytes on rank 0, and its own on the others; one worker's after another's, so that they need no room."""
    flat = torch.frombuffer(bytearray(packed), dtype=torch.uint8).to(device)
    sizes = yield AllGather(torch.tensor([flat.numel()], device=device, dtype=torch.int64))  # [W, 1]
    out = {}
    for root, size in enumerate(sizes.view(-1).tolist()):
        theirs = yield Broadcast(flat if root == rank else torch.empty(size, dtype=torch.uint8, device=device), root)
        if rank in (0, root):
            out[f"worker.{root}"] = theirs.cpu().numpy().tobytes()
    return out


def _device(session: Session) -> torch.device:
    """The device that its network takes tensors from."""
    device = next(iter(session.like.values())).device
    return torch.device("cpu") if device.type == "meta" else device


def pack(value: Any) -> bytes:
    """Bytes of plain containers of tensors."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def unpack(data: Any) -> Any:
    """Plain containers of tensors from bytes; a damaged or foreign file cannot make it run anything.

    Raises:
        StateError: anything else.
    """
    try:
        return torch.load(io.BytesIO(data), weights_only=True, map_location="cpu")
    except Exception as error:  # unpickling may raise anything
        raise StateError(f"not a checkpoint of Grace: {type(error).__name__}: {error}") from error
