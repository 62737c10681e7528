"""A network as a torch module."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from relumine.oracle.logits import tensor_probabilities
from relumine.reconstruct.activation import Activation

if TYPE_CHECKING:
    from relumine.reconstruct.network import Network

_FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "identity": lambda z: z,
    "relu": torch.relu,
    "relu6": functional.relu6,
    "hardtanh": functional.hardtanh,
    "gelu": functional.gelu,
    "gelu_tanh": lambda z: functional.gelu(z, approximate="tanh"),
    "silu": functional.silu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    # torch's own softplus is linear from 20 on, which is wrong in the ninth digit.
    "softplus": lambda z: torch.logaddexp(z, torch.zeros_like(z)),
    "elu": functional.elu,
}


class ClonedModule(torch.nn.Module):
    """Layers with the activation between them, and a linear skip connection or a softmax where there is one."""

    def __init__(self, network: "Network") -> None:
        super().__init__()
        sizes = [(weight.shape[1], weight.shape[0]) for weight in network.weights]
        self.layers = torch.nn.ModuleList(torch.nn.Linear(*size, dtype=torch.float64) for size in sizes)
        self.activation = _activation_module(network.activation) if network.hidden else torch.nn.Identity()
        self.skip = None
        if network.skip is not None:
            outputs, inputs = network.skip.shape
            self.skip = torch.nn.Linear(inputs, outputs, bias=False, dtype=torch.float64)
        self._probabilities = network.values == "probabilities"
        self.load_state_dict({name: torch.tensor(array) for name, array in network.parameters.items()})

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """What ``Network.predict`` answers."""
        rows = inputs.flatten(1).to(torch.float64)
        hidden = rows
        for layer in self.layers[:-1]:
            hidden = self.activation(layer(hidden))
        outputs: torch.Tensor = self.layers[-1](hidden)
        if self.skip is not None:
            outputs = outputs + self.skip(rows)
        return tensor_probabilities(outputs) if self._probabilities else outputs


def _activation_module(activation: Activation) -> torch.nn.Module:
    """The module whose parameters have the names of ``activation.parameters``."""
    if activation.name == "leaky_relu":
        return _Leaky(activation)
    return _Plain(activation.name) if activation.table is None else _Tabulated(activation)


class _Plain(torch.nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self._function = _FUNCTIONS[name]

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        return self._function(z)


class _Leaky(torch.nn.Module):
    def __init__(self, activation: Activation) -> None:
        super().__init__()
        self.slope = torch.nn.Parameter(torch.tensor(activation.parameters["activation.slope"]))

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        return torch.where(z > 0, z, self.slope * z)


class _Tabulated(torch.nn.Module):
    """The sum of all pieces, each as far as z has passed through it; see ``Activation.table``."""

    def __init__(self, activation: Activation) -> None:
        super().__init__()
        self.table = torch.nn.Parameter(torch.tensor(activation.table))

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        first, second, third = self.table.unbind(2)
        pieces = self.table.shape[1]
        t = (z[:, :, None] - torch.arange(pieces)).clamp(0, 1)
        end = (first + 2 * second + 3 * third)[:, -1]
        straight = first[:, 0] * z.clamp(max=0) + end * (z - pieces).clamp(min=0)
        return straight + (t * (first + t * (second + t * third))).sum(2)
