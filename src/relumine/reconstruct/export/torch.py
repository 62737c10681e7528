"""A network as a torch module."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.polynomial import Chebyshev, Polynomial
from scipy.special import erfcx
from torch.nn import functional

from relumine.errors import MisuseError
from relumine.oracle.logits import tensor_probabilities
from relumine.reconstruct.activation import GELU_TANH, Activation
from relumine.text import one_line

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

# Of the polynomial inside erfc: 1e-15 with 28 coefficients (Numerical Recipes, 3rd edition, section 6.2.2).
_DEGREE = 27


def _gelu(z: torch.Tensor) -> torch.Tensor:
    """z·Φ(z) = max(z, 0) − |z|·erfc(|z|/√2)/2, without erf: onnxruntime has none in double precision.

    erfc(y) = t·exp(P(s) − y²) for y ≥ 0, with t = 2/(2 + y), s = 2t − 1 and P(s) = log(erfc(y)·exp(y²)/t).
    """
    inside = Chebyshev.interpolate(lambda s: np.log(erfcx(4 / (s + 1) - 2) * 2 / (s + 1)), _DEGREE)
    y = z.abs() * 0.5**0.5
    t = 2 / (2 + y)
    total = torch.zeros_like(t)
    for coefficient in inside.convert(kind=Polynomial).coef[::-1]:
        total = total * (2 * t - 1) + float(coefficient)
    result: torch.Tensor = torch.relu(z) - z.abs() * (0.5 * t * torch.exp(total - y * y))
    return result


def _gelu_tanh(z: torch.Tensor) -> torch.Tensor:
    scale, cubic = GELU_TANH
    return 0.5 * z * (1 + torch.tanh(scale * (z + cubic * z**3)))


# The same by operators that onnxruntime has in double precision.
_IN_ONNX: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "softplus": lambda z: torch.relu(z) + torch.log(1 + torch.exp(-z.abs())),
}


# Known to ONNX 1.13 and onnxruntime 1.14, and all later ones.
_OPSET = 18


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
        self._name = name

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        functions = _FUNCTIONS | _IN_ONNX if torch.onnx.is_in_onnx_export() else _FUNCTIONS
        return functions[self._name](z)


class _Leaky(torch.nn.Module):
    def __init__(self, activation: Activation) -> None:
        super().__init__()
        self.slope = torch.nn.Parameter(torch.tensor(activation.parameters["activation.slope"]))

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        return functional.prelu(z, self.slope)


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


def write_onnx(
    module: torch.nn.Module, inputs: tuple[int, ...], path: Path, dtype: torch.dtype = torch.float32
) -> None:
    """By torch's TorchScript exporter, from inputs of this shape: the newer one needs a package more."""
    batch = {0: "batch"}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                module,
                (torch.zeros(2, *inputs, dtype=dtype),),
                str(path),
                dynamo=False,
                input_names=["input"],
                output_names=["output"],
                opset_version=_OPSET,
                dynamic_axes={"input": batch, "output": batch},
            )
    except Exception as error:  # whatever the exporter cannot translate
        reason = one_line(error, named=False)
        raise MisuseError(
            f"save: torch cannot export this model to ONNX ({reason}); save it as .safetensors, and is the onnx "
            "package there? pip install 'relumine[onnx]'"
        ) from error
