from grace.errors import TransportError
from grace_bench.workers.rendezvous import _describe, find_cause


def test_the_cause_is_told_before_its_consequences():
    endings = [_describe(0, TransportError("connection lost")), _describe(1, ValueError("the cause"))]
    first = find_cause(endings)
    assert first.rank == 1
    assert "ValueError: the cause" in first.error


def test_gloos_own_words_are_a_consequence():
    first = find_cause([_describe(0, RuntimeError("[gloo/transport] Connection closed by peer"))])
    assert first.rank == 0
    assert first.consequence
    assert find_cause([]) is None
