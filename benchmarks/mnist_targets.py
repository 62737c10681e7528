"""Networks trained on MNIST, as targets of an audit.

    relumine audit benchmarks.mnist_targets:two_layer --input-shape 1,28,28 --data mnist
    relumine audit benchmarks.mnist_targets:conv --input-shape 1,28,28 --data mnist

They are trained when first asked for and then kept; docs/data.md says where data and networks are found.
"""

import torch

from relumine import zoo


def two_layer() -> torch.nn.Module:
    """784-256-10."""
    return _trained("two_layer")


def conv() -> torch.nn.Module:
    """Two convolutions and two dense layers."""
    return _trained("conv")


def _trained(name: str) -> torch.nn.Module:
    return zoo.trained(name, zoo.dataset("mnist").split(seed=0)).module
