"""Handing gradients over: nothing that is lent is written, nothing that is handed out is overwritten."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.dlpack import to_dlpack

import grace
from grace.adapters.handover import Handover, make_unique
from grace.errors import (
    ConfigurationError,
    DivergenceWarning,
    FingerprintMismatch,
    GraceError,
    InputError,
    NonFiniteError,
    StateError,
)  # fmt: skip
from grace.errors import TransportError as Failed
from grace.run import watch
from grace.run.options import Options
from grace.state import flat
from tests.unit.networks import Loopback, in_threads

TOP = grace.Policy([("*", "topk:ratio=0.25")])

pytestmark = pytest.mark.filterwarnings("ignore::grace.UncompressedWarning")  # tensors are small here


class Forgetful(Loopback):
    """Keeps no buffers."""

    def run(self, op: Any) -> Tensor:
        answer = super().run(op)
        self.asked.clear()
        return answer


def two(method: Any = TOP, **options: Any) -> Handover:
    transport = options.pop("transport", None) or Forgetful()
    kinds = ["float32", torch.float64]
    return Handover(["v", "w"], [(4,), (2, 2)], kinds, method, transport=transport, options=Options(**options))


def some(step: int = 0) -> list[Tensor]:
    return [torch.tensor([1.0, 2, 3, 4 + step]), torch.tensor([[4.0 + step, 3], [2, 1]], dtype=torch.float64)]


def find(handover: Handover) -> int:
    """Address of a step's first mean; nobody holds it afterwards (pytest's assert would)."""
    return present(handover.mean(some()))[0].data_ptr()


def present(means: list[Tensor | None]) -> list[Tensor]:
    assert all(mean is not None for mean in means)
    return [mean for mean in means if mean is not None]


# ---- what is lent and what is handed out ----------------------------------------------------------------------------
@pytest.mark.parametrize("method", ["none", "bf16", "qsgd:bits=4", TOP], ids=str)
def test_what_is_lent_is_not_written(method: Any) -> None:
    handover, lent = two(method), some()
    for _ in range(3):
        handover.mean(lent)
    assert all(torch.equal(x, y) for x, y in zip(lent, some(), strict=True))


@pytest.mark.parametrize("method", ["none", "bf16", TOP], ids=str)
def test_what_is_handed_out_is_not_overwritten(method: Any) -> None:
    handover = two(method)
    held = [present(handover.mean(some(step))) for step in range(5)]
    copies = [[x.clone() for x in means] for means in held]
    assert len({means[0].data_ptr() for means in held}) == 5
    handover.mean(some(9))
    assert all(torch.equal(x, y) for a, b in zip(held, copies, strict=True) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize(
    "hold", [to_dlpack, Tensor.numpy, lambda x: x[1:], torch.detach], ids=["capsule", "array", "view", "detached"]
)
def test_a_capsule_an_array_or_a_view_holds_it_too(hold: Any) -> None:
    handover = two("none")
    means = present(handover.mean(some()))
    address, held = means[0].data_ptr(), hold(means[0])
    del means
    while_held = {find(handover) for _ in range(4)}
    del held
    assert address not in while_held
    assert find(handover) == address


def test_storage_is_used_again() -> None:
    handover = two("none")
    addresses = set()
    for step in range(8):
        addresses.add(present(handover.mean(some(step)))[0].data_ptr())
    assert len(addresses) == 1
    previous = present(handover.mean(some()))
    for step in range(8):
        previous = present(handover.mean(some(step)))
        addresses.add(previous[0].data_ptr())
    assert len(addresses) == 2, "while the last means are held, the other buffer is filled"


def test_all_that_is_handed_out_begins_where_jax_wants_it() -> None:
    names, shapes = ["a", "b", "c", "d"], [(3,), (), (0, 5), (7, 3)]
    handover = Handover(names, shapes, ["float16", "bfloat16", "float64", "float32"], "none", transport=Loopback())
    means = present(handover.mean([torch.ones(shape).to(d) for shape, d in zip(shapes, handover.dtypes, strict=True)]))
    assert [tuple(x.shape) for x in means] == shapes
    assert [x.data_ptr() % 64 for x in means if x.numel()] == [0, 0, 0]
    assert all(bool((x == 1).all()) for x in means)


# ---- layouts, names, kinds ------------------------------------------------------------------------------------------
def test_kernels_of_convolutions_are_exchanged_as_matrices() -> None:
    kernel = torch.randn(3, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    handover = Handover(["conv/kernel"], [kernel.shape], ["float32"], "powersgd:rank=4", transport=Loopback())
    (mean,) = present(handover.mean([kernel]))
    sim = grace.Simulator("powersgd:rank=4", world=1)
    expected = sim.step({"conv/kernel": [kernel.reshape(576, 64)]})["conv/kernel"]
    assert torch.equal(mean, expected.reshape(3, 3, 64, 64))
    assert sim.traffic[0] == handover.stats.traffic


def test_names_are_made_unique() -> None:
    assert make_unique(["w", "b"]) == ["w", "b"]
    assert make_unique(["w", "b", "w"]) == ["0:w", "b", "2:w"]
    assert make_unique(["w", "w", "1:w"]) == ["0:w", "1:w", "2:1:w"]


@pytest.mark.parametrize("dtype", ["int32", "complex64", "string", "bool", torch.int64, "resource"])
def test_only_real_numbers(dtype: Any) -> None:
    transport = Loopback()
    with pytest.raises(InputError, match=r"'table' is \w+; legal: float16, bfloat16"):
        Handover(["w", "table"], [(2,), (2,)], ["float32", dtype], "none", transport=transport)
    assert isinstance(transport.error, InputError), "the other ranks hear of it"


def test_nothing_to_exchange() -> None:
    with pytest.raises(ConfigurationError, match="nothing to exchange"):
        Handover([], [], [], "none", transport=Loopback())


# ---- a step ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (lambda v, w: [v], "1 gradients, and 2 variables"),
        (lambda v, w: [v, w, w], "3 gradients, and 2 variables"),
        (lambda v, w: [v, w.view(4)], r"'w' is float64 \(4,\), and was float64 \(2, 2\)"),
        (lambda v, w: [v.half(), w], r"'v' is float16 \(4,\), and was float32"),
        (lambda v, w: [v.to_sparse(), w], "'v' is torch.sparse_coo"),
    ],
)
def test_another_structure_ends_the_exchange(wrong: Any, text: str) -> None:
    transport = Loopback()
    handover = two(transport=transport)
    handover.mean(some())
    with pytest.raises(InputError, match=text) as caught:
        handover.mean(wrong(*some()))
    assert handover.error is transport.error is caught.value
    with pytest.raises(InputError, match=text):
        handover.mean(some())


def test_a_failure_is_kept() -> None:
    handover = two(transport=Loopback(fail_at=2))
    handover.mean(some())
    for _ in range(2):
        with pytest.raises(Failed, match="a worker died"):
            handover.mean(some())
    assert isinstance(handover.error, Failed)


def test_a_training_that_drifts_apart_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch.DebtWatch, "_grows", lambda self: True)
    monkeypatch.setattr(watch, "WINDOW", 1)
    monkeypatch.setattr(watch, "IN_A_ROW", 1)
    handover = two()
    handover.mean(some())  # the first step only finds out which tensors are the largest
    with pytest.warns(DivergenceWarning, match="drifts apart"):
        handover.mean(some())
    handover.mean(some())  # warnings are errors


def test_who_fails_before_its_first_step_does_not_leave_others_waiting() -> None:
    def job(transport: Any, rank: int) -> None:
        handover = two(transport=transport)
        try:
            handover.mean(some()[: 2 - rank])
        finally:
            assert transport.error is handover.error, "it says so to the others"

    others, error = in_threads(2, job)
    assert isinstance(error, InputError)
    assert isinstance(others, Failed)


def test_an_exchange_that_was_left_says_so() -> None:
    handover = two()
    handover.close()
    with pytest.raises(GraceError, match="closed"):
        handover.mean(some())


def test_an_inf_as_an_error_is_no_end() -> None:
    handover = two("none", nonfinite="error")
    v, w = some()
    with pytest.raises(NonFiniteError, match="'v'"):
        handover.mean([v / 0, w])
    assert handover.error is None
    assert torch.equal(present(handover.mean(some()))[0], v)


def test_a_second_thread_is_refused() -> None:
    handover = two("none")
    seen: list[BaseException] = []

    def other() -> None:
        try:
            handover.mean(some())
        except GraceError as error:
            seen.append(error)

    run = Loopback.run

    class Slow(Loopback):
        def run(self, op: Any) -> Tensor:
            thread = threading.Thread(target=other)
            thread.start()
            thread.join()
            return run(self, op)

    handover = two("none", transport=Slow())
    handover.mean(some())
    assert seen
    assert all("another thread" in str(error) for error in seen)
    assert handover.error is None


# ---- no gradient ----------------------------------------------------------------------------------------------------
def test_what_no_rank_has_stays_none() -> None:
    handover = two("none")
    assert handover.mean([some()[0], None])[1] is None
    assert handover.mean([None, None])[1] is None
    with pytest.raises(InputError, match="a gradient of 'w' has come"):
        handover.mean(some())


def test_what_one_rank_has_is_a_mean_on_all() -> None:
    def job(transport: Any, rank: int) -> list[Tensor | None]:
        handover = two("none", transport=transport)
        v = some()[0]
        handover.agree_absent([rank == 0, True])  # as one would who traces first
        first = handover.mean([v if rank else None, None])
        return [*first, *handover.mean([v, None])]

    for means in in_threads(2, job):
        assert means[0].tolist() == [0.5, 1, 1.5, 2]
        assert means[1] is means[3] is None
        assert means[2].tolist() == [1, 2, 3, 4]


# ---- several ranks --------------------------------------------------------------------------------------------------
def test_the_means_are_the_simulators() -> None:
    sim = grace.Simulator(TOP, world=2)

    def job(transport: Any, rank: int) -> list[Tensor]:
        handover = two(transport=transport)
        return [x for step in range(4) for x in present(handover.mean(some(step * (rank + 1))))]

    expected = []
    for step in range(4):
        means = sim.step({n: [some(step)[i], some(2 * step)[i]] for i, n in enumerate("vw")})
        expected += [means["v"], means["w"]]
    for means in in_threads(2, job):
        assert all(torch.equal(x, y) for x, y in zip(means, expected, strict=True))


def test_ranks_that_differ() -> None:
    def job(transport: Any, rank: int) -> Handover:
        return Handover(["v"], [(4 + rank,)], ["float32"], "none", transport=transport)

    assert all(isinstance(result, FingerprintMismatch) for result in in_threads(2, job))


# ---- learning rate, scale, state ------------------------------------------------------------------------------------
def test_the_scale_is_not_in_the_memory() -> None:
    plain, scaled = two(), two()
    for step in range(4):
        expected = present(plain.mean(some(step)))
        scale = 2.0 ** (step + 3)
        means = present(scaled.mean([scale * x for x in some(step)], scale=scale))
        assert all(torch.equal(x / scale, y) for x, y in zip(means, expected, strict=True))


def test_memories_follow_the_learning_rate() -> None:
    method = grace.Policy([("*", "topk:ratio=0.25,follow_lr=true")])
    sim = grace.Simulator(method, world=1)
    handover = two(method)
    for step, lr in enumerate((1.0, 0.5, 0.1)):
        expected = sim.step({"v": [some(step)[0]], "w": [some(step)[1]]}, lr=lr)
        means = present(handover.mean(some(step), lr=lr))
        assert torch.equal(means[0], expected["v"])


@pytest.mark.parametrize("form", [lambda state: state, flat], ids=["tensors", "arrays"])
def test_states_go_on(form: Any) -> None:
    whole, first, second = two(), two(), two()
    for step in range(6):
        expected = present(whole.mean(some(step)))
        if step == 3:
            second.load_state_dict(form(first.state_dict()))
        means = present((first if step < 3 else second).mean(some(step)))
        assert torch.equal(means[0], expected[0])
    with pytest.raises(StateError):
        two("qsgd").load_state_dict(form(first.state_dict()))


def test_what_auto_extrapolates_from_torch_is_told() -> None:
    assert two()._site().beyond == ("gradients of another toolkit",)
