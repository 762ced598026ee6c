"""The examples in docs/examples are what their texts say."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from grace_bench.tasks import find_task

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


def test_a_resnet_on_small_pictures_has_the_same_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLES)
    small, whole = find_task("resnet50_64:ResNet50At64"), find_task("resnet50")
    with torch.device("meta"):
        sizes = [[p.shape for p in task.model().parameters()] for task in (small, whole)]
    assert sizes[0] == sizes[1]
    assert (small.size, whole.size) == (64, 224)
