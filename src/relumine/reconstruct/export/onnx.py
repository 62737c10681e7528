"""A network as the nodes of an ONNX graph, in double precision and with operators that onnxruntime has in it."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.polynomial import Chebyshev, Polynomial
from scipy.special import erfcx

from relumine.oracle.base import Array
from relumine.reconstruct.activation import GELU_TANH, Activation

if TYPE_CHECKING:
    from relumine.reconstruct.network import Network

# Of the polynomial inside erfc: 1e-15 with 28 coefficients (Numerical Recipes, 3rd edition, section 6.2.2).
_DEGREE = 27


def nodes_of(network: "Network", onnx: Any) -> list[Any]:
    """The nodes from "input" to "output"; parameters are initialisers by their names."""
    graph = _OnnxBuilder(onnx)
    hidden = rows = graph("Flatten", "input", axis=1)
    last = len(network.weights) - 1
    for i in range(last + 1):
        hidden = graph("Gemm", hidden, f"layers.{i}.weight", f"layers.{i}.bias", transB=1)
        hidden = hidden if i == last else _activated(graph, network.activation, hidden)
    if network.skip is not None:
        hidden = graph("Add", hidden, graph("Gemm", rows, "skip.weight", transB=1))
    _finish(graph, network, hidden)
    return graph.nodes


def _finish(graph: "_OnnxBuilder", network: "Network", hidden: str) -> None:
    if network.values != "probabilities":
        graph("Identity", hidden, to="output")
    elif len(network.biases[-1]) == 1:
        graph("Sigmoid", hidden, to="output")
    else:
        graph("Softmax", hidden, to="output", axis=1)


class _OnnxBuilder:
    """Nodes in the order in which they were added; numbers among a node's inputs become constants."""

    def __init__(self, onnx: Any) -> None:
        self._onnx = onnx
        self.nodes: list[Any] = []

    def __call__(self, operator: str, *inputs: "str | float | Array", to: str = "", **attributes: object) -> str:
        names = [given if isinstance(given, str) else self._constant(given) for given in inputs]
        return self._add(operator, names, to, **attributes)

    def _constant(self, number: "float | Array") -> str:
        return self._add("Constant", [], "", value=self._onnx.numpy_helper.from_array(np.asarray(number)))

    def _add(self, operator: str, inputs: list[str], to: str, **attributes: object) -> str:
        name = to or f"{operator.lower()}_{len(self.nodes)}"
        self.nodes.append(self._onnx.helper.make_node(operator, inputs, [name], **attributes))
        return name


def _activated(graph: _OnnxBuilder, activation: Activation, z: str) -> str:
    if activation.name == "leaky_relu":
        return graph("PRelu", z, "activation.slope")
    if activation.table is not None:
        return _tabulated(graph, activation.table, z)
    return _NODES[activation.name](graph, z)


def _gelu(graph: _OnnxBuilder, z: str) -> str:
    """z·Φ(z), with Φ(z) = erfc(−z/√2)/2: onnxruntime has no erf in double precision.

    erfc(y) = t·exp(−y² + P(t)) for y ≥ 0, with t = 2/(2 + y); erfc(−y) = 2 − erfc(y).
    """
    y = graph("Mul", graph("Abs", z), np.sqrt(0.5))
    t = graph("Div", 2.0, graph("Add", y, 2.0))
    s = graph("Sub", graph("Mul", t, 2.0), 1.0)
    total = graph("Mul", s, 0.0)
    for coefficient in _inside_erfc()[::-1]:
        total = graph("Add", graph("Mul", total, s), float(coefficient))
    tail = graph("Mul", graph("Mul", t, 0.5), graph("Exp", graph("Sub", total, graph("Mul", y, y))))
    # z·Φ(z) = max(z, 0) − |z|·Φ(−|z|)
    return graph("Sub", graph("Relu", z), graph("Mul", graph("Abs", z), tail))


def _inside_erfc() -> Array:
    """P as a polynomial of s = 2t − 1: log(erfc(y)·exp(y²)/t)."""

    def inside(s: Array) -> Array:
        t = (s + 1) / 2
        result: Array = np.log(erfcx(2 / t - 2) / t)
        return result

    return np.asarray(Chebyshev.interpolate(inside, _DEGREE).convert(kind=Polynomial).coef, dtype=np.float64)


def _gelu_tanh(graph: _OnnxBuilder, z: str) -> str:
    scale, cubic = GELU_TANH
    inner = graph("Add", graph("Mul", graph("Mul", graph("Mul", z, z), cubic), z), z)
    return graph("Mul", graph("Mul", z, 0.5), graph("Add", graph("Tanh", graph("Mul", inner, scale)), 1.0))


def _softplus(graph: _OnnxBuilder, z: str) -> str:
    """max(z, 0) + log(1 + exp(−|z|)), which does not overflow."""
    small = graph("Log", graph("Add", graph("Exp", graph("Neg", graph("Abs", z))), 1.0))
    return graph("Add", graph("Relu", z), small)


def _tabulated(graph: _OnnxBuilder, table: Array, z: str) -> str:
    """The sum of all pieces, each as far as z has passed through it; see ``Activation.table``."""
    first, second, third = np.moveaxis(table, 2, 0)
    pieces = table.shape[1]
    passed = graph("Sub", graph("Unsqueeze", z, np.array([2])), np.arange(float(pieces)))
    t = graph("Clip", passed, np.float64(0), np.float64(1))
    total = graph("Mul", t, third)
    for part in (second, first):
        total = graph("Mul", t, graph("Add", total, part))
    bent = graph("ReduceSum", total, np.array([2]), keepdims=0)
    left = graph("Mul", graph("Min", z, 0.0), first[:, 0].copy())
    right = graph("Mul", graph("Relu", graph("Sub", z, float(pieces))), table[:, -1] @ (1.0, 2.0, 3.0))
    return graph("Add", bent, graph("Add", left, right))


_NODES: dict[str, Callable[[_OnnxBuilder, str], str]] = {
    "identity": lambda graph, z: z,
    "relu": lambda graph, z: graph("Relu", z),
    "relu6": lambda graph, z: graph("Clip", z, 0.0, 6.0),
    "hardtanh": lambda graph, z: graph("Clip", z, -1.0, 1.0),
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "silu": lambda graph, z: graph("Mul", z, graph("Sigmoid", z)),
    "tanh": lambda graph, z: graph("Tanh", z),
    "sigmoid": lambda graph, z: graph("Sigmoid", z),
    "softplus": _softplus,
    "elu": lambda graph, z: graph("Elu", z),
}
