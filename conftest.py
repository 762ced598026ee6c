"""For the examples in docstrings: Grace's public names, as a reader would have imported them."""

from __future__ import annotations

import pytest
import torch

import grace
from grace.registry import recipe


@pytest.fixture(autouse=True)
def _names(doctest_namespace: dict[str, object]) -> None:
    doctest_namespace.update({name: getattr(grace, name) for name in grace.__all__})
    doctest_namespace.update(torch=torch, recipe=recipe, grace=grace)
