"""Layout, sealing, and the refusal of everything that no sender writes."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grace import wire as wires
from grace.errors import PayloadError, StepMismatch
from grace.flags.capturing import CapturedStep, step_word
from grace.flags.finite import cpu_as_accelerator
from grace.flags.refusals import Refusals

FIELDS = [("scales", torch.float32, 2), ("counts", torch.int32, 1), ("codes", torch.uint8, 3)]


def a_wire(rows: int = 1) -> torch.Tensor:
    scales = torch.tensor([[1.5, -2.0]]).repeat(rows, 1) + torch.arange(rows)[:, None]
    counts = torch.arange(rows, dtype=torch.int32)[:, None] + 7
    codes = torch.tensor([[1, 2, 255]], dtype=torch.uint8).repeat(rows, 1)
    return wires.join(scales, counts, codes)


def test_bytes_are_little_endian_and_in_order():
    wire = a_wire()
    assert wire.dtype == torch.uint8
    assert bytes(wire[0].tolist()).hex() == "0000c03f" + "000000c0" + "07000000" + "0102ff"


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_split_is_the_inverse_of_join(rows: int):
    wire = a_wire(rows)
    assert wire.shape == (rows, 15), "rows of 15 bytes: every second field of later rows is misaligned"
    scales, counts, codes = wires.split(wire, FIELDS)
    assert torch.equal(wires.join(scales, counts, codes), wire)
    assert counts.view(-1).tolist() == list(range(7, 7 + rows))


@pytest.mark.parametrize("n", [1, 5, 8, 9])
def test_join_takes_every_eighth_number(n: int):
    rows = torch.arange(2.0 * n).view(2, n)
    assert torch.equal(wires.join(rows[:, ::8]).view(torch.float32), rows[:, ::8])
    assert torch.equal(wires.join(rows[:1, ::8]).view(torch.float32), rows[:1, ::8])


@pytest.mark.parametrize("offset", [0, 1, 2, 3, 4, 7])
def test_split_reads_misaligned_bytes(offset: int):
    padded = torch.zeros(1, 40, dtype=torch.uint8)
    padded[:, offset : offset + 15] = a_wire()
    scales, counts, codes = wires.split(padded[:, offset : offset + 15], FIELDS)
    assert scales.tolist() == [[1.5, -2.0]]
    assert counts.tolist() == [[7]]
    assert codes.tolist() == [[1, 2, 255]]


def test_aligned_fields_are_views():
    wire = a_wire()
    assert wires.split(wire, FIELDS)[0].data_ptr() == wire.data_ptr()


@pytest.mark.parametrize("width", range(15))
def test_truncated_wires_are_refused(width: int):
    with pytest.raises(PayloadError, match=r"truncated payload: field '(scales|counts|codes)'"):
        wires.split(a_wire()[:, :width], FIELDS)


def test_oversize_wires_are_refused_unless_there_may_be_slack():
    longer = torch.cat([a_wire(), torch.zeros(1, 2, dtype=torch.uint8)], dim=1)
    with pytest.raises(PayloadError, match="17 bytes, but its fields end at 15"):
        wires.split(longer, FIELDS)
    assert wires.split(longer, FIELDS, slack=True)[1].tolist() == [[7]]


@given(st.integers(0, 40), st.booleans(), st.integers(0, 9))
def test_seal_and_unseal(width: int, finite: bool, padding: int):
    wire = (torch.arange(2 * width) % 251).to(torch.uint8).view(2, width)
    sealed = wires.seal(wire, finite, 3, width + padding)
    assert sealed.shape[1] == wires.sealed_bytes(width + padding)
    assert sealed.shape[1] % wires.ALIGNMENT == 0
    assert int(sealed[:, wires.HEADER + width :].sum()) == 0, "padding is zero"
    assert torch.equal(wires.unseal(sealed, width, torch.uint8), wire)
    assert wires.read_headers(sealed, 3) is finite


def test_a_typed_wire_comes_back_typed():
    wire = torch.tensor([[1.0, math.pi]])
    assert torch.equal(wires.unseal(wires.seal(wire, True, 0), 8, torch.float32), wire)
    half = torch.tensor([[1.0, 2.0, 3.0]], dtype=torch.float16)
    assert torch.equal(wires.unseal(wires.seal(half, True, 0), 6, torch.float16), half)


@pytest.mark.parametrize(("width", "dtype"), [(13, torch.uint8), (6, torch.float32), (16, torch.float32)])
def test_a_width_that_does_not_fit_is_refused(width: int, dtype: torch.dtype):
    with pytest.raises(PayloadError, match="cannot hold a wire"):
        wires.unseal(wires.seal(torch.zeros(1, 12, dtype=torch.uint8), True, 0), width, dtype)


@pytest.mark.parametrize("value", [2, 3, 128, 255])
def test_a_status_that_no_sender_writes_is_refused(value: int):
    sealed = wires.seal(torch.ones(3, 5, dtype=torch.uint8), True, 0)
    sealed[1, 0] = value
    with pytest.raises(PayloadError, match=f"'status' of rank 1 must be 0 or 1, got {value}"):
        wires.read_headers(sealed, 0)


@pytest.mark.parametrize("width", range(4))
def test_a_header_that_was_cut_is_refused(width: int):
    with pytest.raises(PayloadError, match="'status' needs 4 bytes"):
        wires.read_headers(wires.seal(torch.ones(2, 5, dtype=torch.uint8), True, 0)[:, :width], 0)


def test_a_sealed_wire_by_hand():
    sealed = wires.seal(torch.tensor([[7, 8, 9]], dtype=torch.uint8), False, 0x030201)
    assert bytes(sealed[0].tolist()).hex(" ") == "01 01 02 03 07 08 09 00"


@pytest.mark.parametrize("finite", [True, False])
@pytest.mark.parametrize("step", [0, 1, 255, 256, 2**15, 2**23 - 1, 2**23, 2**24 - 1, 2**24, 2**24 + 1, 2**40 + 5])
def test_the_step_travels(step: int, finite: bool):
    sealed = wires.seal(torch.ones(2, 5, dtype=torch.uint8), finite, step)
    assert wires.read_headers(sealed, step) is finite
    assert wires.read_headers(sealed, step + 2**24) is finite, "steps are compared modulo 2**24"
    with pytest.raises(
        StepMismatch, match=f"rank 5 sent its step {step % 2**24}, this rank is at step {(step + 1) % 2**24}"
    ):
        wires.read_headers(sealed, step + 1, sender=5)


def test_one_bad_sender_is_enough():
    sealed = torch.cat([wires.seal(torch.ones(1, 5, dtype=torch.uint8), finite, 0) for finite in (True, False, True)])
    assert not wires.read_headers(sealed, 0)


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf, -math.inf])
def test_scales_are_checked(bad: float):
    good = torch.tensor([[0.0, 1.0, 3e38]])
    assert wires.check_scale("norms", good) is good
    with pytest.raises(PayloadError, match="'norms' must be finite and not negative"):
        wires.check_scale("norms", torch.tensor([[1.0, bad]]))


@pytest.mark.parametrize("bad", [-1, 5, 2**31 - 1])
def test_indices_are_checked(bad: int):
    good = torch.tensor([[0, 4]])
    assert wires.check_index("indices", good, 5) is good
    assert wires.check_index("indices", torch.empty(1, 0, dtype=torch.int64), 5).numel() == 0
    with pytest.raises(PayloadError, match=r"'indices' must be in \[0, 5\)"):
        wires.check_index("indices", torch.tensor([[0, bad]]), 5)


def test_the_header_of_one_wire_of_any_length_is_read():
    sealed = wires.seal(torch.zeros(1, 9, dtype=torch.uint8), True, 3, 9)
    damaged = sealed[:, : wires.HEADER + 1]  # a row whose stride is no multiple of 4, as a cut broadcast leaves it
    assert wires.read_headers(damaged.clone(), 3) is True


@pytest.mark.parametrize("step", [0, 5, (1 << 24) - 1, 1 << 24, (1 << 31) + 3, (1 << 32) + 1])
def test_a_captured_step_is_read_from_the_device(step: int):
    """The header is that of the replay, and of a rank that makes the same step without a graph."""
    clock = torch.zeros(1, dtype=torch.int32)
    captured, cpu = CapturedStep.at(17, clock), torch.device("cpu")
    clock.fill_(step_word(step, cpu))
    for finite in (True, False):
        for flag in (finite, torch.tensor(finite)):
            assert torch.equal(wires.seal(a_wire(2), flag, captured), wires.seal(a_wire(2), finite, step))
    messages = torch.zeros(2, 16, dtype=torch.uint8)
    words, flags = torch.tensor([0, 2]), torch.tensor([True, False])
    wires.write_bucket_flags(messages[0], words, flags, captured)
    wires.write_bucket_flags(messages[1], words, flags, step)
    assert torch.equal(messages[0], messages[1])
    with cpu_as_accelerator():
        for theirs, legal in ((step, True), (step + 1, False)):
            with Refusals() as refused:
                assert bool(wires.read_headers(wires.seal(a_wire(2), True, theirs), captured)) is legal
            assert bool(refused.ok) is legal
