"""Grace at work on a model under ``torch.distributed.fsdp.fully_shard`` (FSDP2, and HSDP on a mesh of two dimensions).

Under FSDP the reduce-scatter of gradients is one all-to-all of compressed rows, with a memory on the sender; the owner of a
shard keeps float32, and there is no second hop. Under HSDP torch reduces inside a machine as it always does, and shards are
averaged between machines by any method. Weights are gathered as torch gathers them.

A memory is of what a worker compresses: of the rows of all ranks under FSDP, as large as the gradient of the whole model in
float32; of this rank's shard alone under HSDP.
"""

from __future__ import annotations

import glob
import math
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from grace.adapters.backward import at_end_of_backward
from grace.adapters.doors import register_door
from grace.adapters.fsdp import Hooked, ParameterGroup, Piece, explain_dtype, find_groups, is_sharded, plain_name
from grace.adapters.handle import Handle
from grace.adapters.sharded_checkpoint import ShardedCheckpoint
from grace.collectives import Exchange, ReduceScatter, Traffic, cost
from grace.contract.method import Method
from grace.errors import ConfigurationError, GraceError, InputError
from grace.registry import spell
from grace.registry.policy import Policy, Rule
from grace.run.checkpoint import Memories
from grace.run.groups import NONE
from grace.run.optimizer import Settings, read_settings
from grace.run.options import Options
from grace.run.plan import ExchangePlan, plan_groups
from grace.run.session import Session
from grace.run.steps import Steps
from grace.transports.base import Transport
from grace.transports.choose import transport_beside


class ShardedHandle(Handle):
    """Grace at work on one model under ``fully_shard``. Made by :func:`grace.attach`; all ranks call its methods alike.

    ``rank`` and ``world`` are those of the axis that is compressed: the replicas under HSDP, else the shards. A step is a
    backward pass that reduces gradients.
    """

    def __init__(
        self,
        model: nn.Module,
        method: Policy | Method[Any] | str,
        options: Options,
        *,
        optimizer: torch.optim.Optimizer | None = None,
        transport: str | Transport | None = "auto",
    ):
        if options.granularity != "parameter":
            raise ConfigurationError(
                f"granularity={options.granularity!r}: a sharded model is compressed by parameter; torch's groups of "
                "parameters travel together"
            )
        if options.on_difference != "error":
            raise ConfigurationError(
                f"on_difference={options.on_difference!r}: no rank has the whole of a sharded model; legal: 'error'"
            )
        groups = find_groups(model)
        self._model, self._groups, self._pieces = (
            model,
            groups,
            {piece.name: piece for group in groups for piece in group.pieces},
        )
        self._replicated = groups[0].replicas is not None
        if self._replicated and options.nonfinite == "error":
            raise ConfigurationError(
                "nonfinite='error' between replicas: an inf is seen by those that have the same shard alone, and the others "
                "would wait for them; legal: 'propagate', 'skip'"
            )
        if not self._replicated:  # every rank applies means of its own
            options = replace(options, check_replicas_every=0)
        group = _one_group(groups)
        world = dist.get_world_size(group)
        like = {
            piece.name: torch.empty(piece.shard if self._replicated else (world, piece.width), device="meta")
            for piece in self._pieces.values()
        }
        like = {name: x for name, x in like.items() if x.numel()}  # a rank may have no part of a small parameter
        self._held = frozenset(like)
        policy = self._resolve(Policy.of(method))
        over = transport_beside(group, transport)
        knobs = {"sharded": "between replicas" if self._replicated else "reduce-scatter"}
        super().__init__(Steps(Session(like, policy, over, options, knobs=knobs)))
        self._optimizer = optimizer
        self._check_optimizer()
        self._stepping = False
        self._hooked: Hooked | None = Hooked(groups)
        if self._replicated:
            self._hooked.average_replicas_by(self._average)
        else:
            self._hooked.reduce_by(self._scatter)

    def _resolve(self, policy: Policy) -> Policy:
        """The policy by the shapes of whole parameters, as rules for their names.

        Raises:
            ConfigurationError: a rule that matches no parameter, or a parameter without a rule; a method that cannot scatter.
        """
        policy.check_names(self._pieces.keys())
        rules = []
        for piece in self._pieces.values():
            if piece.name not in self._held:
                continue
            x = torch.empty(piece.shape, device="meta")
            policy.method_for(piece.name, x, 0)
            for rule in policy.rules:
                if rule.matches(piece.name, x, rule.from_step):
                    self._check_method(rule.method, piece)
                    name = glob.escape(piece.name)
                    rules.append(Rule(name, rule.method, from_step=rule.from_step, until_step=rule.until_step))
                    if rule.timeless:
                        break
        return Policy(rules)

    def _check_method(self, method: Method[Any] | str, piece: Piece) -> None:
        assert isinstance(method, Method)
        if not self._replicated and not method.has_scatter:
            raise ConfigurationError(
                f"{spell(method)} has an exchange of its own, which has no reduce-scatter: {piece.name!r} is sharded over all "
                "ranks. Use a compressor, such as topk or qsgd, or a mesh of two dimensions, which takes any method between "
                "its replicas"
            )

    def _settings(self) -> Settings | None:
        return None if self._optimizer is None else read_settings(self._optimizer)

    # ---- during the backward pass -----------------------------------------------------------------------------------
    def _scatter(self, group: ParameterGroup, flat: Tensor, out: Tensor) -> None:
        """Fills ``out`` ``[sum of c]`` with the sum over ranks of this rank's row of ``flat`` ``[W * sum of c]``."""
        self._begin(flat)
        rows = flat.view(self.world, -1)
        widths = [piece.width for piece in group.pieces]
        self._check_widths(group, rows.shape[1], sum(widths))
        names = [piece.name for piece in group.pieces]
        if self._is_plain(group):
            out.copy_(self._session.run(_sum_rows(rows), counted=True).view(-1))
            return
        tensors = {
            name: part.to(torch.float32, memory_format=torch.contiguous_format, copy=True)
            for name, part in zip(names, torch.split(rows, widths, dim=1), strict=True)
            if name in self._session.like
        }
        means = self._session.scatter(tensors, lr=self.lr)
        for name, place in zip(names, torch.split(out, widths), strict=True):
            if name in means:
                place.copy_(means[name].mul_(self.world))

    def _average(self, group: ParameterGroup, flat: Tensor) -> None:
        """Replaces a flat shard by its mean over replicas."""
        self._begin(flat)
        widths = [piece.width for piece in group.pieces]
        self._check_widths(group, flat.numel(), sum(widths))
        shards = {
            piece.name: part[: math.prod(piece.shard)].view(piece.shard)
            for piece, part in zip(group.pieces, torch.split(flat, widths), strict=True)
            if piece.name in self._session.like
        }
        if not shards:
            return
        given = {name: x.to(torch.float32, copy=True) for name, x in shards.items()}
        for name, mean in self._session.exchange(given, lr=self.lr).items():
            shards[name].copy_(mean.mul_(self.world) if group.divided else mean)

    def _check_widths(self, group: ParameterGroup, given: int, expected: int) -> None:
        if given != expected:
            raise self._failed(GraceError(
                f"of the parameters beside {group.name!r} some got no gradient on this rank, or were frozen or unfrozen since "
                "Grace was attached. Unused parameters take torch 2.13 or newer; for others call handle.detach(), and attach "
                "again"
            ))  # fmt: skip

    def _begin(self, flat: Tensor) -> None:
        """The first exchange of a backward pass begins a step, which ends with the pass."""
        if self.error is not None:
            raise self.error
        if flat.dtype not in (torch.float32, torch.bfloat16):
            raise self._failed(InputError(explain_dtype(flat.dtype)))
        if not self._stepping:
            if self._optimizer is not None:
                self.lr = float(self._optimizer.param_groups[0]["lr"])
            self._stepping = at_end_of_backward(self._end)

    def _end(self) -> None:
        self._stepping = False
        if self.error is None:
            self._session.advance()
            self._session.count_step(None if self._replicated else self._half_of_dense())
            self._session.logs.report()

    def _half_of_dense(self) -> int:
        """A reduce-scatter of the gradients as they are moves half of what an all-reduce moves."""
        return sum(4 * x.numel() for x in self._session.like.values()) // 2

    def _is_plain(self, group: ParameterGroup) -> bool:
        """Whether its gradients are to be summed up as they are, to the bit as torch does it."""
        if self._session.options.nonfinite != "propagate":
            return False
        policy, like, step = self._session.policy, self._session.like, self._session.worker.step
        names = [piece.name for piece in group.pieces if piece.name in like]
        return all(policy.method_for(name, like[name], step) == NONE for name in names)

    def _failed(self, error: Exception) -> Exception:
        """Leaves the job, so that ranks that wait for this one hear of it."""
        self._session.close(error)
        return error

    # ---- for the user -----------------------------------------------------------------------------------------------
    def switch(self, method: Policy | Method[Any] | str) -> None:
        self._check_attached()
        super().switch(self._resolve(Policy.of(method)))

    def plan(self) -> ExchangePlan:
        session = self._session
        if self._replicated:
            return session.plan()
        peer = session.peer()
        plain = {piece.name: group.dtype for group in self._groups if self._is_plain(group) for piece in group.pieces}

        def move(name: str, method: Method[Any], rows: Tensor) -> Traffic | None:
            if name in plain:
                return cost(ReduceScatter(rows.to(plain[name])), peer.rank, peer.world)
            return method.scatter_traffic(rows, peer)

        return plan_groups(session.groups, session.like, session.worker.policy, peer, move)

    def load_state_dict(self, saved: Any) -> None:
        self._check_attached()
        super().load_state_dict(saved)

    def checkpoint(
        self, memories: Memories = "mean", workers: int | None = None, *, whole: bool = False
    ) -> ShardedCheckpoint:
        """For ``torch.distributed.checkpoint.save`` and ``load``, by all ranks; loads on any number of workers.

        It keeps the mean of what the memories owe, sharded as the parameters are.

        Raises:
            ConfigurationError: anything but the mean; no rank holds the whole of it.
        """
        if memories != "mean" or workers is not None or whole:
            raise ConfigurationError(
                f"checkpoint({memories!r}, workers={workers}, whole={whole}) of a sharded model; legal: checkpoint(), which "
                "keeps the mean of the memories, each rank a shard of it. handle.state_dict() is all of one rank's"
            )
        self._check_attached()
        parameters = {plain_name(name): p for name, p in self._model.named_parameters()}
        return ShardedCheckpoint(
            self._session, {name: parameters[name] for name in self._session.like}, self._replicated
        )

    def detach(self) -> None:
        """The model goes on without compression, as torch alone would."""
        if self._hooked is not None:
            self._hooked.restore()
            self._hooked = None
            self._session.close()

    def _check_attached(self) -> None:
        if self._hooked is None:
            raise GraceError("this handle is detached; attach again")


def _one_group(groups: list[ParameterGroup]) -> dist.ProcessGroup:
    """The ranks between which gradients are compressed, the same for all groups of parameters."""
    found = [group.replicas or group.shards for group in groups]
    ranks = [dist.get_process_group_ranks(one) for one in found]
    for group, mine in zip(groups, ranks, strict=True):
        if mine != ranks[0] or (group.replicas is None) != (groups[0].replicas is None):
            raise ConfigurationError(
                f"the parameters beside {groups[0].name!r} are shared by ranks {ranks[0]}, those beside {group.name!r} by "
                f"ranks {mine}: Grace compresses between the same ranks for all. Attach to each of the two modules"
            )
    return found[0]


def _sum_rows(rows: Tensor) -> Exchange[Tensor]:
    return (yield ReduceScatter(rows, "sum"))


@register_door("sharded")
class ShardedDoor:
    """The door for models under ``fully_shard``."""

    def takes(self, model: object) -> str | None:
        """See :class:`grace.adapters.doors.Door`."""
        return None if is_sharded(model) else ""

    def open(
        self,
        model: nn.Module,
        method: Policy | Method[Any] | str,
        options: Options,
        *,
        optimizer: torch.optim.Optimizer | None,
        scaler: torch.amp.GradScaler | None,
        transport: str | Transport | None,
    ) -> ShardedHandle:
        """See :class:`grace.adapters.doors.Door`."""
        if scaler is not None:
            raise ConfigurationError(
                "attach: scaler= is for DistributedDataParallel; a sharded model is reduced in float32 or bfloat16"
            )
        return ShardedHandle(model, method, options, optimizer=optimizer, transport=transport)
