"""A torch module as a backbone. What is held here is the public part of a target, never the target itself."""

from itertools import pairwise

import torch
from torch import Tensor, nn

from relumine.errors import MisuseError
from relumine.oracle.base import Array, DType, Offer
from relumine.oracle.torch import TorchOracle
from relumine.reconstruct.matching.student import standardising


def answering(module: object, offer: Offer) -> TorchOracle:
    """The oracle of a module that takes the target's inputs; features of any shape become rows."""
    if not isinstance(module, nn.Module):
        raise MisuseError(
            f"backbone: expected a torch module, or an oracle of features, got {type(module).__name__}; "
            "wrap a function in FunctionOracle(query, Offer(inputs, outputs=features))"
        )
    try:
        return TorchOracle(nn.Sequential(module, nn.Flatten()), offer.inputs, values="real")
    except MisuseError as error:
        raise MisuseError(f"backbone: {error}") from error


def projected(module: nn.Module, basis: Array, offer: Offer) -> TorchOracle:
    """Behind the module a multiplication by ``basis``, in the module's precision."""
    return TorchOracle(
        nn.Sequential(module, _Onto(torch.tensor(basis))), offer.inputs, values="real", dtype=offer.dtype
    )


class _Onto(nn.Module):
    basis: Tensor

    def __init__(self, basis: Tensor) -> None:
        super().__init__()
        self.register_buffer("basis", basis, persistent=False)

    def forward(self, features: Tensor) -> Tensor:
        return features @ self.basis.to(features.dtype).T


class _Joined(nn.Module):
    def __init__(self, backbone: nn.Module, head: nn.Module, dtype: DType) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head
        self._dtype = getattr(torch, dtype)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.backbone(inputs.to(self._dtype)))
        return outputs


def joined(backbone: nn.Module, head: nn.Module, dtype: DType) -> nn.Module:
    """Both in one module; the backbone computes in this precision. Neither is put in eval mode: programs refuse."""
    return _Joined(backbone, head, dtype)


class _OfFeatures(nn.Module):
    """A function of B·φ as a function of φ."""

    def __init__(self, module: nn.Module, basis: Array) -> None:
        super().__init__()
        self.module, self.onto = module, _Onto(torch.tensor(basis))
        self.onto.register_buffer("basis", self.onto.basis, persistent=True)

    def forward(self, features: Tensor) -> Tensor:
        like = next(self.module.parameters())
        outputs: Tensor = self.module(self.onto(features.to(like.dtype)))
        return outputs


def of_features(module: nn.Module, basis: Array) -> nn.Module:
    """What a module says of B·φ, asked with φ."""
    return _OfFeatures(module, basis)


def perceptron(sizes: tuple[int, ...], middle: Array, scale: Array, seed: int) -> nn.Module:
    """A fresh float32 network with ReLUs between layers of these sizes, of standardised inputs."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        layers: list[nn.Module] = []
        for before, after in pairwise(sizes):
            layers += [nn.Linear(before, after), nn.ReLU()]
        return standardising(middle, scale)(nn.Sequential(*layers[:-1]))
