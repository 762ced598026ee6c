"""Methods whose wires are as long as the data want, of a bucket by few launches and one question: bytes, means and memories
as on the CPU, one tensor after the other.

Triton's interpreter, and tensors on the CPU, stand in for an accelerator.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

triton = pytest.importorskip("triton", reason="needs the package triton")
tl = pytest.importorskip("triton.language")

from triton.runtime.interpreter import GridExecutor

from grace.compute import backends
from grace.flags.finite import cpu_as_accelerator
from grace.registry.policy import Policy
from grace.run.worker import Worker
from grace.verify.no_sync import _ASKING, _READING, _name
from tests.laws.bucket_runs import SOME, Run, Shapes, assert_same, gradients, in_dtype
from tests.laws.launches import LAUNCHES
from tests.laws.test_many import LARGE, SHAPES, SMALL, _run
from tests.unit.kernels.triton_checks import CAUGHT, interpreter, let_agree, night

__all__ = ["interpreter"]

SPREAD = True  # over the test runner's processes
# Some of whose tensors go without a list, some with none of their numbers, and some are not finite.
SHARE = (
    ("threshold:v=1.5", torch.float32), ("threshold:v=1.2,relative=true,index=elias-fano,values=bfloat16", torch.float32),
    ("strom:tau=0.7,quanta=5,index=raw", torch.float32),
    ("threshold:v=1.5,index=rice", torch.float32), ("threshold:v=1.2,index=delta,values=bfloat16", torch.float16),
    ("3lc:s=1.9", torch.bfloat16), ("threshold:v=1.5,communicator=broadcast", torch.float16),
    ("topk:ratio=0.2,index=rice,communicator=broadcast", torch.float32), ("inceptionn:p=8,memory=residual", torch.float32),
)  # fmt: skip
MIXED: Shapes = ((41,), (2, 3), (1,))
AT_NIGHT = {
    "threshold:v=1.5,index=raw,memory=none": SHAPES,
    "threshold:v=2.5,index=bitmap": SHAPES,
    "threshold:v=0.001,values=bfloat16": SMALL,
    "threshold:v=1e6,memory=none": SMALL,
    "threshold:v=2": LARGE,
    "threshold:v=1.5,relative=true,index=elias-fano": LARGE,
    "dgc:ratio=0.1": MIXED,
    "dgc:ratio=0.1,nesterov=true": MIXED,
    "dgc:ratio=0.2,clip=0.5,momentum=0.5": SHAPES,
    "dgc:ratio=0.1,masking=false": LARGE,
    "dgc:ratio=0.1,memory=residual": MIXED,
    "dgc:ratio=0.1,warmup=2,memory=residual": LARGE,
    "dgc:ratio=0.5,memory=none,values=bfloat16": SHAPES,
    "sidco:ratio=0.2": SHAPES,
    "sidco:ratio=0.02,period=1": LARGE,
    "sidco:ratio=0.3,values=bfloat16,memory=none": MIXED,
    "sidco:ratio=0.2,dist=gpareto": SMALL,
    "sidco:ratio=0.05,dist=gpareto,period=1": MIXED,
    "sidco:ratio=0.2,dist=gamma": SMALL,
    "sidco:ratio=0.05,dist=gamma,period=1": MIXED,
    "threshold:v=1,index=rice": SHAPES,
    "threshold:v=2,index=delta,memory=none": LARGE,
    "threshold:v=1e6,index=rice": SMALL,
    "dgc:ratio=0.1,index=delta,memory=residual": MIXED,
    "strom:tau=1,relative=false,index=elias-fano": SHAPES,
    "strom:tau=0.9,quanta=65536,index=rice": SHAPES,
    "strom:tau=0.5,quanta=3,memory=none": SMALL,
    "strom:tau=1.5": LARGE,
    "varsparse": SHAPES,
    "varsparse:alpha=0.5,index=raw": SMALL,
    "varsparse:alpha=0.5,index=rice,zeta=0.5": SHAPES,
    "varsparse:keep_error=false,alpha=0.9": LARGE,
    "adaq:ratio=0.2": SHAPES,
    "adaq:ratio=0.02,index=elias-fano": LARGE,
    "adaq:ratio=0.3,joint=true,index=raw": SMALL,
    "adaq:ratio=0.5,joint=true,index=delta,memory=none": LARGE,
    "adaq:ratio=0.3,index=rice": SHAPES,
    "adaq:ratio=1,index=bitmap,memory=none": SMALL,
    "adaq:ratio=0.2,sample=4": MIXED,
    "adaq:ratio=0.5,sample=2,joint=true,index=rice,memory=none": SHAPES,
    "topk:ratio=0.2,index=rice": SHAPES,
    "topk:ratio=0.05,index=delta,values=bfloat16": LARGE,
    "topk:ratio=0.3,index=rice,memory=none": SMALL,
    "qsparse:ratio=0.2,index=rice": SHAPES,
    "qsparse:ratio=0.05,quant=4,index=delta": LARGE,
    "qsparse:ratio=0.3,quant=200,index=rice": SMALL,
    "gspar:ratio=0.2": SHAPES,
    "atomo:ratio=0.2": SHAPES,
    "atomo:budget=7,index=elias-fano,memory=residual": MIXED,
    "atomo:ratio=0.3,index=rice,memory=residual": MIXED,
    "atomo:budget=9,index=delta": MIXED,
    "gspar:epsilon=0.5,index=raw,memory=residual": MIXED,
    "gspar:ratio=0.05,rounds=1,index=elias-fano,memory=residual": LARGE,
    "gspar:ratio=0.9,index=bitmap": SMALL,
    "gspar:ratio=0.3,index=rice,memory=residual": MIXED,
    "gspar:ratio=0.1,index=delta": LARGE,
    "inceptionn": SMALL,
    "inceptionn:p=7,relative=false,memory=residual": MIXED,
    "3lc": SMALL,
    "3lc:s=1.9,memory=none": MIXED,
    "sketchml": SMALL,
    "sketchml:quantiles=5,groups=3,rows=1,share=1,index=raw": MIXED,
    "sketchml:quantiles=40,groups=40,rows=3,index=elias-fano,memory=none": MIXED,
    "sketchml:index=delta": SHAPES,
    "sketchml:quantiles=5,groups=3,index=rice": MIXED,
    "sketchml:quantiles=40,groups=40,index=rice,memory=none": LARGE,
    "threshold:v=1.2,index=delta,communicator=broadcast": SHAPES,
    "topk:ratio=0.05,index=delta,communicator=broadcast": LARGE,
    "dgc:ratio=0.1,communicator=broadcast": MIXED,
    "strom:tau=0.7,quanta=5,communicator=broadcast": SHAPES,
    "gspar:ratio=0.2,index=rice,communicator=broadcast": MIXED,
    "atomo:ratio=0.2,communicator=broadcast": MIXED,
    "adaq:ratio=0.2,communicator=broadcast": SHAPES,
    "sketchml:index=delta,communicator=broadcast": MIXED,
    "3lc:communicator=broadcast": MIXED,
    "inceptionn:communicator=broadcast": SMALL,
}
# Methods whose launches and questions are counted of one tensor, too.
COUNTED = (
    "threshold", "threshold:relative=true", "dgc:memory=residual", "dgc", "sidco", "topk:index=rice", "inceptionn",
    "varsparse", "topk:index=delta", "qsparse:index=rice", "3lc", "strom", "gspar", "atomo", "adaq", "sketchml",
)  # fmt: skip
# What a kernel that does not run is said to have told: its name, an argument, what is there then. Of others: _plan, widths.
TOLD = {"3lc": ("scan_kernel", "total", 1), "adaq": ("_plan", "widths", 14), "sketchml": ("_lay", "widths", 80)}


@functools.cache
def outcome(
    spec: str, dtype: torch.dtype, backend: str, together: bool, shapes: Shapes = MIXED, world: int = 2
) -> tuple[Any, Any]:
    """Means and states of three steps, the third of which is not finite; and what the network was given."""
    with backends.using(backend), cpu_as_accelerator():
        run = Run(Policy([("*", spec)]), world, shapes, lambda _: together, dtype)
        return [run.step() for _ in range(3)], run.seen


@pytest.mark.parametrize(("spec", "dtype"), SHARE)
def test_a_bucket_has_the_bytes_of_the_cpu(spec: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    module, sizes = importlib.import_module("grace.communicators.one_hop"), list[int]()
    monkeypatch.setattr(module, "exchange_counted", functools.partial(_look, module.exchange_counted, sizes))
    assert outcome(spec, dtype, "triton", True) == outcome(spec, dtype, "reference", False)
    assert sizes == [len(MIXED)] * 6, "of two ranks, three steps"


def _look(exchange: Any, sizes: list[int], *args: Any) -> Any:
    """Notes the number of tensors that go together."""
    sizes.append(len(args[2]))
    return exchange(*args)


@night
def test_messages_that_are_not_taken_apart_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grace.communicators.broadcast.torch._foreach_copy_", lambda *_: None)
    spec = "threshold:v=1.5,communicator=broadcast,memory=none"
    want = outcome(spec, torch.float32, "reference", False)
    with pytest.raises(CAUGHT):
        assert outcome(spec, torch.float32, "triton", True) == want


def test_one_tensor_goes_the_same_way() -> None:
    spec, dtype = SHARE[0]
    assert outcome(spec, dtype, "triton", False, MIXED[:2]) == outcome(spec, dtype, "reference", False, MIXED[:2])


@night
def test_others_may_stand_between_them_and_ranks_need_not_choose_alike() -> None:
    policy = Policy([("layer1", "efsignsgd"), ("layer2", "none"), ("*", "threshold:v=1.5")])
    with backends.using("triton"), cpu_as_accelerator():
        assert_same(policy, 3, (*MIXED, (5,)), plans=SOME)


@pytest.mark.parametrize(
    ("family", "spec"),
    [
        ("variable_sparse", "threshold:v=1.5"),
        pytest.param("variable_sparse", "threshold:v=1.5,index=rice", marks=night),
        pytest.param("sampling", "gspar:ratio=0.3", marks=night),
        ("tagged_fixed_point", "inceptionn:p=8"),
        pytest.param("minmax_sketch", "sketchml", marks=night),
        pytest.param("minmax_sketch", "sketchml:index=delta", marks=night),
    ],
)
def test_tensors_too_large_to_choose_from_are_chosen_one_by_one(
    family: str, spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    want = outcome(spec, torch.float32, "reference", False, MIXED, 1)
    monkeypatch.setattr(f"grace.kernels.{family}.triton.MOST", 5)
    assert outcome(spec, torch.float32, "triton", True, MIXED, 1) == want


@night
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("spec", AT_NIGHT)
def test_buckets_of_all_kinds(spec: str, dtype: torch.dtype) -> None:
    shapes = AT_NIGHT[spec]
    want = outcome(spec, dtype, "reference", False, shapes, 3)
    assert outcome(spec, dtype, "triton", True, shapes, 3) == want
    assert outcome(spec, dtype, "triton", False, shapes, 3) == want
    with backends.using("triton"), cpu_as_accelerator():
        assert_same(Policy([("*", spec)]), 2, shapes, dtype=dtype, plans=SOME)


# ---- launches, and questions ----------------------------------------------------------------------------------------
class Questions(TorchFunctionMode):
    """Counts where the host reads a tensor."""

    count = 0

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self.count += getattr(func, "__name__", "") in _READING
        return func(*args, **(kwargs or {}))


class Waits(TorchDispatchMode):  # type: ignore[misc]
    """Counts where it has to wait for a number."""

    count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self.count += _name(func) in _ASKING
        return func(*args, **(kwargs or {}))


def count_work(
    spec: str, shapes: Shapes, monkeypatch: pytest.MonkeyPatch, *, runs: bool = False, dtype: torch.dtype = torch.float32,
    backend: str = "triton", told: int | None = None,
) -> tuple[int, int]:  # fmt: skip
    """Counts of the second step: (launches, questions). Unless it ``runs``, each wire is said to hold one number, or so
    many.
    """
    launches, execute = [0], GridExecutor.__call__
    teller, argument, number = TOLD.get(spec.split(":")[0], ("_plan", "widths", 9))
    number = number if told is None else told

    def only_count(executor: Any, *args: Any, **how: Any) -> None:
        launches[0] += 1
        if runs:
            execute(executor, *args, **how)
        elif executor.fn.__name__ == teller:
            args[executor.arg_names.index(argument)].fill_(number)
        else:
            let_agree(executor, args)

    monkeypatch.setattr("triton.runtime.interpreter.GridExecutor.__call__", only_count)
    with backends.using(backend), cpu_as_accelerator():
        worker, given = Worker(Policy([("*", spec)]), 0, 1), in_dtype(gradients(0, 0, shapes), dtype)
        worker.lr = 0.1
        _run(worker, given, scatters=False)
        worker.workspace.reset()
        worker.advance()
        worker._read_pending()
        launches[0] = 0
        with Questions() as read, Waits() as waited:  # type: ignore[no-untyped-call]
            _run(worker, given, scatters=False)
    monkeypatch.undo()
    return launches[0], read.count + waited.count


@pytest.mark.parametrize("spec", COUNTED)
def test_launches_and_questions_do_not_grow_with_the_bucket(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = [count_work(spec, ((3,),) * T, monkeypatch) for T in (1, 3, 40)]
    assert counts == [LAUNCHES[spec]] * 3


@pytest.mark.parametrize("dtype", [torch.bfloat16, pytest.param(torch.float16, marks=night)], ids=str)
def test_narrow_gradients_take_one_launch_more(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = [count_work("varsparse", ((3,),) * T, monkeypatch, dtype=dtype) for T in (1, 3, 40)]
    launches, asked = LAUNCHES["varsparse"]
    assert counts == [(launches + 1, asked)] * 3


# ---- variants that Triton compiles ----------------------------------------------------------------------------------
VARYING = (
    "threshold:v=1.5,index=rice", "sidco:ratio=0.2", "strom", "varsparse", "gspar", "gspar:index=rice", "atomo", "3lc",
    "adaq:ratio=0.2,sample=4", "sketchml:index=delta",
)  # fmt: skip


@pytest.mark.parametrize(
    "spec", ["threshold:v=1.5", "sketchml", *(pytest.param(spec, marks=night) for spec in VARYING)]
)
def test_no_variant_of_a_kernel_depends_on_the_numbers(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton compiles a kernel anew for integers that are 1, and for multiples of 16. Those that it looks at may not follow
    the data: each rank would stop in mid-training for a compiler, at another step.
    """
    module, launches = importlib.import_module("triton.runtime.interpreter"), dict[Any, set[Any]]()
    run = module.InterpretedFunction.run

    def note(kernel: Any, *args: Any, **how: Any) -> Any:
        opaque = kernel.kwargs["do_not_specialize"] or ()
        given = zip(kernel.arg_names, args, strict=False)
        which = (
            kernel.fn.__module__,
            kernel.fn.__name__,
            *sorted((name, n) for name, n in how.items() if name != "grid"),
        )
        seen = launches.setdefault(which, set())
        seen.add(tuple((name, n) for name, n in given if isinstance(n, int) and name not in opaque))
        return run(kernel, *args, **how)

    monkeypatch.setattr(module.InterpretedFunction, "run", note)
    with backends.using("triton"), cpu_as_accelerator():
        steps = Run(Policy([("*", spec)]), 2, (*MIXED, (700,)), lambda _: True)
        steps.step()
        first, launches = launches, {}
        steps.step()
    both = first.keys() & launches.keys()
    assert both
    assert {which: first[which] ^ launches[which] for which in both if first[which] != launches[which]} == {}
