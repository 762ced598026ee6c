"""Tasks: what is trained, how, and how its quality is measured. A user's own task has the same contract."""

from __future__ import annotations

from dataclasses import dataclass

from grace.bench.loading import load
from grace.bench.tasks.contract import DataInfo, Source, Task
from grace.errors import ConfigurationError, unknown

__all__ = ["TASKS", "DataInfo", "Entry", "Source", "Task", "find_task"]


@dataclass(frozen=True, slots=True)
class Entry:
    """A registered task: where its class is, and what it is in one line."""

    path: str
    about: str


_HERE = "grace.bench.tasks"

TASKS = {
    "digits": Entry(f"{_HERE}.digits:Digits", "handwritten digits, a small residual network: real data"),
    "resnet20": Entry(f"{_HERE}.cifar:ResNet20", "ResNet-20 v2 on CIFAR-10, 269,467 parameters"),
    "densenet40_k12": Entry(f"{_HERE}.cifar:DenseNet40", "DenseNet-40 (k = 12) on CIFAR-10, 357,491 parameters"),
    "resnet9": Entry(f"{_HERE}.cifar:ResNet9", "ResNet-9 on CIFAR-10, 6,573,120 parameters"),
    "vgg16_cifar": Entry(f"{_HERE}.cifar:VGG16", "VGG16 on CIFAR-10, 14,982,987 parameters"),
    "resnet50": Entry(f"{_HERE}.imagenet:ResNet50", "ResNet-50 v1 on ImageNet, 25,559,081 parameters"),
    "vgg19": Entry(f"{_HERE}.imagenet:VGG19", "VGG-19 on ImageNet, 143,671,337 parameters"),
    "ncf": Entry(f"{_HERE}.recommendation:NCF", "recommendation on MovieLens-20M, 31,832,577 parameters"),
    "lstm_ptb": Entry(f"{_HERE}.words:LSTM", "LSTM on Penn Treebank, 19,775,200 parameters"),
    "unet": Entry(f"{_HERE}.segmentation:UNet", "U-Net for the defects of DAGM2007, 1,850,305 parameters"),
    "gpt2_small": Entry(f"{_HERE}.characters:GPT2", "GPT-2 small on text, 124,439,808 parameters; not in the survey"),
    "resnet20_small": Entry(f"{_HERE}.cifar:ResNet20Small", "ResNet-20 with half the channels, on shapes"),
    "densenet_small": Entry(f"{_HERE}.cifar:DenseNetSmall", "DenseNet with 12 layers (k = 8), on shapes"),
    "resnet9_small": Entry(f"{_HERE}.cifar:ResNet9Small", "ResNet-9 with an eighth of the channels, on shapes"),
    "vgg16_small": Entry(f"{_HERE}.cifar:VGG16Small", "VGG16 with a quarter of the channels and less, on shapes"),
    "resnet50_small": Entry(f"{_HERE}.imagenet:ResNet50Small", "ResNet with four bottlenecks, on shapes with textures"),
    "vgg11_small": Entry(f"{_HERE}.imagenet:VGG11Small", "VGG with eight convolutions, on shapes with textures"),
    "ncf_small": Entry(f"{_HERE}.recommendation:NCFSmall", "recommendation, on latent feedback"),
    "lstm_small": Entry(f"{_HERE}.words:LSTMSmall", "LSTM on the words of Python's standard library: real data"),
    "unet_small": Entry(
        f"{_HERE}.segmentation:UNetSmall", "U-Net with a quarter of the channels, on textures with defects"
    ),
    "gpt_small": Entry(
        f"{_HERE}.characters:GPTSmall", "transformer on the bytes of Python's standard library: real data"
    ),
}
TASKS["digits_small"] = TASKS["digits"]  # the suite's name for it


def find_task(spec: str) -> Task:
    """The task of this name, or of ``module:Class``, which is looked for in the working directory too.

    Raises:
        UnknownNameError: no task of this name.
        ConfigurationError: a module or class that is not there, or that is no task.
    """
    path = TASKS[spec].path if spec in TASKS else spec
    if ":" not in path:
        raise unknown("task", spec, [*TASKS, "module:Class"])
    found = load(path, "task")
    if not (isinstance(found, type) and issubclass(found, Task)):
        raise ConfigurationError(
            f"task {spec!r}: {path.rpartition(':')[2]} is not a subclass of grace.bench.tasks.Task"
        )
    task: Task = found()
    return task
