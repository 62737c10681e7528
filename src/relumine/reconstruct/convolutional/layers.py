"""Convolutional layers as sparse affine maps, and the affine piece that a stack of them is around a point."""

from dataclasses import dataclass, field
from functools import cached_property
from math import ceil, prod
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from relumine.oracle.base import Array

Shape = tuple[int, int, int]
Pair = tuple[int, int]
Indices = NDArray[np.intp]


@dataclass(frozen=True)
class Pool:
    """Max or average pooling without padding, after the ReLU."""

    kind: Literal["max", "average"]
    size: Pair
    stride: Pair
    ceil_mode: bool = False


@dataclass(frozen=True)
class Stage:
    """A convolution, a ReLU and perhaps a pooling; ``channels`` is None where it is not known."""

    kernel: Pair
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    pool: Pool | None = None
    channels: int | None = None


@dataclass(frozen=True)
class Geometry:
    """A stage at work on inputs C×H×W: which numbers each of its units reads, and which units are pooled."""

    stage: Stage
    inputs: Shape

    @property
    def grid(self) -> Pair:
        """Rows and columns of units, before pooling."""
        stage = self.stage
        rows, columns = (
            (n + 2 * p - k) // s + 1
            for n, p, k, s in zip(self.inputs[1:], stage.padding, stage.kernel, stage.stride, strict=True)
        )
        return rows, columns

    @property
    def pooled(self) -> Pair:
        """Rows and columns of features, after pooling."""
        pool = self.stage.pool
        if pool is None:
            return self.grid
        rows, columns = (_pooled(n, pool, axis) for axis, n in enumerate(self.grid))
        return rows, columns

    @property
    def places(self) -> int:
        """Units per channel."""
        return prod(self.grid)

    @cached_property
    def taps(self) -> Indices:
        """places×(C·kh·kw): the inputs that each unit reads; −1 is padding."""
        channels, height, width = self.inputs
        stage = self.stage
        y = self._reach(0)[:, None, None, :, None] + np.zeros((1, self.grid[1], 1, 1, stage.kernel[1]), dtype=np.intp)
        x = self._reach(1)[None, :, None, None, :] + np.zeros((self.grid[0], 1, 1, stage.kernel[0], 1), dtype=np.intp)
        inside = (y >= 0) & (y < height) & (x >= 0) & (x < width)
        channel = np.arange(channels)[None, None, :, None, None] * (height * width)
        taps = np.where(inside, channel + y * width + x, -1)
        return taps.reshape(self.places, channels * prod(stage.kernel))

    def _reach(self, axis: int) -> Indices:
        """grid×kernel: the coordinates that units read along one axis."""
        stage = self.stage
        starts = np.arange(self.grid[axis]) * stage.stride[axis] - stage.padding[axis]
        return np.asarray(starts[:, None] + np.arange(stage.kernel[axis]))

    def read(self, features: Array) -> Array:
        """places×(C·kh·kw, or more axes): what each unit reads of these (one row for each input); padding is zero."""
        return np.asarray(np.concatenate([features, np.zeros_like(features[:1])])[self.taps])

    @cached_property
    def cells(self) -> Indices:
        """features×most: the places that are pooled into each feature of a channel; −1 where there are fewer."""
        pool, (rows, columns) = self.stage.pool, self.grid
        if pool is None:
            return np.arange(self.places)[:, None]
        y = (np.arange(self.pooled[0]) * pool.stride[0])[:, None] + np.arange(pool.size[0])
        x = (np.arange(self.pooled[1]) * pool.stride[1])[:, None] + np.arange(pool.size[1])
        y, x = y[:, None, :, None], x[None, :, None, :]
        found = np.where((y < rows) & (x < columns), y * columns + x, -1)
        return np.asarray(found.reshape(prod(self.pooled), prod(pool.size)))

    def outputs(self, channels: int) -> Shape:
        """The shape of the features."""
        return (channels, *self.pooled)


def _pooled(n: int, pool: Pool, axis: int) -> int:
    size, stride = pool.size[axis], pool.stride[axis]
    if not pool.ceil_mode:
        return (n - size) // stride + 1
    count = ceil((n - size) / stride) + 1
    return count - 1 if (count - 1) * stride >= n else count  # no window starts outside, as in torch


@dataclass(frozen=True, eq=False)
class Layer:
    """A stage with its parameters: ``kernels`` channels×(C·kh·kw), ``biases`` channels."""

    geometry: Geometry
    kernels: Array
    biases: Array

    @property
    def outputs(self) -> Shape:
        """The shape of the features."""
        return self.geometry.outputs(len(self.kernels))

    @cached_property
    def matrix(self) -> sparse.csr_matrix:
        """The convolution as a (channels·places)×inputs matrix."""
        geometry = self.geometry
        place, tap = np.nonzero(geometry.taps >= 0)
        rows = np.arange(len(self.kernels))[:, None] * geometry.places + place
        columns = np.tile(geometry.taps[place, tap], len(self.kernels))
        shape = (len(self.kernels) * geometry.places, prod(geometry.inputs))
        return sparse.csr_matrix((self.kernels[:, tap].ravel(), (rows.ravel(), columns)), shape=shape)

    def preactivations(self, pieces: sparse.csr_matrix) -> sparse.csr_matrix:
        """The rows [gradient, value] of all units, from those of the inputs."""
        rows, width = self.matrix.shape[0], pieces.shape[1]
        biases = np.repeat(self.biases, self.geometry.places)
        shift = sparse.csr_matrix((biases, (np.arange(rows), np.full(rows, width - 1))), shape=(rows, width))
        return (self.matrix @ pieces + shift).tocsr()

    def selection(self, values: Array) -> sparse.csr_matrix:
        """features×units: what ReLU and pooling do where the pre-activations are these."""
        cells, places = self.geometry.cells, self.geometry.places
        z = values.reshape(len(self.kernels), places)
        pool = self.stage.pool
        at = np.where(cells < 0, -np.inf, z[:, cells])  # channels×features×most
        channel = np.arange(len(z))[:, None] * places
        features = np.arange(at.shape[0] * at.shape[1]).reshape(at.shape[:2])
        shape = (features.size, z.size)
        if pool is not None and pool.kind == "average":
            c, f, m = np.nonzero(at > 0)
            counts = (cells >= 0).sum(axis=1)
            return sparse.csr_matrix((1.0 / counts[f], (features[c, f], c * places + cells[f, m])), shape=shape)
        best = at.argmax(axis=2)
        on = np.take_along_axis(at, best[:, :, None], axis=2)[:, :, 0] > 0
        chosen = channel + cells[np.arange(len(cells)), best]
        return sparse.csr_matrix((np.ones(int(on.sum())), (features[on], chosen[on])), shape=shape)

    @property
    def stage(self) -> Stage:
        """What it is."""
        return self.geometry.stage


@dataclass(frozen=True, eq=False)
class Front:
    """The known layers, first to last, of a network on inputs C×H×W."""

    inputs: Shape
    layers: tuple[Layer, ...] = ()
    _around: "dict[bytes, Around]" = field(default_factory=dict, repr=False)

    @property
    def outputs(self) -> Shape:
        """The shape of its features."""
        return self.layers[-1].outputs if self.layers else self.inputs

    def and_(self, layer: Layer) -> "Front":
        """These and one more."""
        return Front(self.inputs, (*self.layers, layer))

    def at(self, point: Array) -> "Around":
        """The affine piece around this point; points are asked for again and again."""
        key = point.tobytes()
        if key not in self._around:
            pieces = sparse.hstack([sparse.identity(len(point)), sparse.csr_matrix(point[:, None])]).tocsr()
            around = Around(pieces)
            for layer in self.layers:
                around = around.through(layer)
            self._around[key] = around
        return self._around[key]

    def features(self, points: Array) -> Array:
        """n×features."""
        return np.array([self.at(point).values for point in points])


@dataclass(frozen=True, eq=False)
class Around:
    """A front around a point: ``pieces`` features×(d+1) are [gradient, value at the point] of every feature.

    ``selections`` and ``preactivations`` (rows of the same form) are those of each layer.
    """

    pieces: sparse.csr_matrix
    selections: tuple[sparse.csr_matrix, ...] = ()
    preactivations: tuple[sparse.csr_matrix, ...] = ()

    @cached_property
    def values(self) -> Array:
        """The features."""
        return np.asarray(self.pieces[:, -1].toarray().ravel())

    def through(self, layer: Layer) -> "Around":
        """The piece behind one more layer."""
        before = layer.preactivations(self.pieces)
        chosen = layer.selection(before[:, -1].toarray().ravel())
        return Around((chosen @ before).tocsr(), (*self.selections, chosen), (*self.preactivations, before))

    def switched(self, other: "Around") -> sparse.csr_matrix:
        """The rows by which the features of all layers change between here and there, in terms of the pieces here."""
        changes = [
            (there - here) @ rows
            for here, there, rows in zip(self.selections, other.selections, self.preactivations, strict=True)
        ]
        rows = sparse.vstack([sparse.csr_matrix((0, self.pieces.shape[1])), *changes]).tocsr()
        return rows[np.flatnonzero(np.diff(rows.indptr))]
