"""Parameters that an optimizer's adapter may exchange."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator

import pytest
import torch

from grace.adapters.trained import refuse_ddp


@pytest.fixture
def switching() -> Iterator[None]:
    """Python goes from one thread to another all the time, and looks only at objects that are made from here on: it takes long
    to look at all that a process of tests has gathered."""
    usual = sys.getswitchinterval()
    gc.collect()
    gc.freeze()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)
    gc.unfreeze()


def test_looking_for_a_models_wrapper_disturbs_no_tuple_that_another_thread_makes(switching: None) -> None:
    errors: list[BaseException] = []
    ended = threading.Event()

    def make() -> None:
        try:
            while not ended.is_set():
                tuple(i + 1 for i in range(100))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=make)
    thread.start()
    try:
        for _ in range(3000):
            refuse_ddp({"weight": torch.zeros(3)})
    finally:
        ended.set()
        thread.join()
    assert errors == []
