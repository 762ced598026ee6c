"""The adapter for DistributedDataParallel, in real processes."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import grace
from grace.errors import (
    CompositionError,
    ConfigurationError,
    FingerprintMismatch,
    GraceError,
    InputError,
    NonFiniteError,
    StateError,
    TransportError,
)
from grace.transports.torch_distributed import TorchDistributed
from tests.distributed.processes import Pool
from tests.unit.networks import Loopback

SHORT = {"gradiveq": "gradiveq:collect=1,use=5"}  # by default it collects for 100 steps
METHODS = [
    *(SHORT.get(name, name) for name in grace.methods()), "topk:communicator=broadcast", "signsgd:memory=momentum",
    "topk:communicator=scatterreduce", "qsgd:bits=2,communicator=parameterserver", "randomk:ratio=0.1,memory=none",
    "threshold:v=2,relative=true",
]  # fmt: skip


class Net(nn.Module):
    """Convolutions, norms, a branch that is not always used."""

    def __init__(self, dtype: torch.dtype = torch.float32):
        super().__init__()
        self.conv = nn.Conv2d(3, 24, 3, dtype=dtype)
        self.norm = nn.GroupNorm(2, 24, dtype=dtype)
        self.hidden = nn.Linear(24 * 16, 48, dtype=dtype)
        self.extra = nn.Linear(48, 48, dtype=dtype)
        self.head = nn.Linear(48, 5, dtype=dtype)

    def forward(self, x: Tensor, use_extra: bool = True) -> Tensor:
        x = torch.relu(self.hidden(torch.relu(self.norm(self.conv(x))).flatten(1)))
        return self.head(self.extra(x) if use_extra else x)


def model(dtype: torch.dtype = torch.float32, **options: Any) -> DistributedDataParallel:
    torch.manual_seed(7)
    net = Net(dtype)
    if options.pop("channels_last", False):
        net = net.to(memory_format=torch.channels_last)
    return DistributedDataParallel(net, bucket_cap_mb=0.03, **options)


def batch(rank: int, step: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    made = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(8, 3, 6, 6, generator=made).to(dtype), torch.randint(0, 5, (8,), generator=made)


def train(net: DistributedDataParallel, rank: int, steps: range, **inputs: Any) -> DistributedDataParallel:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    dtype = next(net.parameters()).dtype
    for step in steps:
        x, y = batch(rank, step, dtype)
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x, **inputs).float(), y).backward()
        optimizer.step()
    return net


def weights(net: nn.Module) -> Tensor:
    return torch.cat([p.detach().double().flatten() for p in net.parameters()])


def assert_replicas_agree(net: nn.Module, world: int) -> None:
    mine = weights(net)
    all_of_them = [torch.empty_like(mine) for _ in range(world)]
    dist.all_gather(all_of_them, mine)
    assert bool(mine.isfinite().all())
    assert all(torch.equal(mine, other) for other in all_of_them), "replicas differ"


# ---- equality -------------------------------------------------------------------------------------------------------
def none_is_plain(rank: int, world: int, options: dict[str, Any]) -> None:
    plain = train(model(**options), rank, range(20))
    attached = model(**options)
    handle = grace.attach(attached, "none")
    train(attached, rank, range(20))
    handle.detach()
    assert torch.equal(weights(plain), weights(attached))


@pytest.mark.parametrize("options", [{}, {"channels_last": True}, {"static_graph": True}], ids=str)
def test_none_is_plain_ddp_to_the_bit(pool: Pool, options: dict[str, Any]) -> None:
    pool.run(none_is_plain, options)


def test_none_is_plain_ddp_with_gradients_as_views_of_the_bucket(pair: Pool) -> None:
    pair.run(none_is_plain, {"gradient_as_bucket_view": True})


def replicas(rank: int, world: int, spec: str, granularity: str) -> dict[str, Any]:
    net = model()
    handle = grace.attach(net, spec, granularity=granularity, check=True)
    train(net, rank, range(6))
    assert_replicas_agree(net, world)
    stats = handle.stats.as_dict()
    handle.detach()
    return stats


@pytest.mark.parametrize("spec", METHODS)
def test_replicas_agree_under_every_method(pool: Pool, spec: str) -> None:
    stats = pool.run(replicas, spec, "parameter")
    assert stats[0]["steps"] == 6
    assert stats[0]["sent_bytes_per_step"] > 0
    assert stats[0]["codec_seconds_per_step"] > 0 < stats[0]["exchange_seconds_per_step"]
    assert stats[0]["ratio"] == pytest.approx(1, abs=1e-3) if spec == "none" else stats[0]["ratio"] > 1.2


@pytest.mark.parametrize("granularity", ["bucket", "model"])
@pytest.mark.parametrize("spec", ["topk:ratio=0.05", "qsgd", "none", "threshold:v=2,relative=true"])
def test_replicas_agree_in_every_granularity(pair: Pool, spec: str, granularity: str) -> None:
    pair.run(replicas, spec, granularity)


# ---- what training jobs do ------------------------------------------------------------------------------------------
def accumulation(rank: int, world: int) -> None:
    net, reference = model(), model()
    handle = grace.attach(net, "none")
    for one in (net, reference):
        for step in range(4):
            with one.no_sync():
                nn.functional.cross_entropy(one(batch(rank, 2 * step)[0]), batch(rank, 2 * step)[1]).backward()
            nn.functional.cross_entropy(one(batch(rank, 2 * step + 1)[0]), batch(rank, 2 * step + 1)[1]).backward()
    for p, q in zip(net.parameters(), reference.parameters(), strict=True):
        assert torch.equal(p.grad, q.grad)
    assert handle.stats.steps == 4
    handle.detach()


def test_gradient_accumulation_exchanges_once(pair: Pool) -> None:
    pair.run(accumulation)


def unused(rank: int, world: int, spec: str) -> None:
    net = model(find_unused_parameters=True)
    handle = grace.attach(net, spec)
    for step in range(4):
        train(net, rank, range(step, step + 1), use_extra=step % 2 == 0)
    train(net, rank, range(4, 6), use_extra=rank == 0)
    assert_replicas_agree(net, world)
    handle.detach()


@pytest.mark.parametrize("spec", ["none", "topk", "powersgd"])
def test_unused_parameters(pair: Pool, spec: str) -> None:
    pair.run(unused, spec)


def two_models(rank: int, world: int) -> None:
    first, second = model(), model()
    handles = [grace.attach(first, "topk:ratio=0.1"), grace.attach(second, "qsgd:bits=4")]
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.05)
    for step in range(4):
        x, y = batch(rank, step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(first(x) + second(x), y).backward()  # both in one backward pass
        optimizer.step()
    for net, handle in zip((first, second), handles, strict=True):
        assert_replicas_agree(net, world)
        assert handle.stats.steps == 4
        handle.detach()


def test_two_models_in_one_backward_pass(pair: Pool) -> None:
    pair.run(two_models)


def dtypes(rank: int, world: int, name: str, spec: str) -> None:
    net = model(getattr(torch, name))
    handle = grace.attach(net, spec)
    train(net, rank, range(4))
    assert_replicas_agree(net, world)
    assert all(p.grad.dtype == getattr(torch, name) for p in net.parameters())
    handle.detach()


@pytest.mark.parametrize("spec", ["none", "topk", "efsignsgd", "bf16", "powersgd"])
@pytest.mark.parametrize("name", ["float16", "bfloat16", "float64"])
def test_dtypes(pair: Pool, name: str, spec: str) -> None:
    pair.run(dtypes, name, spec)


def policies(rank: int, world: int) -> None:
    net = model()
    policy = grace.Policy([
        grace.Rule("*", "none", until_step=2), ("conv.*", "none"), ("*.bias", "fp16"), grace.Rule("*", "topk", min_ndim=2),
        ("*", "none"),
    ])  # fmt: skip
    handle = grace.attach(net, policy)
    train(net, rank, range(2))
    dense = handle.stats.traffic.sent
    train(net, rank, range(2, 4))
    assert_replicas_agree(net, world)
    assert handle.stats.traffic.sent - dense < dense / 5
    handle.detach()


def test_a_policy_by_name_shape_and_step(pair: Pool) -> None:
    pair.run(policies)


# ---- checkpoints and changes ----------------------------------------------------------------------------------------
def checkpoint(rank: int, world: int, spec: str, granularity: str) -> None:
    straight = model()
    handle = grace.attach(straight, spec, granularity=granularity)
    train(straight, rank, range(6))
    handle.detach()

    stopped = model()
    handle = grace.attach(stopped, spec, granularity=granularity)
    train(stopped, rank, range(3))
    file = io.BytesIO()
    torch.save({"model": stopped.state_dict(), "grace": handle.state_dict()}, file)
    handle.detach()

    file.seek(0)
    saved = torch.load(file, weights_only=True)
    resumed = model()
    resumed.load_state_dict(saved["model"])
    handle = grace.attach(resumed, spec, granularity=granularity)
    handle.load_state_dict(saved["grace"])
    train(resumed, rank, range(3, 6))
    with pytest.raises(StateError, match="rank"):
        handle.load_state_dict({**saved["grace"], "rank": rank + 1})
    with pytest.raises(StateError, match="granularity"):
        handle.load_state_dict({**saved["grace"], "groups": {}})
    handle.detach()
    assert torch.equal(weights(straight), weights(resumed))


@pytest.mark.parametrize("granularity", ["parameter", "bucket", "model"])
@pytest.mark.parametrize("spec", ["topk:ratio=0.05", "qsgd"])
def test_a_resumed_run_has_the_same_bits(pair: Pool, spec: str, granularity: str) -> None:
    pair.run(checkpoint, spec, granularity)


def test_a_resumed_powersgd_run_has_the_same_bits(pair: Pool) -> None:
    pair.run(checkpoint, "powersgd:rank=2", "parameter")


def switching(rank: int, world: int, granularity: str) -> None:
    """Nothing is lost: the sum of all means is the sum of all mean gradients, once the memories are flushed."""
    net = model()
    handle = grace.attach(net, "topk:ratio=0.02", granularity=granularity)
    truth, applied = torch.zeros_like(weights(net)), torch.zeros_like(weights(net))
    for step, spec in enumerate([None, None, "efsignsgd", None, "none", None]):
        if spec:
            handle.switch(spec)
        net.zero_grad()
        x, y = batch(rank, step)
        with net.no_sync():
            nn.functional.cross_entropy(net(x), y).backward()
        local = torch.cat([p.grad.double().flatten() for p in net.parameters()])
        dist.all_reduce(local)
        truth += local / world
        net.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        applied += torch.cat([p.grad.double().flatten() for p in net.parameters()])
        if step == 3:
            assert not torch.allclose(applied, truth, atol=1e-3), "the memories should owe something here"
    torch.testing.assert_close(applied, truth, atol=1e-5, rtol=1e-5)
    handle.detach()


@pytest.mark.parametrize("granularity", ["parameter", "bucket", "model"])
def test_switching_methods_loses_nothing(pair: Pool, granularity: str) -> None:
    pair.run(switching, granularity)


def detaching(rank: int, world: int) -> None:
    net, plain = model(), model()
    handle = grace.attach(net, "topk")
    with pytest.raises(ConfigurationError, match="attached"):
        grace.attach(net, "topk")
    handle.detach()
    handle.detach()
    with pytest.raises(grace.GraceError, match="detached"):
        handle.switch("none")
    assert torch.equal(weights(train(net, rank, range(5))), weights(train(plain, rank, range(5))))
    again = grace.attach(net, "qsgd")
    train(net, rank, range(2))
    assert again.stats.steps == 2
    assert_replicas_agree(net, world)
    again.detach()


def test_a_detached_model_is_plain_and_can_be_attached_again(pool: Pool) -> None:
    pool.run(detaching)


def count_left_keys(rank: int, world: int, attached: bool) -> int:
    """Keys that ten rounds leave in the job's store: of attaching, or of making and destroying a group of torch's."""
    store, net = dist.distributed_c10d._get_default_store(), model()  # type: ignore[attr-defined]

    def rounds(count: int) -> int:
        for _ in range(count):
            if attached:
                grace.attach(net, "topk").detach()
            else:
                group = dist.new_group(backend="gloo")
                dist.all_reduce(torch.ones(1), group=group)
                dist.destroy_process_group(group)
        dist.barrier()
        keys = store.num_keys()
        dist.barrier()
        return int(keys)

    before = rounds(1)
    return rounds(10) - before


def test_rounds_of_attaching_leave_no_more_than_torchs_own_groups(pool: Pool) -> None:
    assert pool.run(count_left_keys, True) == pool.run(count_left_keys, False)


def given_transport(rank: int, world: int) -> None:
    net, plain = model(), model()
    handle = grace.attach(net, "none", transport=TorchDistributed(dist.new_group()))
    assert torch.equal(weights(train(net, rank, range(3))), weights(train(plain, rank, range(3))))
    handle.detach()
    if world > 2:
        return
    other = model()
    with pytest.raises(ConfigurationError, match=r"rank and world \(0, 1\) are not those of the model's group"):
        grace.attach(other, "none", transport=Loopback())


def lent_transport(rank: int, world: int) -> None:
    """A user's own transport outlives the handles that use it, whichever door they come from; an error ends it."""
    network = TorchDistributed(dist.new_group())
    net = model()
    handle = grace.attach(net, "topk:ratio=0.1", transport=network)
    assert handle.transport.startswith("gloo")
    train(net, rank, range(2))
    handle.detach()
    plain = Net()
    optimizer = grace.DistributedOptimizer(torch.optim.SGD(plain.parameters(), lr=0.1), "none", transport=network)
    optimizer.handle.detach()
    window = grace.local(plain, torch.optim.SGD(plain.parameters(), lr=0.1), "none", every=2, transport=network)
    window.detach()
    assert network.all_gather_text(str(rank), seconds=20) == [str(other) for other in range(world)]
    handle = grace.attach(net, "none", transport=network)
    handle._session.close(GraceError("enough"))
    with pytest.raises(TransportError):
        network.all_gather_text("x", seconds=20)
    handle.detach()


def test_a_transport_of_the_users_own_stays_open(pair: Pool) -> None:
    pair.run(lent_transport)


def test_over_a_transport_that_is_given(pool: Pool) -> None:
    pool.run(given_transport)


# ---- bad input ------------------------------------------------------------------------------------------------------
def nonfinite(rank: int, world: int, spec: str, value: float) -> None:
    net = model()
    handle = grace.attach(net, spec)
    train(net, rank, range(2))
    name = "module.hidden.weight"
    target = dict(net.named_parameters())[name]
    poison = target.register_hook(lambda g: torch.full_like(g, value) if rank == world - 1 else g)
    before = handle.state_dict()["states"]
    net.zero_grad()
    nn.functional.cross_entropy(net(batch(rank, 2)[0]), batch(rank, 2)[1]).backward()
    for other, p in net.named_parameters():
        assert bool(p.grad.isfinite().all()) == (other != name), other
    after = handle.state_dict()["states"]
    short = name.removeprefix("module.")
    if isinstance(before[short], tuple):
        assert torch.equal(before[short][0], after[short][0]), "the memory of the poisoned tensor has changed"
        assert not torch.equal(before["extra.weight"][0], after["extra.weight"][0]), "the others' memories have not"
    poison.remove()
    train(net, rank, range(3, 5))
    assert_replicas_agree(net, world)
    handle.detach()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize(
    "spec",
    [
        "none",
        "topk",
        "randomk",
        "efsignsgd",
        "signsgd",
        "qsgd",
        "fp16",
        "threshold",
        "efsignsgd:communicator=scatterreduce",
        "powersgd:rank=1,min_rate=1",
    ],
)
def test_an_inf_or_nan_on_one_rank_is_agreed_on_and_forgotten(pool: Pool, spec: str, value: float) -> None:
    pool.run(nonfinite, spec, value)


def nonfinite_options(rank: int, world: int) -> None:
    for option in ("skip", "error"):
        net = model()
        handle = grace.attach(net, "none", nonfinite=option)
        net.module.head.weight.register_hook(lambda g: g * float("nan") if rank == 0 else g)
        x, y = batch(rank, 0)
        if option == "skip":
            nn.functional.cross_entropy(net(x), y).backward()
            assert (
                int(net.module.head.weight.grad.count_nonzero()) == 0 < int(net.module.conv.weight.grad.count_nonzero())
            )
        else:
            with pytest.raises(NonFiniteError, match=r"step 0.*'head.weight'"):
                nn.functional.cross_entropy(net(x), y).backward()
            assert handle.stats.nonfinite == 1
            assert handle.error is None, "the next step may go on"
        handle.detach()


def test_non_finite_gradients_can_be_skipped_or_be_an_error(pair: Pool) -> None:
    pair.run(nonfinite_options)


def differing(rank: int, world: int) -> list[str]:
    messages = []
    for options in (
        [("topk", {}), ("qsgd", {})], [("topk", {}), ("topk:ratio=0.02", {})], [("topk", {"seed": 1}), ("topk", {"seed": 2})],
        [(grace.Policy([("*.bias", "none"), ("*", "qsgd")]), {}), ("qsgd", {})],
    ):  # fmt: skip
        spec, knobs = options[rank % 2]
        with pytest.raises(FingerprintMismatch) as caught:
            grace.attach(model(), spec, **knobs)
        messages.append(str(caught.value))
    net = model()
    handle = grace.attach(net, "topk")
    with pytest.raises(FingerprintMismatch) as caught:
        handle.switch(["none", "qsgd"][rank % 2])
    messages.append(str(caught.value))
    train(net, rank, range(2))  # goes on as before
    assert_replicas_agree(net, world)
    handle.detach()
    return messages


def test_ranks_that_differ_are_told_in_what(pair: Pool) -> None:
    for messages in pair.run(differing):
        assert "method: topk on ranks [0], qsgd on ranks [1]" in messages[0]
        assert "topk:ratio=0.02 on ranks [1]" in messages[1]
        assert "seed: 1 on ranks [0], 2 on ranks [1]" in messages[2]
        assert "method: absent on ranks [0], qsgd on ranks [1]" in messages[3]
        assert "method: none on ranks [0], qsgd on ranks [1]" in messages[4]


def other_shapes(rank: int, world: int) -> str:
    net = DistributedDataParallel(nn.Linear(4, 6))
    net.module.weight = nn.Parameter(torch.zeros(6, 4 + rank))  # behind DistributedDataParallel's back
    with pytest.raises(FingerprintMismatch) as caught:
        grace.attach(net, "topk")
    return str(caught.value)


def test_models_that_differ_are_named(pair: Pool) -> None:
    for message in pair.run(other_shapes):
        assert "parameter weight: (6, 4) torch.float32 on ranks [0], (6, 5) torch.float32 on ranks [1]" in message


def refused(rank: int, world: int) -> None:
    with pytest.raises(ConfigurationError, match="DistributedDataParallel"):
        grace.attach(nn.Linear(2, 2), "topk")  # type: ignore[arg-type]
    spectrum = nn.Module()
    spectrum.register_parameter("waves", nn.Parameter(torch.zeros(3, dtype=torch.complex64)))
    spectrum.register_parameter("plain", nn.Parameter(torch.zeros(3)))
    # DistributedDataParallel itself says this where its gloo broadcasts no complex numbers: until torch 2.6
    with pytest.raises((InputError, RuntimeError), match=r"'waves' is complex64.*view_as_real|^Invalid scalar type$"):
        grace.attach(DistributedDataParallel(spectrum), "topk")
    hooked = model()
    hooked.register_comm_hook(None, _other_hook)
    with pytest.raises(ConfigurationError, match="hook of its own"):
        grace.attach(hooked, "topk")
    with pytest.raises(CompositionError, match="granularity='parameter'"):
        grace.attach(model(), "powersgd", granularity="model")
    with pytest.raises(ConfigurationError, match="granularity='layer'"):
        grace.attach(model(), "topk", granularity="layer")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="nonfinite='ignore'"):
        grace.attach(model(), "topk", nonfinite="ignore")  # type: ignore[arg-type]


def _other_hook(state: object, bucket: Any) -> Any:
    raise NotImplementedError


_other_hook.__annotations__ = {}


def test_what_cannot_be_attached_is_refused_by_name(pair: Pool) -> None:
    pair.run(refused)


def sparse_gradient(rank: int, world: int) -> str:
    net = DistributedDataParallel(nn.Sequential(nn.Embedding(2000, 4, sparse=True), nn.Linear(4, 2)))
    handle = grace.attach(net, "topk")
    with pytest.raises(InputError) as caught:
        net(torch.arange(5)).sum().backward()
    handle.detach()
    return str(caught.value)


def test_a_sparse_gradient_is_refused_by_name(pair: Pool) -> None:
    for message in pair.run(sparse_gradient):
        assert "'0.weight'" in message
        assert "sparse=False" in message


def boundaries(rank: int, world: int) -> None:
    """States that were saved under another method than the next step's: at a step rule, and after a switch."""
    policy = grace.Policy([grace.Rule("*", "topk:ratio=0.02", until_step=2, min_ndim=2), ("*", "none")])
    for resumed_policy, switches in ((policy, False), (policy, True)):
        net = model()
        handle = grace.attach(net, resumed_policy)
        train(net, rank, range(2))
        if switches:
            handle.switch("efsignsgd")
        saved, weights_then = handle.state_dict(), {k: v.clone() for k, v in net.state_dict().items()}
        train(net, rank, range(2, 4))
        handle.detach()
        resumed = model()
        resumed.load_state_dict(weights_then)
        again = grace.attach(resumed, "efsignsgd" if switches else resumed_policy)
        again.load_state_dict(saved)
        train(resumed, rank, range(2, 4))
        with pytest.raises(StateError, match="switch"):
            again.load_state_dict({**saved, "policy": "Policy('*' -> qsgd)"})
        again.detach()
        assert torch.equal(weights(net), weights(resumed))


def test_a_state_saved_between_two_methods_goes_on_with_what_is_owed(pair: Pool) -> None:
    pair.run(boundaries)
