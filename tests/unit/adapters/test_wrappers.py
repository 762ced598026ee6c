from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest
import torch

import grace
from grace.errors import ConfigurationError
from tests.distributed.processes import run_script


def pretend(module: str, name: str, base: type = object) -> object:
    """An object of a class of this name in this module."""
    return type(name, (type(name, (base,), {"__module__": module}),), {"__module__": "mine"})()


def compiled(model: torch.nn.Module) -> object:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch's own
        return torch.compile(model)


GIVEN = {
    "bare": (lambda: torch.nn.Linear(2, 2), "a bare Linear.*wrap it first.*or.*grace.DistributedOptimizer"),
    "compiled": (lambda: compiled(torch.nn.Linear(2, 2)), "DistributedDataParallel\\(torch.compile"),
    "data parallel": (lambda: torch.nn.DataParallel(torch.nn.Linear(2, 2)), "DataParallel is one process"),
    "optimizer": (lambda: torch.optim.SGD([torch.zeros(1)], lr=0.1), "grace.DistributedOptimizer"),
    "fsdp1": (
        lambda: pretend("torch.distributed.fsdp.fully_sharded_data_parallel", "FullyShardedDataParallel"),
        "first version.*fully_shard",
    ),
    "deepspeed": (lambda: pretend("deepspeed.runtime.engine", "DeepSpeedEngine"), "DeepSpeed reduces"),
    "lightning": (lambda: pretend("lightning.pytorch.core.module", "LightningModule"), "grace.lightning.Compression"),
    "old lightning": (
        lambda: pretend("pytorch_lightning.core.module", "LightningModule"),
        "grace.lightning.Compression",
    ),
    "fabric": (lambda: pretend("lightning.fabric.wrappers", "_FabricModule"), "model.module"),
    "transformers": (lambda: pretend("transformers.modeling_utils", "PreTrainedModel"), "CompressionCallback"),
    "trainer": (lambda: pretend("transformers.trainer", "Trainer"), "CompressionCallback"),
    "accelerate": (lambda: pretend("accelerate.accelerator", "Accelerator"), "accelerator.prepare"),
    "keras": (lambda: pretend("keras.src.models.model", "Model"), "grace.keras.attach"),
    "a dict": (dict, "where model is a torch.nn.Module"),
}


@pytest.mark.parametrize("kind", GIVEN)
def test_attach_says_what_it_got_and_which_line_to_write(kind: str) -> None:
    make, says = GIVEN[kind]
    with pytest.raises(ConfigurationError, match=re.compile(says, re.DOTALL)):
        grace.attach(make(), "topk")  # type: ignore[arg-type]


REAL = {
    "lightning": ("lightning.pytorch", "LightningModule"),
    "transformers": ("transformers", "PreTrainedModel"),
    "accelerate": ("accelerate", "Accelerator"),
    "fsdp1": ("torch.distributed.fsdp", "FullyShardedDataParallel"),
    "keras": ("keras", "Model"),
}


def test_the_real_classes_have_these_names(tmp_path: Path) -> None:
    begin = "import os, warnings; warnings.simplefilter('ignore')\n"
    backend = "os.environ['KERAS_BACKEND'] = 'torch'\n"  # the class is the same, and TensorFlow starts slowly
    checks = [
        f"import {module}; from grace.adapters.wrappers import _KNOWN\n"
        f"cls = {module}.{name}\n"
        "assert any(c.__name__ == k and (c.__module__ + '.').startswith(p) for c in cls.__mro__ for p, k, _ in _KNOWN), cls\n"
        for module, name in REAL.values()
    ]
    (tmp_path / "names.py").write_text(begin + backend + "".join(checks))
    run_script(tmp_path / "names.py")
