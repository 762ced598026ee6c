"""Timed cases are the real thing: they compute what they say."""

from dataclasses import dataclass, field

import pytest
import torch

import grace
from grace.collectives import AllReduce
from grace.contract.facts import Facts
from grace.contract.method import Exchanged, Method
from grace_bench.codecs import compressors
from grace_bench.codecs.buffers import WORKERS, Buffers
from grace_bench.codecs.cases import cases_of, variants
from grace_bench.codecs.clock import DECODE, ENCODE, FEEDBACK, OPERATIONS, do_nothing
from grace_bench.codecs.conversations import ReplayedStep


@pytest.fixture(scope="module")
def buffers():
    return Buffers(4096)


def by_name(cases):
    return {case.operation: case for case in cases}


@pytest.mark.parametrize("name", [name for name in grace.methods() if name != "none"])
def test_every_method_can_be_timed(name, buffers):
    plain, feedback = variants(name)
    cases = by_name(cases_of(plain, feedback, buffers)[0])
    assert set(OPERATIONS) - set(cases) <= {FEEDBACK}
    assert (FEEDBACK in cases) == (feedback is not None)
    assert all(case.seconds(do_nothing) >= 0 for case in cases.values())


def mean(buffers):
    return sum(buffers.gradient(worker).double() for worker in range(WORKERS)) / WORKERS


def test_a_compressors_cases_encode_remember_and_decode(buffers):
    cases = by_name(compressors.cases(*variants("topk:ratio=0.5"), buffers))
    cases[FEEDBACK].seconds(do_nothing)
    p = (buffers.x + buffers.memory).abs()
    assert int((buffers.rest == 0).sum()) == 2048
    assert p[buffers.rest == 0].min() >= buffers.rest.abs().max()
    assert torch.equal(buffers.memory, buffers.gradient(WORKERS))
    cases[ENCODE].seconds(do_nothing)
    cases[ENCODE].prepare()
    assert torch.equal(buffers.rows, buffers.x)
    everything = by_name(compressors.cases(*variants("topk:ratio=1"), buffers))
    everything[DECODE].seconds(do_nothing)
    torch.testing.assert_close(buffers.out.double(), mean(buffers), rtol=1e-5, atol=1e-5)


def test_what_the_network_sums_is_decoded_once(buffers):
    assert compressors.payloads(variants("randomk")[0], buffers) == 1
    assert compressors.payloads(variants("fp16")[0], buffers) == 1
    assert compressors.payloads(variants("qsgd")[0], buffers) == WORKERS


def test_a_majority_is_decoded_to_signs(buffers):
    by_name(compressors.cases(*variants("signsgd"), buffers))[DECODE].seconds(do_nothing)
    votes = sum(buffers.gradient(worker).sign() for worker in range(WORKERS))
    assert torch.equal(buffers.out, votes.sign())


def test_slow_wires_are_used_again(buffers, monkeypatch):
    monkeypatch.setattr(compressors, "_SETUP_SECONDS", -1.0)
    by_name(compressors.cases(*variants("topk:ratio=1"), buffers))[DECODE].seconds(do_nothing)
    two = (buffers.gradient(0) + buffers.gradient(1)) / 2
    torch.testing.assert_close(buffers.out, two)


def test_variants_have_no_other_memory_than_error_feedback():
    plain, feedback = variants("dgc:ratio=0.5")
    assert type(plain).__name__ == "Allgather"
    assert type(feedback).__name__ == "ErrorFeedback"
    assert variants("signum")[1] is None


@dataclass(frozen=True)
class Averages(Method):
    """A method of one round; notes what it comes to, and on which state."""

    means: list = field(default_factory=list)

    def init(self, like):
        return torch.zeros(1)

    def exchange(self, x, state, peer):
        answer = yield AllReduce(x, "mean", donate=True)
        if peer.rank == 0:
            self.means.append((answer.clone(), float(state)))
        answer.zero_()
        return Exchanged(answer, None, state.add_(1))

    def facts(self, like):
        return Facts()

    def traffic(self, like, peer):
        return None


def test_a_replay_is_the_second_step_of_worker_0_again_and_again(buffers):
    method = Averages()
    cleared = []
    encode, decode = (
        ReplayedStep("a", method=method, buffers=buffers, shape=(64, 64), part=part) for part in ("encode", "decode")
    )
    for _ in range(2):
        assert encode.seconds(do_nothing) > 0
    assert decode.seconds(lambda: cleared.append(1)) > 0
    assert len(cleared) == 2  # before the step, and before the part that is timed
    for total, state in method.means[2:4]:
        torch.testing.assert_close(total.double().view(1, -1), mean(buffers), rtol=1e-5, atol=1e-5)
        assert state == 1
