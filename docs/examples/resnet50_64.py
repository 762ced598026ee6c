"""A task of one's own: the survey's ResNet-50 with pictures of 64 x 64 pixels, a twelfth of the work for the same gradient.

Example: ``cd docs/examples; grace bench train --tasks resnet50_64:ResNet50At64 --data synthetic --steps 20 --batch 2 ...``
"""

from grace_bench.tasks.imagenet import ResNet50


class ResNet50At64(ResNet50):
    """As many parameters as ResNet-50: the mean over the last map does not mind its size."""

    size = 64
