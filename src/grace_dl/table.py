"""GRACE's classes, their paths and parameters, what they are in Grace, and what that changes."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from grace.errors import ConfigurationError, nearest, one_of
from grace.registry import spell
from grace_dl.communicator import Communicator
from grace_dl.parts import Compressor, KnownCompressor, KnownMemory, Memory


@dataclass(frozen=True, slots=True)
class Entry:
    """A class of GRACE.

    name: of the class. text: its string in Grace; parameters in braces.
    defaults: GRACE's parameters, in its order, with its helper's values.
    differs: what Grace computes differently, and for whom that matters. others: more names of the class.
    """

    name: str
    text: str
    defaults: Mapping[str, object] = field(default_factory=dict)
    differs: str = ""
    others: tuple[str, ...] = ()


_RATIO: dict[str, object] = {"compress_ratio": 0.3}
COMPRESSORS: dict[str, Entry] = {
    "none": Entry("NoneCompressor", "none"),
    "fp16": Entry(
        "FP16Compressor", "fp16", {},
        "numbers are divided by the number of workers before the cast, so that a sum cannot overflow",
    ),
    "topk": Entry(
        "TopKCompressor", "topk:ratio={compress_ratio}", {**_RATIO, "kernel": "torch"},
        "k is rounded up, not down; indices are packed; of equal magnitudes the first is kept",
    ),
    "randomk": Entry(
        "RandomKCompressor", "randomk:ratio={compress_ratio},scale=false", _RATIO,
        "drawn without replacement: k different numbers travel (at a ratio of 1 torch.distributed sent 63 % of them); the "
        "global generator is left alone",
    ),
    "threshold": Entry("ThresholdCompressor", "threshold:v={threshold}", {"threshold": 0.01}),
    "dgc": Entry(
        "DgcCompressor", "dgc:ratio={compress_ratio}", _RATIO,
        "the threshold comes from a sample of at least 2/ratio numbers, where GRACE's sample of 1 % gave small tensors "
        "arbitrary ones; never more than k numbers travel",
    ),
    "qsgd": Entry(
        "QSGDCompressor", "qsgd:levels={quantum_num},bucket={bucket_size},norm=l2",
        {"quantum_num": 127, "bucket_size": 128},
        "one norm for each bucket in every toolkit, where torch and TensorFlow had one for a whole tensor: far less noise "
        "in large tensors; workers round with different random numbers; a level of 128 no longer becomes -128",
        ("QSGDCompressor_CUDA",),
    ),
    "terngrad": Entry(
        "TernGradCompressor", "terngrad", {},
        "unbiased: no clipping, and one scale for 1,024 numbers; constant tensors and those of one number no longer "
        "become 0",
    ),
    "onebit": Entry(
        "OneBitCompressor", "onebit", {},
        "two means for 1,024 numbers, not for a whole tensor; torch.distributed decoded a mask as 254 and 255",
    ),
    "signsgd": Entry(
        "SignSGDCompressor", "signsgd", {},
        "a majority vote in every toolkit: -1, 0 or 1, where TensorFlow gave a mean of signs; zeros and ties are no longer "
        "votes for +1, which let parameters without a gradient drift",
    ),
    "signum": Entry(
        "SignumCompressor", "signum:beta={momentum}", {"momentum": 0.9},
        "as signsgd; the momentum is a copy, where GRACE's was the gradient's own storage, overwritten at each step",
    ),
    "efsignsgd": Entry(
        "EFSignSGDCompressor", "efsignsgd", {"lr": 0.1},
        "a mean over the workers, where GRACE returned their sum: multiply the learning rate by their number; one scale for "
        "4,096 numbers; the memory is in units of the gradient, so lr is not needed, and the first step is not 1/lr too large",
    ),
    "natural": Entry(
        "NaturalCompressor", "natural", {},
        "exponents count from the largest number, so that none overflows, and inf and NaN are told, not replaced by 2^18",
        ("NaturalCompressor_CUDA",),
    ),
    "powersgd": Entry(
        "PowerSGDCompressor", "powersgd:rank={rank}",
        {"rank": 1, "use_memory": False, "world_size": None, "momentum_factor": 0.9},
        "Q starts where the last step ended, as in the paper, where GRACE drew it anew or not as the memory said; "
        "TensorFlow's further momentum is left to the optimizer; its kernels of convolutions are matrices of [-1, outputs]",
    ),
    "adaq": Entry("AdaqCompressor", "adaq:ratio={compress_ratio}", _RATIO),
    "adapsparse": Entry("AdapSparseCompressor", "gspar:ratio={compress_ratio}", _RATIO, "Grace calls it gspar"),
    "inceptionn": Entry(
        "INCEPTIONNCompressor", "inceptionn:p={error_bound},relative=false", {"error_bound": 2e-10},
        "as in GRACE, of error_bound only the decimal exponent counts, and it is a power of two: 2e-10 bounds the error by "
        "2^-10, here `p=10`; exponents from -6 to -14 are legal",
    ),
    "sketch": Entry(
        "SketchCompressor", "sketch:quantiles={quantiles}", {"quantiles": 64},
        "buckets do not mix signs; codes are packed",
    ),
    "u8bit": Entry(
        "U8bitCompressor", "u8bit", {},
        "the nearest value of the table, where GRACE took its values as edges: the largest number became 0",
    ),
}  # fmt: skip

MEMORIES: dict[str, Entry] = {
    "none": Entry("NoneMemory", "none"),
    "residual": Entry(
        "ResidualMemory", "residual,memory.beta={beta},memory.gamma={gamma}", {"beta": 1.0, "gamma": 1.0},
        "a step with an inf or NaN leaves it as it was",
    ),
    "efsignsgd": Entry(
        "EFSignSGDMemory", "residual", {"lr": 0.1}, "in units of the gradient: the same, if the learning rate is constant",
    ),
    "dgc": Entry(
        "DgcMemory", "dgc,memory.momentum={momentum}",
        {"momentum": 0.9, "gradient_clipping": False, "world_size": None},
        "gradient_clipping cut numbers at the norm of their tensor, so it almost never acted; it does nothing here",
    ),
    "powersgd": Entry(
        "PowerSGDMemory", "residual", {"q_memory": None, "compress_rank": 1},
        "Q is not forgotten",
    ),
}  # fmt: skip

COMMUNICATORS: dict[str, Entry] = {
    "allreduce": Entry("Allreduce", "allreduce"),
    "allgather": Entry("Allgather", "allgather", {}, "tensors of a step are fused; sizes that differ travel once for all"),
    "broadcast": Entry("Broadcast", "broadcast"),
    "all_to_all": Entry(
        "AllToAll", "scatterreduce", {},
        "for every compressor, where GRACE had three; padding is zeros, not what lay in memory"
    ),
}  # fmt: skip

_NAMES: dict[str, dict[str, str]] = {
    "compressor": {**{name: name for name in COMPRESSORS}, "natural_cuda": "natural", "qsgd_cuda": "qsgd"},
    "memory": {name: name for name in MEMORIES},
    "communicator": {"allreduce": "allreduce", "allgather": "allgather", "broadcast": "broadcast", "alltoall": "all_to_all"},
}  # fmt: skip


# ---- classes ----------------------------------------------------------------------------------------------------------
class Inceptionn(KnownCompressor):
    """INCEPTIONN, whose bound is a number in GRACE, and an exponent in Grace."""

    def spell(self) -> str:
        bound = self.error_bound  # type: ignore[attr-defined]
        if not (isinstance(bound, float) and 0 < bound < 1):
            raise ConfigurationError(
                f"INCEPTIONN: error_bound={bound!r} is out of range; legal: 1e-14 to 1e-6, such as 2e-10"
            )
        return self.text.format(error_bound=-math.floor(math.log10(bound)))


class PowerSGD(KnownCompressor):
    """PowerSGD. TensorFlow's parameters were ``momentum_factor, world_size``; the others' began with ``rank``."""

    def __init__(self, *args: object, **knobs: object):
        if args and isinstance(args[0], float):
            knobs.update(zip(("momentum_factor", "world_size"), args, strict=False))
            args = ()
        super().__init__(*args, **knobs)
        self.q_memory: dict[str, Any] = {}


_SPECIAL: dict[str, type[KnownCompressor]] = {"inceptionn": Inceptionn, "powersgd": PowerSGD}


@functools.cache
def compressor(module: str) -> type[KnownCompressor]:
    """GRACE's compressor of this module: one class for all toolkits."""
    entry = COMPRESSORS[module]
    return type(entry.name, (_SPECIAL.get(module, KnownCompressor),), _body(entry, "compressor", module))


@functools.cache
def memory(module: str) -> type[KnownMemory]:
    """GRACE's memory of this module: one class for all toolkits."""
    entry = MEMORIES[module]
    body = _body(entry, "memory", module)
    return type(entry.name, (KnownMemory,), {**body, "feeds_back": module != "none"})


@functools.cache
def communicator(toolkit: str, module: str) -> type[Communicator]:
    """GRACE's communicator of this module."""
    entry = COMMUNICATORS[module]
    body = {"kind": module, "text": entry.text, "__module__": f"grace_dl.{toolkit}.communicator.{module}"}
    return type(entry.name, (_communicator_base(toolkit),), {**body, "known": True})


def _body(entry: Entry, kind: str, module: str) -> dict[str, Any]:
    where = f"grace_dl.torch.{kind}.{module}"
    return {
        "defaults": entry.defaults,
        "text": entry.text,
        "known": True,
        "__module__": where,
        "__doc__": entry.differs,
    }


def _communicator_base(toolkit: str) -> type[Communicator]:
    if toolkit != "tensorflow":
        return Communicator
    from grace_dl.on_tensorflow import TensorFlowCommunicator

    base: type[Communicator] = TensorFlowCommunicator
    return base


# ---- the helper -------------------------------------------------------------------------------------------------------
def grace_from_params(params: Mapping[str, Any], toolkit: str = "dist") -> Communicator:
    """GRACE's helper: the communicator that ``params`` describe, around a compressor and a memory.

    Args:
        params: ``compressor`` ("none"), ``memory`` ("none"), ``communicator`` ("allreduce"), ``world_size`` (the job's), and
            the parameters of the parts, such as ``compress_ratio``.
        toolkit: "dist", "torch" or "tensorflow".

    Raises:
        NotImplementedError: a name or key that GRACE did not have; says which it had.
        ValueError: a ``world_size`` that is not the job's.
        ConfigurationError: parts that cannot work together, and why.
    """
    parts = [*COMPRESSORS.values(), *MEMORIES.values()]
    knobs = {knob for entry in parts for knob in entry.defaults} - {"q_memory", "rank", "use_memory"}
    if strange := params.keys() - {*_NAMES, *knobs, "world_size"}:
        legal = ", ".join([*_NAMES, *sorted(knobs | {"world_size"})])
        raise NotImplementedError(f"params has {', '.join(map(repr, sorted(strange)))}; legal keys: {legal}")
    chosen = {}
    for kind, default in (("compressor", "none"), ("memory", "none"), ("communicator", "allreduce")):
        given = params.get(kind, default)
        if given not in _NAMES[kind]:
            near = nearest(str(given), _NAMES[kind])
            meant = f"did you mean {one_of(near)}? " if near else ""
            raise NotImplementedError(f"{kind}={given!r}; {meant}legal: {', '.join(_NAMES[kind])}")
        chosen[kind] = _NAMES[kind][given]
    compresses = _make(compressor(chosen["compressor"]), params)
    if "compress_rank" in params and chosen["compressor"] == "powersgd":
        compresses.rank = params["compress_rank"]
    remembers = _make(memory(chosen["memory"]), params)
    return communicator(toolkit, chosen["communicator"])(compresses, remembers, params.get("world_size"))


def _make(factory: Any, params: Mapping[str, Any]) -> Any:
    return factory(**{knob: params[knob] for knob in factory.defaults if knob in params})


def describe(params: Mapping[str, Any]) -> dict[str, Any]:
    """Translates these ``params`` into Grace.

    Returns:
        "method": the string that makes it; "differs": by part, what Grace computes differently from GRACE.

    Raises:
        NotImplementedError, ConfigurationError: as :func:`grace_from_params`.
    """
    grc = grace_from_params({key: value for key, value in params.items() if key != "world_size"})
    assert grc.method is not None
    parts = (
        ("compressor", COMPRESSORS, "none"),
        ("memory", MEMORIES, "none"),
        ("communicator", COMMUNICATORS, "allreduce"),
    )
    differs = {}
    for kind, entries, default in parts:
        given = params.get(kind, default)
        if change := entries[_NAMES[kind][given]].differs:
            differs[f"{kind} {given}"] = change
    return {"params": dict(params), "method": spell(grc.method), "differs": differs}


# ---- modules ----------------------------------------------------------------------------------------------------------
def contents(toolkit: str, path: tuple[str, ...]) -> dict[str, object] | None:
    """The contents of the module ``grace_dl.TOOLKIT.PATH``; None if GRACE had no such module."""
    bases = {"Compressor": Compressor, "Memory": Memory}
    if path == ():
        return {**bases, "Communicator": _communicator_base(toolkit)}
    if path == ("helper",):
        return {"grace_from_params": functools.partial(grace_from_params, toolkit=toolkit)}
    if path in (("compressor",), ("memory",), ("communicator",)):
        return {}
    kind, module = path if len(path) == 2 else ("", "")
    if kind == "communicator" and module in COMMUNICATORS:
        cls = communicator(toolkit, module)
        return {cls.__name__: cls}
    if kind == "compressor" and module in COMPRESSORS:
        made = compressor(module)
        return dict.fromkeys((made.__name__, *COMPRESSORS[module].others), made)
    if kind == "memory" and module in MEMORIES:
        kept = memory(module)
        return {kept.__name__: kept}
    return None
