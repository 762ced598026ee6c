"""Gives one rank's numbers to all ranks: parameters, an optimizer's state, and plain objects, as in scripts for Horovod."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from grace.collectives import Broadcast
from grace.errors import ConfigurationError, InputError, StateError, out_of_range
from grace.run.checkpoint import pack, unpack
from grace.run.drive import broadcast_
from grace.transports.agreement import SECONDS, agree
from grace.transports.base import Transport
from grace.transports.choose import transport as choose
from grace.transports.torch_distributed import TorchDistributed

_PLAIN = (bool, int, float, str, bytes, type(None))


def broadcast_parameters(
    params: Mapping[str, Any] | Iterable[tuple[str, Any]], root_rank: int = 0, *, transport: Transport | str = "auto"
) -> None:
    """Copies one rank's tensors into those of all ranks, in place. All ranks call it.

    Args:
        params: ``model.state_dict()``, which has the buffers too, or ``model.named_parameters()``.
        root_rank: the rank whose numbers all get.
        transport: between the ranks, or its name; see :func:`grace.transport`.

    Raises:
        InputError: not tensors by name.
        ConfigurationError: no such rank.
        FingerprintMismatch: names, shapes or dtypes differ, on every rank. Nothing was copied then.

    Example:
        >>> model = torch.nn.Linear(2, 2)
        >>> grace.broadcast_parameters(model.state_dict(), root_rank=0)  # doctest: +SKIP
    """
    pairs = list(params.items() if isinstance(params, Mapping) else params)
    for pair in pairs:
        if not (isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[1], Tensor)):
            raise InputError(
                f"params has {pair!r:.60}; legal: a state_dict of tensors, or pairs of a name and a tensor"
            )
        if pair[1].layout != torch.strided or pair[1].is_meta:
            raise InputError(
                f"{pair[0]!r} is {pair[1].layout} on {pair[1].device}; legal: dense tensors that have numbers"
            )
    with _lend(transport, root_rank) as network:
        shapes = {f"tensor {name}": f"{tuple(x.shape)} {x.dtype}" for name, x in pairs}
        agree({"root_rank": str(root_rank), "order": ", ".join(str(name) for name, _ in pairs), **shapes}, network)
        broadcast_((x for _, x in pairs), network, root_rank)


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int = 0, *, transport: Transport | str = "auto"
) -> None:
    """Gives all ranks one rank's optimizer state: tensors, and the numbers of the groups, such as the learning rate. All ranks
    call it, also before the first step, when one rank alone has loaded a checkpoint.

    Memories of Grace are each rank's own, and stay as they are.

    Args:
        optimizer: the same on all ranks except for its state.
        root_rank: the rank whose state all get.
        transport: between the ranks, or its name; see :func:`grace.transport`.

    Raises:
        ConfigurationError: not an optimizer, no such rank, or a state that is not plain containers of tensors and numbers,
            numpy's included; on every rank, and it names what is not.
        FingerprintMismatch: optimizers of other classes or parameters, on every rank. Nothing has changed then.
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise InputError(f"optimizer={optimizer!r:.60}; legal: a torch.optim.Optimizer")
    with _lend(transport, root_rank) as network:
        groups = {
            f"group {number}": ", ".join(f"{tuple(p.shape)} {p.dtype}" for p in group["params"])
            for number, group in enumerate(optimizer.param_groups)
        }
        agree({"root_rank": str(root_rank), "optimizer": type(optimizer).__name__, **groups}, network)
        local = optimizer.state_dict() if network.rank == root_rank else {}
        told = send_object({key: value for key, value in local.items() if key != "grace"}, root_rank, network)
        optimizer.load_state_dict(told)  # on the root, too: loading may change dtypes


def broadcast_object(obj: Any = None, root_rank: int = 0, *, transport: Transport | str = "auto") -> Any:
    """Gives one rank's object to all ranks: such as the number of the epoch, or a scheduler's ``state_dict()``. All ranks call
    it.

    What the others read cannot run code: only plain containers of numbers, texts and tensors travel.

    Args:
        obj: only the root's counts.
        root_rank: the rank whose object all get.
        transport: between the ranks, or its name; see :func:`grace.transport`.

    Returns:
        A copy of the root's object, its tensors on the CPU.

    Raises:
        ConfigurationError: an object of another kind, on every rank; or no such rank.
    """
    with _lend(transport, root_rank) as network:
        agree({"root_rank": str(root_rank)}, network)
        return send_object(obj, root_rank, network)


def send_object(obj: Any, root: int, network: Transport) -> Any:
    """The root's object, on all ranks.

    Raises:
        ConfigurationError: it is not plain containers of numbers, texts and tensors; on every rank.
    """
    data, problem = b"", ""
    if network.rank == root:
        try:
            data = pack(_as_plain(obj, ""))
        except StateError as error:
            problem = str(error)
    told = json.loads(
        network.all_gather_text(json.dumps({"bytes": len(data), "problem": problem}), seconds=SECONDS)[root]
    )
    if told["problem"]:
        raise ConfigurationError(
            f"what rank {root} sends is more than plain containers of numbers, texts and tensors: {told['problem']}"
        )
    message = (
        torch.frombuffer(bytearray(data), dtype=torch.uint8)
        if data
        else torch.empty(told["bytes"], dtype=torch.uint8, device="cpu")
    )
    backend = dist.get_backend(network.group) if isinstance(network, TorchDistributed) else ""
    if backend == "nccl":  # it moves what is on a GPU
        message = message.cuda()
    return unpack(network.run(Broadcast(message, root)).cpu().numpy().tobytes())


def _as_plain(value: Any, place: str) -> Any:
    """The same object, with numpy's numbers as Python's. ``place``: where it is, such as ``['param_groups'][0]['lr']``.

    Raises:
        StateError: what others could not read without running code; says where it is.
    """
    if type(value) in (dict, OrderedDict):
        return type(value)((key, _as_plain(part, f"{place}[{key!r}]")) for key, part in value.items())
    if type(value) in (list, tuple):
        return type(value)([_as_plain(part, f"{place}[{at}]") for at, part in enumerate(value)])
    plain = value.item() if isinstance(value, np.generic) else value
    if not (type(plain) in _PLAIN or isinstance(plain, Tensor)):
        try:
            unpack(pack(plain))
        except Exception as error:  # pickling may raise anything
            kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
            raise StateError(
                f"{place or 'it'} is {kind}, {value!r:.60}; make a number, a text or a tensor of it"
            ) from error
    return plain


@contextmanager
def _lend(transport: Transport | str, root: int) -> Iterator[Transport]:
    """A transport; if it was made here, it is closed in the end."""
    network = choose(transport)
    try:
        if type(root) is not int or not 0 <= root < network.world:
            raise out_of_range("grace", "root_rank", root, f"a rank: 0 to {network.world - 1}")
        yield network
    except BaseException as error:
        if isinstance(transport, str):
            network.close(error)
        raise
    if isinstance(transport, str):
        network.close()
