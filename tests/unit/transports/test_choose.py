"""Choice of a job's transport: by name, by variable, and by how it was launched."""

from __future__ import annotations

import logging
import sys
import types

import pytest
import torch

import grace
from grace.collectives import AllGather, AllReduce, AllToAll, Broadcast, Permute, ReduceScatter
from grace.errors import ConfigurationError, TransportError, UnknownNameError
from grace.run.session import Session
from grace.run.simulate import answers
from grace.transports import choose as module
from grace.transports.alone import Alone
from grace.transports.base import describe
from grace.transports.choose import TransportChoice, choose

TORCHRUN = {"RANK": "0", "WORLD_SIZE": "2"}
SLURM = {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2", "MASTER_ADDR": "localhost"}


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment that says nothing."""
    for name in ("GRACE_TRANSPORT", "RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID",
                 "SLURM_STEP_NUM_TASKS", "TORCHELASTIC_RUN_ID"):  # fmt: skip
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("env", "choice"),
    [
        ({}, TransportChoice("alone", "nothing says that there are other workers")),
        (SLURM, TransportChoice("gloo", "SLURM_PROCID is set")),
        ({**SLURM, **TORCHRUN}, TransportChoice("gloo", "RANK and WORLD_SIZE are set")),
        ({**TORCHRUN, "PMI_RANK": "0"}, TransportChoice("mpi", "PMI_RANK is set")),
        (
            {**TORCHRUN, "PMI_RANK": "0", "TORCHELASTIC_RUN_ID": "x"},
            TransportChoice("gloo", "RANK and WORLD_SIZE are set"),
        ),
        ({**TORCHRUN, "GRACE_TRANSPORT": "alone"}, TransportChoice("alone", "GRACE_TRANSPORT asks for it")),
        ({**TORCHRUN, "GRACE_TRANSPORT": "auto"}, TransportChoice("gloo", "RANK and WORLD_SIZE are set")),
    ],
)
def test_the_environment_decides(env: dict[str, str], choice: TransportChoice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_why_no_mpi", lambda: None)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert choose() == choice
    assert choose("mpi") == TransportChoice("mpi", "asked for"), "an argument comes before all else"


def test_without_mpi4py_it_is_gloo_and_the_reason_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    monkeypatch.delitem(sys.modules, "mpi4py.MPI", raising=False)
    monkeypatch.setenv("PMI_RANK", "1")
    monkeypatch.setenv("PMI_SIZE", "2")
    choice = choose()
    assert choice.name == "gloo"
    assert "pip install 'grace-dl[mpi]'" in choice.why
    with pytest.raises(ConfigurationError, match=r"grace-dl\[mpi\].*or set MASTER_ADDR and MASTER_PORT"):
        grace.transport()


def test_horovod_where_the_script_has_initialized_it(monkeypatch: pytest.MonkeyPatch) -> None:
    started = False
    monkeypatch.setitem(sys.modules, "horovod.torch", types.SimpleNamespace(is_initialized=lambda: started))
    assert choose().name == "alone"
    started = True
    assert choose() == TransportChoice("horovod", "Horovod is initialized")


def test_jax_where_there_are_several_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    distributed = types.SimpleNamespace(is_initialized=lambda: True)
    monkeypatch.setitem(sys.modules, "jax", types.SimpleNamespace(distributed=distributed, process_count=lambda: 2))
    assert choose() == TransportChoice("gloo", "this is one of several JAX processes")


def test_a_transport_is_passed_through() -> None:
    own = Alone()
    assert grace.transport(own) is own


def test_the_choice_is_logged_and_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "grace"):
        chosen = grace.transport()
    assert describe(chosen) == "alone (nothing says that there are other workers)"
    assert f"transport {describe(chosen)}, rank 0 of 1" in caplog.text


def test_unknown_names(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnknownNameError, match=r"'gloop'; did you mean 'gloo'\? Legal: alone, auto, (\w+, )*gloo"):
        grace.transport("gloop")
    monkeypatch.setenv("GRACE_TRANSPORT", "tcp")
    with pytest.raises(
        ConfigurationError, match=r"GRACE_TRANSPORT='tcp'; legal: auto, horovod, mpi, gloo, nccl, torch, (\w+, )*alone"
    ):
        grace.transport()


def test_alone_answers_as_the_simulator_does() -> None:
    x = torch.arange(6.0).view(1, 6)
    ops = [
        AllReduce(x), AllReduce(x, "max"), AllReduce(x.clone(), donate=True), AllGather(x), AllToAll(x), ReduceScatter(x),
        Broadcast(x), Permute(x, ((0, 0),)), Permute(x, ()),
    ]  # fmt: skip
    transport = grace.transport("alone")
    for op in ops:
        assert torch.equal(transport.run(op), answers([op])[0]), op
    with pytest.raises(TransportError, match="nothing was sent"):
        transport.run(AllToAll(torch.ones(2, 2)))
    assert transport.all_gather_text("text", seconds=1.0) == ["text"]
    transport.close()
    with pytest.raises(TransportError, match="closed"):
        transport.run(AllReduce(x))


def test_one_worker_alone_trains() -> None:
    session = Session({"w": torch.empty(64, 64)}, "topk:ratio=0.1", grace.transport())
    means = session.exchange({"w": torch.randn(64, 64)})
    assert 0 < int(means["w"].count_nonzero()) < 64 * 64
