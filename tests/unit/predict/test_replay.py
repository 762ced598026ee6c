import pytest
import torch

import grace
from grace.collectives import AllGather, AllReduce, AllToAll, Broadcast, Permute, ReduceScatter, Tally
from grace.predict.rates import Rate, Rater, Sample, moved_by
from grace.predict.replay import Echo, Replayer
from grace.predict.timeline import wire_bytes
from grace.run.plan import plan
from tests.unit.predict.samples import make_timings

SHAPES = {"a.weight": (64, 64), "b.weight": (128, 64), "b.bias": (128,)}
BUCKETS = [["b.bias", "b.weight"], ["a.weight"]]


def test_the_echo_answers_as_if_all_had_sent_the_same():
    echo, x = Echo(4), torch.tensor([[1.0], [2.0], [3.0], [4.0]])
    assert torch.equal(echo.run(AllReduce(x, "sum")), 4 * x)
    assert torch.equal(echo.run(AllReduce(x, "mean")), x)
    assert torch.equal(echo.run(AllGather(x[0])), torch.ones(4, 1))
    assert torch.equal(echo.run(AllToAll(x)), torch.ones(4, 1))
    assert torch.equal(echo.run(ReduceScatter(x, "sum")), torch.tensor([4.0]))
    assert torch.equal(echo.run(Permute(x, ((2, 0),))), x)
    assert torch.equal(echo.run(Permute(x, ((0, 2),))), 0 * x)
    assert torch.equal(echo.run(Broadcast(x, 1)), x)
    assert echo.moved["AllReduce"] == Tally(2, 32)
    assert torch.equal(x[:, 0], torch.tensor([1.0, 2.0, 3.0, 4.0]))


def test_the_echo_knows_widths_and_axes():
    echo, x = Echo(8, {"machine": 2}), torch.ones(4)
    assert torch.equal(echo.run(AllReduce(x, "sum", axis="machine")), 2 * x)
    assert echo.run(AllGather(x, "machine")).shape == (2, 4)
    into = torch.empty(8, 4)
    assert echo.run(AllGather(x, into=into)) is into
    echo.run(AllReduce(x.bfloat16()))
    assert set(echo.moved) == {
        "AllReduce along machine", "AllGather along machine", "AllGather", "AllReduce in 16 bits"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "world"),
    [
        ("none", 4), ("topk", 4), ("qsgd:bits=4,communicator=scatterreduce", 4), ("powersgd", 4),
        ("topk:machine=2", 4), ("qsgd:communicator=parameterserver", 4),
    ],
)  # fmt: skip
def test_a_replay_sends_what_the_method_declares(name, world):
    replay = Replayer(SHAPES, BUCKETS, samples=1).run(name, world)
    declared = plan({key: torch.empty(shape, device="meta") for key, shape in SHAPES.items()}, name, world)
    assert replay.whole
    assert replay.sent == pytest.approx(declared.sent_bytes, rel=0.1)
    assert replay.axes == ({"machines": 2, "machine": 2} if "machine=" in name else {})


def test_what_takes_too_long_is_not_measured_to_its_end():
    shapes, buckets = {"a": (64, 64), "b": (512, 512)}, [["a"], ["b"]]
    patient, hasty = Replayer(shapes, buckets, samples=1), Replayer(shapes, buckets, samples=1, patience=1e-9)
    whole, part = patient.run("topk", 4), hasty.run("topk", 4)
    assert (whole.whole, part.whole) == (True, False)
    assert len(part.codec) == len(part.moved) == 2
    assert part.sent == pytest.approx(whole.sent, rel=0.2)


def test_a_method_is_timed_no_more_when_its_budget_is_spent():
    replayer = Replayer({"a": (64, 64)}, [["a"]], samples=100, budget=0.0)
    replayer.run("topk", 4)
    assert len(replayer.adds) == 1, "one after what warms up, which is timed by nothing"


def test_a_sample_that_is_cut_short_takes_nothing_from_those_before(monkeypatch):
    """A machine is busy for a moment: the second sample has one bucket less."""
    replayer, exchanges = Replayer({"a": (64, 64), "b": (64, 64)}, [["a"], ["b"]], samples=2, budget=1e9), []
    plain = replayer._exchange

    def exchange(*given):
        exchanges.append(1)
        if len(exchanges) == 2 + 2 + 3 * 2 + 1:  # parts, a bucket, two to warm up, a sample
            replayer.patience = 0.0
        return plain(*given)

    monkeypatch.setattr(replayer, "_exchange", exchange)
    replayed = replayer.run("topk", 4)
    assert len(exchanges) == 11
    assert replayed.whole
    assert len(replayed.codec) == len(replayed.moved) == 2
    assert replayed.sent == pytest.approx(Replayer({"a": (64, 64), "b": (64, 64)}, [["a"], ["b"]]).run("topk", 4).sent)


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("none", ["AllReduce"]), ("bf16", ["AllReduce in 16 bits"]), ("topk", ["AllGather"]),
        ("qsgd:communicator=scatterreduce", ["AllToAll", "AllGather"]), ("powersgd", ["AllReduce", "AllReduce"]),
        ("topk:machine=2", ["ReduceScatter along machine", "AllReduce", "AllGather along machines",
                            "AllGather along machine"]),
    ],
)  # fmt: skip
def test_a_codec_computes_between_its_collectives(name, kinds):
    rater = Rater(samples=1)
    sample = rater.run(name, 4, 4096)
    assert [kind for kind, _ in sample.moved][-len(kinds) :] == kinds
    assert len(sample.codec) == len(sample.moved) + 1
    assert sample.numbers == 4096
    assert all(nanoseconds >= 0 for nanoseconds in sample.codec)
    assert sample.seconds > 0
    assert sample.moved == rater.run(name, 4, 4096).moved


def test_a_rate_is_a_line_through_two_samples():
    small = Sample(1000, (3000, 5000), (("AllGather", 116),))
    large = Sample(101_000, (103_000, 1000), (("AllGather", 10_116),))
    rate = Rate.through(4, [small, large])
    assert rate.codec[0] == pytest.approx((2e-6, 1e-9))
    assert rate.codec[1] == pytest.approx((5e-6, 0.0)), "no number takes less than no time"
    assert rate.moved[0] == ("AllGather", pytest.approx(16), pytest.approx(0.1))
    assert Rate.through(4, [large]).moved[0] == ("AllGather", 0.0, 10_116 / 101_000)
    timings = make_timings()
    timings.kinds["AllGather"] = timings.kinds["AllReduce"]
    from grace.predict.costs import Probed

    first, move, last = rate.phases([1000, 3000], Probed(timings))
    assert first == pytest.approx((4e-6 + 4e-6,) * 2)
    assert move == pytest.approx(Probed(timings).move("AllGather", Tally(1, 2 * 16 + 400), 4))
    assert last == pytest.approx((10e-6, 10e-6))


def test_what_is_known_of_bytes_counts():
    method = grace.method("powersgd:rank=4")
    rate = Rate.through(4, [Rater(samples=1).run(method, 4, 1 << 14)])
    shape = (16, 1024)  # as many numbers as a square, and more rows and columns
    scale = rate.scale_to(method, [shape])
    assert scale == pytest.approx((16 + 1024) / (128 + 128), rel=0.05)
    assert rate.scale_to(grace.method("threshold"), [shape]) == 1.0


@pytest.mark.parametrize("name", ["none", "topk", "powersgd", "qsgd:communicator=parameterserver"])
def test_bytes_are_those_that_the_method_declares(name):
    method = grace.method(name)
    declared = method.traffic(torch.empty(300, 400, device="meta"), grace.Peer(0, 4))
    moved = moved_by(method, 300 * 400, 4)
    wire = sum(t.count * wire_bytes(kind, t.bytes / t.count, 4) for kind, t in moved.items())
    if "server" not in name:  # a tree carries what it broadcasts, where the least is counted otherwise
        assert wire == pytest.approx(declared.sent, rel=0.02)
    else:
        assert set(moved) == {"Permute", "Broadcast"}


def test_bytes_that_depend_on_the_data_are_counted_in_an_exchange():
    moved = moved_by(grace.method("threshold:v=10.7"), 262_144, 2)
    assert 1.5 < moved["AllGather"].bytes / (0.01 * 262_144) < 8  # bytes of each number that is kept


def test_what_is_hopeless_is_measured_on_some_rows_of_the_first_bucket():
    shapes = {"a": (2048, 64), "b": (512, 512)}
    patient, hopeless = (Replayer(shapes, [["a"], ["b"]], samples=1, patience=seconds) for seconds in (10.0, 1e-9))
    whole, part = patient.run("qsgd:bits=4", 4), hopeless.run("qsgd:bits=4", 4)
    assert not part.whole
    assert len(hopeless.adds) == 1, "no exchange of a whole bucket"
    assert part.moved[0]["AllGather"].count == whole.moved[0]["AllGather"].count
    assert part.sent == pytest.approx(whole.sent, rel=0.05)
