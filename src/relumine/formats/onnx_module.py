"""OnnxModule: an ONNX graph that torch computes and differentiates, checked against onnxruntime."""

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from relumine.errors import TargetError, translated
from relumine.formats.dry_run import dry_run
from relumine.formats.loaded import Loaded
from relumine.formats.onnx_file import Graph, Node, read_graph, session_of
from relumine.formats.onnx_ops import OPERATORS, Call

# Equal up to rounding, relative to the largest number (at least 1).
_TOLERANCE = {"float32": 1e-4, "float64": 1e-9}

# Sizes of the random inputs at which torch and onnxruntime are compared.
_SCALES = np.array([0.0, 0.1, 1, 1, 10])


class OnnxModule(nn.Module):
    """Computes the graph node by node. Weights are buffers; whole numbers (shapes, positions) stay plain tensors."""

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self._graph = graph
        # Says the precision of the inputs, also where there are no weights.
        self.register_buffer("precision", torch.empty(0, dtype=getattr(torch, graph.dtype)))
        self._shapes: dict[str, Tensor] = {}
        self._names: dict[str, str] = {}
        for i, (name, array) in enumerate(graph.constants.items()):
            tensor = torch.from_numpy(array)
            if tensor.is_floating_point():
                self._names[name] = f"weight_{i}"
                self.register_buffer(f"weight_{i}", tensor)
            else:
                self._shapes[name] = tensor

    def forward(self, inputs: Tensor) -> Tensor:
        """What the graph's output is for these inputs."""
        known: dict[str, Tensor] = {name: getattr(self, attribute) for name, attribute in self._names.items()}
        known |= self._shapes
        known[self._graph.input] = inputs
        for node in self._graph.nodes:
            known |= self._computed(node, known)
        if self._graph.output not in known:
            raise TargetError(f"the output {self._graph.output!r} is computed by none of the operations")
        return known[self._graph.output]

    def _computed(self, node: Node, known: dict[str, Tensor]) -> dict[str, Tensor]:
        missing = [name for name in node.inputs if name and name not in known]
        if missing:
            raise TargetError(f"{node.op}: its input {missing[0]!r} is computed by none of the operations before it")
        call = Call(node, tuple(known[name] if name else None for name in node.inputs), self._graph.opset)
        results = OPERATORS[node.op](call)
        results = results if isinstance(results, tuple) else (results,)
        if len([name for name in node.outputs if name]) > len(results):
            raise TargetError(f"{node.op}: expected {len(results)} output(s) to be used, got {len(node.outputs)}")
        return dict(zip(node.outputs, results, strict=False))


def load_onnx(path: Path, input_shape: tuple[int, ...] | None = None) -> Loaded:
    """The module of an .onnx file, or a TargetError. ``input_shape`` is needed where the file leaves sizes open."""
    graph = read_graph(path)
    unknown = sorted({node.op for node in graph.nodes} - OPERATORS.keys())
    if unknown:
        raise TargetError(
            f"{path}: the operators {', '.join(unknown)} are not among those understood: {', '.join(OPERATORS)}"
        )
    shape = input_shape or _shape(graph, path)
    module = OnnxModule(graph).eval()
    if shape is not None:
        dry_run(module, shape, path)
        _compare(module, graph, shape, path)
    return Loaded(module, shape)


def _shape(graph: Graph, path: Path) -> tuple[int, ...] | None:
    """The shape of one input: the declared one without the batch; None if a size is left open."""
    if len(graph.input_shape) < 2:
        raise TargetError(f"{path}: expected inputs (batch, …), got the shape {graph.input_shape}; say --input-shape")
    batch, *shape = graph.input_shape
    if batch is not None and batch > 1:
        raise TargetError(
            f"{path}: expected a model for any number of inputs, this one takes {batch} at a time; export it with a "
            "dynamic first axis"
        )
    return None if None in shape else tuple(size for size in shape if size is not None)


def _compare(module: OnnxModule, graph: Graph, shape: tuple[int, ...], path: Path) -> None:
    """A second opinion: onnxruntime computes the same, or the file is refused. Needs no query of the target."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((len(_SCALES), *shape)) * _SCALES.reshape(-1, *[1] * len(shape))
    points = [row[None].astype(graph.dtype) for row in rows]
    with translated(TargetError, f"cannot be computed for inputs of shape {shape}: ", file=path):
        with torch.no_grad():
            ours = np.stack([module(torch.from_numpy(point)).numpy() for point in points])
        theirs = np.stack(_second_opinion(graph, points))
    both = np.isfinite(ours) & np.isfinite(theirs) if ours.shape == theirs.shape else np.zeros(1, dtype=bool)
    largest = max(1.0, np.abs(theirs[both]).max(initial=0)) if both.any() else 1.0
    gap = np.abs(ours - theirs)[both].max(initial=0) / largest if both.all() else np.inf
    if not gap <= _TOLERANCE[graph.dtype]:
        raise TargetError(
            f"{path}: computed with torch, the outputs differ from onnxruntime's by {gap:.1e} of the largest; "
            "this graph is not understood, please report it"
        )


def _second_opinion(graph: Graph, points: list["np.ndarray[Any, Any]"]) -> list["np.ndarray[Any, Any]"]:
    runtime: Any = import_module("onnxruntime")
    try:
        session = session_of(runtime, graph.model)
    except runtime.capi.onnxruntime_pybind11_state.NotImplemented:
        # onnxruntime has no float64 convolution, for one; onnx's own reference implementation has.
        session = import_module("onnx.reference").ReferenceEvaluator(
            import_module("onnx").load_from_string(graph.model)
        )
    return [np.asarray(session.run(None, {graph.input: point})[0]) for point in points]
