"""Names: everything public is in ``__all__``, and type checkers see what there is at run time."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

import grace
import grace.methods.topk as one_file
from grace.registry import recipes

PACKAGES = ("grace.communicators", "grace.memories", "grace.methods")


def test_everything_public_is_exported():
    public = {
        name
        for name, value in vars(grace).items()
        if not name.startswith("_") and (callable(value) or not isinstance(value, ModuleType))
    }
    assert public - {"annotations"} == set(grace.__all__)
    assert len(grace.__all__) == len(set(grace.__all__))


@pytest.mark.parametrize("package", PACKAGES)
def test_everything_that_is_registered_is_exported(package: str):
    module = sys.modules[package]
    tables = (grace.registry.METHODS, grace.registry.MEMORIES, grace.registry.COMMUNICATORS)
    classes = {kind for table in tables for kind in table._classes.values()}
    own = {kind.__name__: kind for kind in classes if kind.__module__.rpartition(".")[0] == package}
    assert set(own) <= set(module.__all__)
    assert all(getattr(grace, name) is kind for name, kind in own.items())


def test_methods_is_a_package_and_a_function():
    assert one_file.TopK is grace.TopK
    assert isinstance(grace.methods, ModuleType)
    assert grace.methods() == recipes.methods()
