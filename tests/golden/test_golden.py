"""Bytes that were written once: today's encoder writes the same, today's decoder reads the same from them."""

from __future__ import annotations

import pytest
import torch

import grace
from tests.golden.golden import COMPRESSORS, GOLDEN, METHODS, conversation, decoded, encoded, numbers

REGISTERED = set(grace.methods())  # some tests register methods of their own
BY_LAPACK = ("atomosvd", "gradiveq")  # decompose what one rank alone has: its bits are those of the machine


def is_wire(values: list[float]) -> bool:
    """True if these are bytes, of fields that all have four."""
    return len(values) % 4 == 0 and all(isinstance(value, int) for value in values)


def fields(values: list[float]) -> torch.Tensor:
    """Fields that were sent, as float32."""
    return (
        torch.tensor(values, dtype=torch.uint8).view(torch.float32) if is_wire(values) else torch.tensor(values).float()
    )


def test_every_method_has_golden_bytes():
    assert {name.partition(":")[0] for name in GOLDEN} == REGISTERED, "run `make goldens`"


@pytest.mark.parametrize("name", COMPRESSORS)
def test_the_encoder_writes_the_same_bytes(name: str):
    assert bytes(encoded(COMPRESSORS[name]).tolist()).hex() == GOLDEN[name]["wire"]


@pytest.mark.parametrize("name", COMPRESSORS)
def test_the_decoder_reads_the_same_numbers(name: str):
    assert decoded(COMPRESSORS[name], bytes.fromhex(GOLDEN[name]["wire"])) == GOLDEN[name]["decoded"]


@pytest.mark.parametrize("name", METHODS)
def test_the_conversation_is_the_same(name: str):
    now = conversation(METHODS[name])
    assert now.keys() == GOLDEN[name].keys()
    for part, expected in GOLDEN[name].items():
        if name.partition(":")[0] in BY_LAPACK:
            actual, wanted = fields(now[part]), fields(expected)
            torch.testing.assert_close(actual, wanted, rtol=1e-4, atol=1e-4)
            if is_wire(expected):  # begins with a header and a count, which are no numbers of LAPACK's
                assert now[part][:8] == expected[:8]
        else:
            assert now[part] == expected


def test_the_input_is_portable():
    assert numbers(6).tolist() == [-0.75, 2.0, -2.0, 10.0, -4.0, 1.5]


def test_a_wire_by_hand():
    """Top-5 of 37: five float32, then five indices of 6 bits."""
    wire = bytes.fromhex(GOLDEN["topk:ratio=0.125,index=raw"]["wire"])
    assert len(wire) == 5 * 4 + 4
    x = numbers()
    positions = sorted(sorted(range(37), key=lambda i: (-abs(float(x[i])), i))[:5])
    stream = int.from_bytes(wire[20:], "little")
    assert [stream >> (6 * j) & 63 for j in range(5)] == positions
    assert torch.frombuffer(bytearray(wire[:20]), dtype=torch.float32).tolist() == [float(x[i]) for i in positions]
