"""Networks that others trained: definitions in plain torch with torchvision's parameter names, and their weights.

They have biases or normalisation and are no networks of this package; experiments look at them for comparison.
"""

from zbkernels.models.reference.efficientnet import EfficientNet
from zbkernels.models.reference.loading import IMAGENET, Reference, load_reference
from zbkernels.models.reference.packages import PACKAGES, PackageUnavailable, load_from_package
from zbkernels.models.reference.vit import VisionTransformer, ViTSize
from zbkernels.models.reference.weights import load_weights, read_weights

__all__ = [
    "IMAGENET",
    "PACKAGES",
    "EfficientNet",
    "PackageUnavailable",
    "Reference",
    "ViTSize",
    "VisionTransformer",
    "load_from_package",
    "load_reference",
    "load_weights",
    "read_weights",
]
