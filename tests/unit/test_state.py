"""States as numpy arrays, and back."""

from __future__ import annotations

import io
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from grace.errors import StateError
from grace.state import flat, nested

STATE = {
    "version": 1, "policy": "Policy('*' -> topk)", "empty": {}, "nothing": None, "rate": math.inf, "on": True,
    "states": {
        "dense/kernel": (torch.arange(6.0).view(2, 3), (None, 3)), "dense~1kernel": (torch.ones(2),),
        "half": torch.tensor([1.0, -2.5, math.inf], dtype=torch.bfloat16), "f16": torch.ones(2, dtype=torch.float16),
        "scalar": torch.tensor(3.0, dtype=torch.float64), "none": torch.zeros(0, 4),
    },
    "members": [["a", "b"], []],
}  # fmt: skip


def assert_same(a: Any, b: Any) -> None:
    assert type(a) is type(b)
    if isinstance(a, Tensor):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)
    elif isinstance(a, dict):
        assert list(a) == list(b)
        for key in a:
            assert_same(a[key], b[key])
    elif isinstance(a, list | tuple):
        assert len(a) == len(b)
        for first, second in zip(a, b, strict=True):
            assert_same(first, second)
    else:
        assert a == b


def test_there_and_back() -> None:
    arrays = flat(STATE)
    assert all(isinstance(x, np.ndarray) for x in arrays.values())
    assert set(arrays) == {
        "structure", "states/dense~1kernel/0", "states/dense~01kernel/0", "states/half", "states/f16", "states/scalar",
        "states/none",
    }  # fmt: skip
    assert arrays["states/half"].dtype == np.uint16
    assert_same(nested(arrays), STATE)


def test_through_an_npz_file() -> None:
    file = io.BytesIO()
    np.savez(file, **flat(STATE))
    file.seek(0)
    with np.load(file) as loaded:
        assert_same(nested(dict(loaded)), STATE)


def test_it_is_a_copy() -> None:
    x = torch.ones(3)
    arrays = flat({"x": x})
    x.zero_()
    assert arrays["x"].tolist() == [1, 1, 1]


@pytest.mark.parametrize("bad", [{"a": {1, 2}}, {"a": {3: 1}}, object()])
def test_what_cannot_be_flat(bad: Any) -> None:
    with pytest.raises(StateError, match="legal"):
        flat(bad)


@pytest.mark.parametrize(
    "arrays",
    [
        {}, {"structure": np.zeros(3, np.uint8)}, {k: v for k, v in flat(STATE).items() if k != "states/f16"},
        {"structure": np.frombuffer(b'{"what": 3}', np.uint8)}, {"structure": np.frombuffer(b"3", np.uint8)},
    ],
)  # fmt: skip
def test_what_is_no_flat_state(arrays: Any) -> None:
    with pytest.raises(StateError, match="not a flat state"):
        nested(arrays)
