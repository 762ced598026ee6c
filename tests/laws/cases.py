"""What the laws run over. A new method is one line in ``KNOBS``, and one in ``EXACT`` if it recovers something exactly."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

import grace
from grace.errors import CompositionError
from grace.method import Method

COMMUNICATORS = ("allreduce", "allgather", "broadcast", "scatterreduce", "parameterserver")

# Every communicator and memory is run around these, which have all kinds of wires; around others what their recipe says.
AROUND = ("none", "fp16", "efsignsgd", "qsgd", "randomk", "threshold", "topk")

# name: knobs. They are run as the recipe says; where nothing else is said, the first also over ScatterReduce.
KNOBS: dict[str, list[str]] = {
    "none": [""],
    "fp16": [""],
    "bf16": [""],
    "efsignsgd": ["block=32", "", "block=1", "block=7,beta=0.9,gamma=0.5"],
    "powersgd": ["rank=2,min_rate=0.1", "rank=1,min_rate=0.1,warm_start=false", "start_step=1,min_rate=0.1", ""],
    "qsgd": [
        "bits=4,bucket=32",
        "levels=1",
        "bits=2,norm=l2",
        "bits=3,bucket=7,norm=l2",
        "bits=8",
        "levels=5,memory=residual",
        "bits=16,bucket=1",
        "levels=4,shrink=true",
    ],
    "randomk": ["ratio=0.3", "ratio=1", "ratio=0.001", "ratio=0.5,scale=true,memory=none", "scale=false,memory=none"],
    "signsgd": ["", "zero=abstain", "zero=plus"],
    "threshold": ["v=0.5", "v=1e-6", "v=1e6", "v=1.5,relative=true"],
    "topk": ["ratio=0.2", "ratio=1", "ratio=0.001,index=raw", "ratio=0.1,index=rice", "ratio=0.3,values=bfloat16"],
    "u8bit": ["block=32", "", "block=7,map=bnb"],
    "onebit": ["group=32", "group=7,tau=0.1", "group=16,communicator=scatterreduce,server_memory=true"],
    "natural": ["", "bits=9", "bits=4,block=16", "bits=4,memory=residual"],
    "terngrad": ["bucket=32", "clip=2.5", "clip=1,memory=residual"],
    "lpc": ["block=32", "bits=2,clip=0.5", "bits=8,clip=0.9,memory=residual", "bits=3,shrink=true"],
    "inceptionn": ["", "p=6,relative=false", "p=14"],
    "signum": ["", "zero=abstain,beta=0.5"],
    "fp8": ["block=32", "fmt=e5m2", "stochastic=true"],
    "3lc": ["", "zre=false", "s=1.7"],
    "rht": ["block=16", "inner=(lpc:bits=3,block=8),rounds=2"],
    "drive": ["block=16", "scale=mse"],
    "eden": ["block=16", "bits=2,scale=mse,memory=residual"],
    "thc": ["block=16", "bits=3"],
    "gspar": ["ratio=0.3", "ratio=0.2,index=rice"],
    "atomo": ["ratio=0.3"],
    "sidco": ["ratio=0.2"],
    "blockrandomk": ["ratio=0.3,block=8", "ratio=0.3,block=8,mode=cyclic", "ratio=0.2,block=4,mode=clt"],
    "qsparse": ["ratio=0.2", "ratio=0.2,quant=3"],
    "dgc": ["ratio=0.2", "ratio=0.2,memory=residual"],
    "adaq": ["ratio=0.2"],
    "strom": ["tau=0.3,relative=false", ""],
    "sketch": ["quantiles=8"],
    "sketchml": ["", "memory=residual"],
    "varsparse": [""],
    "sketchedsgd": ["ratio=0.1"],
    "acpsgd": ["rank=2,min_rate=0.1"],
    "gradzip": ["rank=2,min_rate=0.1", "rank=2,min_rate=0.1,alternate=true"],
    "gradiveq": ["length=8,dims=2,collect=2,use=3"],
    "atomosvd": ["rank=2,min_rate=0.1"],
}


# ---- inputs that come back exactly ----------------------------------------------------------------------------------
def sparse(rank: int) -> Tensor:
    """Every worker has the same two non-zeros, so that their mean is as sparse."""
    x = torch.zeros(10, 6)
    x[3, 1], x[7, 4] = -2.0 * (rank + 1), 1.0 * (rank + 1)
    return x


def whole(rank: int) -> Tensor:
    """Whole multiples of 8: a sixteenth of them has few bits."""
    return torch.arange(-30.0, 30.0).mul(8 + 8 * (rank % 2)).view(10, 6)


def one_hot(rank: int) -> Tensor:
    """One non-zero."""
    x = torch.zeros(60)
    x[11] = -3.0 * (rank + 1)
    return x


def same_size(rank: int) -> Tensor:
    """Signs of one magnitude."""
    return torch.where(torch.arange(60) % 3 == 0, 1.0, -1.0).mul(4.0 * (rank + 1))


def rank_one(rank: int) -> Tensor:
    """A matrix of rank one, whose mean over workers is of rank one."""
    return torch.outer(torch.arange(1.0, 21.0), torch.linspace(-1, 1, 15)).mul(rank + 1.0)


# method: what it sends back without error, for workers 0, 1, ...
EXACT: dict[str, tuple[str, Callable[[int], Tensor]]] = {
    "none": ("none", whole),
    "fp16": ("fp16", whole),
    "bf16": ("bf16:communicator=allgather", whole),
    "efsignsgd": ("efsignsgd:memory=none", same_size),
    "powersgd": ("powersgd:rank=1,min_rate=0.1,memory=none", rank_one),
    "qsgd": ("qsgd:bits=4", one_hot),
    "randomk": ("randomk:ratio=1,memory=none", whole),
    "threshold": ("threshold:v=0.5,memory=none", sparse),
    "topk": ("topk:ratio=0.03,memory=none", sparse),
}


def _spec(name: str, *knobs: str) -> str:
    given = ",".join(knob for knob in knobs if knob)
    return f"{name}:{given}" if given else name


def _specs() -> list[str]:
    out: list[str] = []
    for name, (first, *others) in KNOBS.items():
        bare = grace.registry.recipe(name).communicator is None
        out += [_spec(name, knobs) for knobs in (first, *others)]
        if name in AROUND:
            around = [f"communicator={communicator}" for communicator in COMMUNICATORS]
            out += [_spec(name, first, one, f"memory={m}") for one in around for m in ("none", "residual")]
            out.append(_spec(name, first, "memory=momentum"))
        elif bare:
            out.append(_spec(name, first, "memory=none"))
        else:
            out += [_spec(name, first, "communicator=scatterreduce"), _spec(name, first, "memory=none")]
    return out


def _cases() -> dict[str, Method]:
    made = {}
    for spec in _specs():
        try:
            made[spec] = grace.method(spec)
        except CompositionError:  # pieces that do not fit; tests/unit/test_communicators.py asserts which, and why
            continue
    last = "parameterserver:server=1"
    inner = grace.method("topk:ratio=0.2")
    return made | {
        "momentum(residual(topk))": grace.Momentum(inner),
        last: grace.ParameterServer(grace.QSGD(bits=3), 1),
    }


CASES: dict[str, Method] = _cases()
