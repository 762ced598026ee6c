"""Flags that the host reads, or does not."""

from __future__ import annotations

import pytest
import torch

from grace.errors import ConfigurationError
from grace.flags.capturing import pretend_capturing
from grace.flags.finite import ask_host_of_all, cpu_as_accelerator


def test_several_flags_are_one_question() -> None:
    flags = [torch.tensor(True), False, torch.tensor(False), True]
    assert ask_host_of_all(flags) == [True, False, False, True]
    with cpu_as_accelerator():
        assert ask_host_of_all(flags) == [True, False, False, True]
        with pretend_capturing(), pytest.raises(ConfigurationError, match="finite"):
            ask_host_of_all(flags)
        with pretend_capturing():
            assert ask_host_of_all([True, False]) == [True, False]
