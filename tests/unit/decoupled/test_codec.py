from __future__ import annotations

import pytest
import torch

from grace.decoupled.codec import DOWN, UP, FragmentCodec, spell_codec
from grace.errors import ConfigurationError, PayloadError

NAMES, SHAPES = ["w", "b", "empty"], [[40, 30], [7], [0, 3]]
CODECS = [
    "none",
    "topk:ratio=0.05",
    "qsgd:bits=4",
    "lpc:bits=4",
    "randomk:ratio=0.1",
    "bf16",
    "fp8",
    "topk:lossless=zlib",
    "dgc",
]


def codec(text: str, learner: str = "l0", direction: int = UP) -> FragmentCodec:
    return FragmentCodec(text, NAMES, SHAPES, 0, learner, direction)


def tensors() -> list[torch.Tensor]:
    random = torch.Generator().manual_seed(1)
    return [torch.randn(n, generator=random) for n in (1200, 7, 0)]


@pytest.mark.parametrize("text", CODECS)
def test_what_is_sent_and_what_is_left_is_what_there_was(text: str):
    left, got = tensors(), [torch.zeros_like(x) for x in tensors()]
    wires = codec(text).encode_(left, 3)
    codec(text).decode_add_(wires, got, 3, "learner 'l0'")
    torch.testing.assert_close([a + b for a, b in zip(left, got, strict=True)], tensors())
    assert got[1].equal(tensors()[1])  # small tensors travel as they are
    if text == "none":
        assert codec(text).exact
        assert got[0].equal(tensors()[0])
    else:
        assert not codec(text).exact
        assert len(wires[0]) < 4 * 1200


@pytest.mark.parametrize("text", CODECS)
@pytest.mark.parametrize("damage", ["short", "long", "fewer", "garbage"])
def test_damaged_wires_are_refused_and_the_sender_is_named(text: str, damage: str):
    wires = codec(text).encode_(tensors(), 3)
    wires = {
        "short": [wires[0][:-3], *wires[1:]], "long": [wires[0] + bytes(8), *wires[1:]], "fewer": wires[:1],
        "garbage": [b"\xff" * len(wires[0]), *wires[1:]],
    }[damage]  # fmt: skip
    if damage == "long" and codec(text).compressor.varies:
        wires[0] = wires[0][:8]  # padding may follow such a wire
    with pytest.raises(PayloadError, match="learner 'l0'"):
        codec(text).decode_add_(wires, [torch.zeros_like(x) for x in tensors()], 3, "learner 'l0'")


def test_an_inf_is_refused():
    wires = codec("none").encode_([torch.zeros(1200), torch.tensor([torch.inf] * 7), torch.zeros(0)], 1)
    with pytest.raises(PayloadError, match="learner 'l0': 'b': an inf or NaN"):
        codec("none").decode_add_(wires, tensors(), 1, "learner 'l0'")


def test_learners_and_directions_draw_numbers_of_their_own():
    wires = [codec("qsgd:bits=2", *who).encode_(tensors(), 1)[0] for who in (("l0", UP), ("l1", UP), ("l0", DOWN))]
    assert len(set(wires)) == 3
    shared = [codec("randomk:ratio=0.1", *who).encode_(tensors(), 1)[0] for who in (("l0", UP), ("l1", UP))]
    assert shared[0] == shared[1]


def test_a_codec_has_one_spelling():
    assert spell_codec(" topk:ratio=0.01") == spell_codec("topk")
    with pytest.raises(ConfigurationError, match="the text of a compressor"):
        spell_codec(None)  # type: ignore[arg-type]
