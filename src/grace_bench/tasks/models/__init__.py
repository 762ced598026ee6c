"""The models of the survey's Table II, and a transformer: one file for each family.

With their defaults they have exactly the parameters and gradient vectors (tensors) that the table prints. What makes the
numbers what they are, an unused class here, a missing scale there, is each model's own quirk and a comment in its file.
Widths and depths make the small variants.
"""

from __future__ import annotations

from grace_bench.tasks.models.densenet import DenseNet as DenseNet
from grace_bench.tasks.models.gpt import GPT as GPT
from grace_bench.tasks.models.lstm import LSTMLanguageModel as LSTMLanguageModel
from grace_bench.tasks.models.ncf import NCFModel as NCFModel
from grace_bench.tasks.models.resnet9 import ResNet9Model as ResNet9Model
from grace_bench.tasks.models.resnet20 import ResNet20Model as ResNet20Model
from grace_bench.tasks.models.resnet50 import ResNet50Model as ResNet50Model
from grace_bench.tasks.models.unet import UNetModel as UNetModel
from grace_bench.tasks.models.vgg import VGG16Cifar as VGG16Cifar
from grace_bench.tasks.models.vgg import VGG19Model as VGG19Model
