"""Access to the internals of ``torch.distributed.fsdp.fully_shard``: all of it is here, for torch 2.9 to 2.13.

A module that was given to ``fully_shard`` has groups of parameters. When a backward pass has made the gradients of a group,
torch lays them out as ``[W, sum of c]``, row j being the concatenation of chunk j of every parameter ``p``, ``c = ceil(d0 / W)
others``, padded with zeros, and gives that to the group's reduce-scatter, an object that can be replaced.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from grace.errors import ConfigurationError, GraceError

DTYPES = (torch.float32, torch.bfloat16)  # in which gradients may be reduced
OLDEST = (2, 9)  # has a reduce-scatter that can be replaced
_WRAPPERS = ("_checkpoint_wrapped_module.", "_orig_mod.")  # in names: activation checkpointing, torch.compile


@dataclass(frozen=True)
class Piece:
    """A parameter of a group.

    inside: torch's own object. name: in the model. shape: in full, ``[d0, *others]``. shard: this rank's part, without
    padding. width: c, the numbers of a row. everywhere: whether every rank has a part of it.
    """

    inside: Any  # torch's FSDPParam
    name: str
    shape: tuple[int, ...]
    shard: tuple[int, ...]
    width: int
    everywhere: bool


@dataclass(frozen=True)
class ParameterGroup:
    """A group of parameters that are gathered, and whose gradients are reduced, together. In a backward pass it has those of
    them that a gradient was computed for.
    """

    module: nn.Module
    inside: Any  # torch's FSDPParamGroup
    pieces: tuple[Piece, ...]

    @property
    def shards(self) -> dist.ProcessGroup:
        """The ranks among which the parameters are sharded."""
        group: dist.ProcessGroup = self.inside.mesh_info.shard_process_group
        return group

    @property
    def replicas(self) -> dist.ProcessGroup | None:
        """The ranks that have the same shard, as under HSDP; None: there are no others."""
        group: dist.ProcessGroup | None = getattr(self.inside.mesh_info, "replicate_process_group", None)
        return group

    @property
    def dtype(self) -> torch.dtype:
        """In which torch reduces its gradients."""
        policy = self.inside.mp_policy
        dtype: torch.dtype = policy.reduce_dtype or policy.param_dtype or self.inside.fsdp_params[0].sharded_param.dtype
        return dtype

    @property
    def divided(self) -> bool:
        """True if the user has set what sums are divided by: ``set_gradient_divide_factor``. It may be set at any time."""
        return self.inside.gradient_divide_factor is not None

    @property
    def name(self) -> str:
        """Its first parameter's, for errors."""
        return self.pieces[0].name

    @property
    def device(self) -> torch.device:
        """The device of its gradients."""
        device: torch.device = self.inside.device
        return device

    @property
    def trained(self) -> list[Any]:
        """Torch's own of each piece."""
        return [piece.inside for piece in self.pieces]

    def coming(self, places: dict[int, str]) -> ParameterGroup:
        """The group with those parameters whose gradients torch is about to reduce: what the pass has used, or, where
        ``set_reduce_scatter_unused_params(True)`` was called, all that are trained. ``places``: names of modules, by ``id``.
        """
        inside, known = self.inside, {id(piece.inside): piece for piece in self.pieces}
        unused = getattr(inside, "reduce_scatter_unused_params", False)  # since torch 2.13
        pieces = tuple(
            known.get(id(p)) or _piece(p, places, inside.mesh_info) for p in inside.fsdp_params if _comes(p, unused)
        )
        return self if pieces == self.pieces else replace(self, pieces=pieces)

    def later(self, out: Tensor, sums: Tensor | None = None) -> LateGradients | None:
        """The gradients of this reduction, if they can come when the backward pass ends. None: somebody reads them before,
        in a hook on a parameter, or replicas are not averaged yet.

        Args:
            out: where torch expects the result, ``[sum of c]``.
            sums: where it will be, if it is known already.
        """
        hook = self.inside._all_reduce_hook
        if isinstance(hook, _Partial) and (hook.held is not None or not self.inside.all_reduce_grads):
            return None
        if any(getattr(p.sharded_param, "_post_accumulate_grad_hooks", None) for p in self.trained):
            return None
        return LateGradients(self, out, torch.empty_like(out) if sums is None else sums)


class LateGradients:
    """Gradients of a group that torch takes for there, and that are there when :meth:`settle` has been called.

    ``sums`` ``[sum of c]`` is for what torch would have had in ``out``, where it finds zeros: -0.0, which change nothing that
    they are added to.
    """

    def __init__(self, group: ParameterGroup, out: Tensor, sums: Tensor):
        self._group, self.sums = group, sums
        self._fresh = [p.sharded_param.grad is None for p in group.trained]
        inside = group.inside
        divisor = inside.gradient_divide_factor
        self._divisor = float(group.shards.size() if divisor is None else divisor) if _divides(inside) else 1.0
        out.fill_(-0.0)

    @torch.no_grad()
    def settle(self) -> None:
        """Does with the sums what torch does: divides them, and adds them to the gradients that there were."""
        group = self._group
        if self._divisor != 1.0:
            self.sums.div_(self._divisor)
        rows = torch.split(self.sums, [piece.width for piece in group.pieces])
        for p, piece, fresh, row in zip(group.trained, group.pieces, self._fresh, rows, strict=True):
            gradient = p.sharded_param.grad.to_local()
            part = row[: math.prod(piece.shard)].view(p.sharded_size).to(gradient.dtype)
            gradient.copy_(part) if fresh else gradient.add_(part)


def _comes(p: Any, unused: bool) -> bool:
    """True if torch reduces the gradient of a parameter; ``unused``: whether also of those that have none."""
    if not hasattr(p, "_unsharded_param"):  # it was never gathered
        return False
    whole = p.unsharded_param
    has = p.unsharded_accumulated_grad is not None or whole.grad is not None
    return bool(has or (unused and whole.requires_grad))


def _divides(inside: Any) -> bool:
    """True if torch divides the sums after it has got them, and not the network on the way."""
    return bool(inside.force_sum_reduction_for_comms)


def is_sharded(model: object) -> bool:
    """True if ``fully_shard`` has been applied to this module, or to one inside; also with a torch that is too old."""
    if not isinstance(model, nn.Module) or isinstance(model, nn.parallel.DistributedDataParallel):
        return False
    return any(cls.__name__ == "FSDPModule" for module in model.modules() for cls in type(module).__mro__)


def find_groups(model: nn.Module) -> list[ParameterGroup]:
    """All groups of a model that have something to train.

    Raises:
        ConfigurationError: torch is too old; a communication of the user's own is set; float16 or float64 is reduced;
            nothing is trained; some rank has no part of anything; a parameter of a module outside of this model.
    """
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if version < OLDEST:
        raise ConfigurationError(
            f"a model under fully_shard takes torch {OLDEST[0]}.{OLDEST[1]} or newer, whose reduce-scatter can be replaced; "
            f"this is {torch.__version__}. Grace compresses DistributedDataParallel models with this torch"
        )
    places = {id(module): name for name, module in model.named_modules()}
    groups = []
    for module in model.modules():
        if not hasattr(module, "_get_fsdp_state"):
            continue
        for inside in groups_of(module):
            if not hasattr(inside.mesh_info, "shard_mesh_size"):
                raise ConfigurationError(
                    "this model is replicated by replicate(), not sharded: use DistributedDataParallel and grace.attach"
                )
            _refuse_custom(inside, places[id(module)])
            pieces = tuple(
                _piece(p, places, inside.mesh_info) for p in inside.fsdp_params if p.sharded_param.requires_grad
            )
            if pieces:
                groups.append(ParameterGroup(module, inside, pieces))
    if not groups:
        raise ConfigurationError("there is nothing to exchange: no sharded parameter requires a gradient")
    if not any(piece.everywhere for group in groups for piece in group.pieces):
        raise ConfigurationError(
            "some ranks have no part of any parameter, since all have fewer rows than there are ranks; shard over fewer"
        )
    return groups


def one_group(groups: list[ParameterGroup]) -> dist.ProcessGroup:
    """The ranks between which gradients are compressed, the same for all groups of parameters.

    Raises:
        ConfigurationError: they are not the same for all.
    """
    lines = [group.replicas or group.shards for group in groups]
    ranks = [dist.get_process_group_ranks(line) for line in lines]
    for group, line in zip(groups, ranks, strict=True):
        if line != ranks[0] or (group.replicas is None) != (groups[0].replicas is None):
            raise ConfigurationError(
                f"the parameters beside {groups[0].name!r} are shared by ranks {ranks[0]}, those beside {group.name!r} by "
                f"ranks {line}: Grace compresses between the same ranks for all. Attach to each of the two modules"
            )
    return lines[0]


def explain_dtype(dtype: torch.dtype) -> str:
    """Advice where gradients are reduced in a dtype that Grace does not take here."""
    return (
        f"gradients are reduced in {dtype}; legal: float32 and bfloat16. Give fully_shard "
        "mp_policy=MixedPrecisionPolicy(..., reduce_dtype=torch.float32): what travels is the method's affair"
    )


def plain_name(name: str) -> str:
    """A parameter's name as it is without wrappers around modules."""
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def groups_of(module: nn.Module) -> list[Any]:
    """Torch's groups of parameters of a module that was given to ``fully_shard``."""
    state = module._get_fsdp_state()  # type: ignore[operator]
    if hasattr(state, "_fsdp_param_groups"):  # several since torch 2.12
        return list(state._fsdp_param_groups)
    return [] if state._fsdp_param_group is None else [state._fsdp_param_group]


def _refuse_custom(inside: Any, place: str) -> None:
    kind = type(inside._reduce_scatter_comm).__name__
    if kind == "GradientReduceScatter" or isinstance(inside._all_reduce_hook, _Alone):
        raise ConfigurationError("Grace is attached to this model; use handle.switch(...) or handle.detach() first")
    policy = inside.mp_policy
    for p in inside.fsdp_params:
        dtype = policy.reduce_dtype or policy.param_dtype or p.sharded_param.dtype
        if p.sharded_param.requires_grad and dtype not in DTYPES:
            raise ConfigurationError(explain_dtype(dtype))
    if kind != "DefaultReduceScatter" or inside._all_reduce_hook is not None:
        what = f"a reduce-scatter of its own ({kind})" if kind != "DefaultReduceScatter" else "an all-reduce hook"
        raise ConfigurationError(
            f"the module {place or 'at the root'} has {what}, which Grace would replace: remove it, or leave Grace out"
        )


def _piece(p: Any, places: dict[int, str], mesh_info: Any) -> Piece:
    info = p._module_info
    if id(info.module) not in places:
        raise ConfigurationError(
            f"the parameter {info.param_name!r} is of a module outside of this model: attach to the root"
        )
    name = plain_name(".".join(part for part in (places[id(info.module)], info.param_name) if part))
    shape = tuple(p._orig_size)
    W, dim = mesh_info.shard_mesh_size, p.fsdp_placement.dim
    length = math.ceil(shape[dim] / W)  # of a chunk; torch brings this dimension to the front
    width = length * math.prod(shape) // shape[dim] if shape[dim] else 0
    return Piece(p, name, shape, tuple(p.sharded_size), width, everywhere=length * (W - 1) < shape[dim])


class GradientReduceScatter:
    """Stands for ``torch``'s reduce-scatter of one group.

    Args:
        scatter: is given ``[W * n]``, row after row, and writes the sum over ranks of this rank's row ``[n]`` into the second
            argument.
    """

    def __init__(self, scatter: Callable[[Tensor, Tensor], None]):
        self._scatter = scatter

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Torch asks for its buffers here."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False
    ) -> None:
        """Torch calls this for each group in a backward pass."""
        if op != dist.ReduceOp.SUM:
            raise GraceError(f"torch asks for a reduce-scatter by {op}, where Grace has asked it for sums")
        self._scatter(input_tensor, output_tensor)


class WeightAllGather:
    """Stands for ``torch``'s all-gather of one group's weights.

    Args:
        gather: is given ``[n]``, this rank's part, and fills the second argument ``[W * n]`` with those of all.
        ranks: W.
        default: torch's own, for a gather among other ranks (``reshard_after_forward=`` a number): then all that is gathered
            has been through ``gather`` before.
    """

    def __init__(self, gather: Callable[[Tensor, Tensor], None], ranks: int, default: Any):
        self._gather, self._ranks, self._default = gather, ranks, default

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Torch asks for its buffers here."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool = False) -> Any:
        """Torch calls this for each group before it computes with the group's weights."""
        if group.size() != self._ranks:
            return self._default(output_tensor=output_tensor, input_tensor=input_tensor, group=group, async_op=async_op)
        self._gather(input_tensor, output_tensor)
        return None


class Hooked:
    """The groups of a model whose communication is replaced, and what they had before."""

    def __init__(self, groups: list[ParameterGroup], model: nn.Module):
        self._groups = groups
        self._places = {id(module): name for name, module in model.named_modules()}
        self._had = [{name: getattr(group.inside, name) for name in _attributes(group.inside)} for group in groups]
        self._coming: dict[int, ParameterGroup] = {}  # by id of torch's own, in the backward pass
        for group in groups:
            group.inside.post_backward = self._notes_before(group, group.inside.post_backward)

    def _notes_before(self, group: ParameterGroup, reduce: Callable[..., None]) -> Callable[..., None]:
        """Torch's reduction of a group, which knows what comes: torch drops the gradients before it asks for collectives."""

        def post_backward(*unused: Any) -> None:
            if group.inside.reduce_grads:
                self._coming[id(group.inside)] = group.coming(self._places)
            reduce(*unused)

        return post_backward

    def _bind(self, call: Callable[..., None], group: ParameterGroup) -> Callable[..., None]:
        """``call`` with the group as it comes in this pass."""
        return lambda *tensors: call(self._of(group), *tensors)

    def _of(self, group: ParameterGroup) -> ParameterGroup:
        return self._coming.get(id(group.inside), group)

    def reduce_by(self, scatter: Callable[[ParameterGroup, Tensor, Tensor], None]) -> None:
        """The reduce-scatter of each group is ``scatter(group, rows, out)`` from now on: sums, which torch divides."""
        for group in self._groups:
            inside = group.inside
            if group.shards.size() > 1:
                inside._reduce_scatter_comm = GradientReduceScatter(self._bind(scatter, group))
                inside.force_sum_reduction_for_comms = True
            elif inside._all_reduce_hook is None:  # torch scatters nothing to one rank, and divides before this
                inside._all_reduce_hook = _Alone(self._bind(scatter, group))

    def average_replicas_by(self, average: Callable[[ParameterGroup, Tensor], None]) -> None:
        """Torch reduces over shards only, and ``average(group, flat)`` replaces each flat shard ``[sum of c]`` by the mean
        over replicas, or their sum where ``group.divided`` says that the user has given a divisor of sums.
        """
        from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo

        for group in self._groups:
            inside, info = group.inside, group.inside.mesh_info
            inside.mesh_info = FSDPMeshInfo(info.mesh, shard_mesh_dim=info.shard_mesh_dim)
            if inside.post_forward_mesh_info == info:  # torch compares: between passes weights stay sharded as they are
                inside.post_forward_mesh_info = inside.mesh_info
            inside._all_reduce_hook = _Partial(inside, self._bind(average, group), functools.partial(self._of, group))

    def gather_by(self, gather: Callable[[ParameterGroup, Tensor, Tensor], None]) -> None:
        """The all-gather of each group's weights is ``gather(group, mine, out)`` from now on.

        Raises:
            ConfigurationError: a group has one of the user's own.
        """
        for group in self._groups:
            kind = type(group.inside._all_gather_comm).__name__
            if kind != "DefaultAllGather":
                raise ConfigurationError(
                    f"weights=: the module of {group.name!r} has an all-gather of its own ({kind}), which Grace would replace"
                    ": remove it, or leave weights= out"
                )
        for group in self._groups:
            inside = group.inside
            inside._all_gather_comm = WeightAllGather(
                functools.partial(gather, group), group.shards.size(), inside._all_gather_comm
            )

    def restore(self) -> None:
        """Everything is as it was."""
        for group, had in zip(self._groups, self._had, strict=True):
            for name, value in had.items():
                setattr(group.inside, name, value)
            del group.inside.post_backward  # the class has torch's


class _Alone:
    """Takes the place of a reduce-scatter among one rank."""

    def __init__(self, scatter: Callable[[Tensor, Tensor], None]):
        self._scatter = scatter

    def __call__(self, flat: Tensor) -> None:
        self._scatter(flat.clone(), flat)


class _Partial:
    """Averages a flat shard over replicas, unless torch was told to wait with that: then it is added up until then."""

    def __init__(self, inside: Any, average: Callable[[Tensor], None], coming: Callable[[], ParameterGroup]):
        self._inside, self._average, self._coming = inside, average, coming
        self.held: Tensor | None = None  # the sum
        self._pieces: tuple[Piece, ...] = ()  # what it is of

    def __call__(self, flat: Tensor) -> None:
        pieces = self._coming().pieces
        if self.held is not None:
            if pieces != self._pieces:
                self.held, names = None, sorted({piece.name for piece in {*pieces} ^ {*self._pieces}})
                raise GraceError(
                    f"{', '.join(map(repr, names))}: used in some, and not in all, of the backward passes that are added up "
                    "by set_requires_all_reduce(False), which torch alone refuses, too: use "
                    "set_requires_gradient_sync(False) for those before the last"
                )
            flat.add_(self.held)
            self.held = None
        if self._inside.all_reduce_grads:
            self._average(flat)
        else:
            self.held, self._pieces = flat.clone(), pieces
            flat.zero_()


def _attributes(inside: Any) -> Iterator[str]:
    reduced = ("_reduce_scatter_comm", "force_sum_reduction_for_comms", "_all_reduce_hook")
    for name in (*reduced, "_all_gather_comm", "mesh_info", "post_forward_mesh_info"):
        if hasattr(inside, name):
            yield name
