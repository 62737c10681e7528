"""Shallow: a one-hidden-layer ReLU function in the form in which a search finds it.

f(x) = J₀x + o₀ + Σ_i w_i·max(a_i·x + b_i, 0), every unit off at the reference point where (J₀, o₀) was seen. No unit
needs an orientation of its own: relu(z) = relu(−z) + z, and the difference is part of J₀ and o₀. This drops three
assumptions of the paper (independent rows, unit norm, no biases), so that h > d works and h need not be known.
"""

import warnings
from dataclasses import dataclass

import numpy as np
from scipy.linalg import LinAlgWarning, solve

from relumine.oracle.base import Array, Offer
from relumine.reconstruct.network import Network

# A linear term is none of units' rows if this part of it lies outside of their span: rounding is far less in float32.
_OUTSIDE = 1e-2


@dataclass(frozen=True, eq=False)
class Shallow:
    """Reference piece (``jacobian`` K×d, ``offset`` K) and m units: ``outputs`` m×K, ``rows`` m×d, ``biases`` m."""

    jacobian: Array
    offset: Array
    outputs: Array
    rows: Array
    biases: Array

    @property
    def units(self) -> int:
        """m, the number of kinks."""
        return len(self.rows)

    def active(self, inputs: Array) -> Array:
        """n×m: each unit's signal a·x + b."""
        result: Array = inputs @ self.rows.T + self.biases
        return result

    def values(self, inputs: Array) -> Array:
        """n×K: f(x)."""
        result: Array = inputs @ self.jacobian.T + self.offset + np.maximum(self.active(inputs), 0) @ self.outputs
        return result

    def jacobians(self, inputs: Array) -> Array:
        """n×K×d: the gradient of every output."""
        masks = (self.active(inputs) > 0).astype(np.float64)
        result: Array = self.jacobian + np.einsum("nm,mk,md->nkd", masks, self.outputs, self.rows, optimize=True)
        return result

    def fitted(self, inputs: Array, values: Array, errors: Array) -> "Shallow":
        """Biases and offset moved to meet these values best, each weighted by its expected error.

        Which units are on at each input is taken as known, so this is linear least squares. What the values do not
        determine stays as it is.
        """
        errors = np.maximum(errors, 1e-6 * float(errors.max(initial=0)) or 1.0)
        on = (self.active(inputs) > 0).astype(np.float64)
        per_output = [
            np.hstack([np.tile(np.eye(len(self.offset))[k], (len(inputs), 1)), on * self.outputs[:, k]])
            for k in range(len(self.offset))
        ]
        system = np.concatenate(per_output) / np.tile(errors, len(self.offset))[:, None]
        missing = ((values - self.values(inputs)) / errors[:, None]).T.ravel()
        move = np.linalg.lstsq(system, missing, rcond=1e-10)[0]
        offset, biases = self.offset + move[: len(self.offset)], self.biases + move[len(self.offset) :]
        return Shallow(self.jacobian, offset, self.outputs, self.rows, biases)

    def turned(self) -> "Shallow":
        """The same function with units turned around so that the linear term is as small as it gets.

        Turning unit i around adds w_i a_iᵀ to the linear term, so the units to turn solve J₀ = −Σ_i c_i w_i a_iᵀ with
        c_i ∈ {0, 1}: linear least squares, whose Gram matrix is (W Wᵀ) ∘ (A Aᵀ). This is the paper's Algorithm 1b
        without its queries. Combinations of outputs with another linear part, as of units that never switch, are left
        out.
        """
        if not 0 < self.units <= self.jacobian.size:
            return self  # more units than the linear term has numbers: they cannot be told apart by it
        outputs = self.outputs - self.outputs @ self._elsewhere @ self._elsewhere.T
        gram = (outputs @ outputs.T) * (self.rows @ self.rows.T)
        if not gram.any():
            return self  # all units reach only what is left out
        target = -np.einsum("mk,kd,md->m", outputs, self.jacobian, self.rows, optimize=True)
        # The ridge keeps dependent units from spoiling the rest; what is found is checked by whoever uses it.
        ridge = 1e-12 * float(np.trace(gram)) / self.units
        with warnings.catch_warnings(category=LinAlgWarning, action="ignore"):
            turned = solve(gram + ridge * np.eye(self.units), target, assume_a="pos") > 0.5
        flip = np.where(turned, -1.0, 1.0)
        jacobian = self.jacobian + (self.outputs[turned].T @ self.rows[turned])
        offset = self.offset + self.outputs[turned].T @ self.biases[turned]
        return Shallow(jacobian, offset, self.outputs, self.rows * flip[:, None], self.biases * flip)

    @property
    def _elsewhere(self) -> Array:
        """K×k: the combinations of outputs whose linear term is more than rows of units explain; none if all are."""
        basis = np.linalg.svd(self.rows.T, full_matrices=False)[0]
        outputs, sizes, _ = np.linalg.svd(self.jacobian - self.jacobian @ basis @ basis.T, full_matrices=False)
        outside = outputs[:, sizes > _OUTSIDE * np.linalg.norm(self.jacobian)]
        return outside if outside.shape[1] < len(self.offset) else outside[:, :0]

    def plain(self, tolerance: float) -> "Shallow | None":
        """The same function without a linear term, if it has such a form; opposite units, for one, need the term."""
        turned = self.turned()
        size = max(float(np.linalg.norm(self.jacobian)), 1e-300)
        if not 0 < self.units <= self.jacobian.size or np.linalg.norm(turned.jacobian) > tolerance * size:
            return None
        return Shallow(np.zeros_like(turned.jacobian), turned.offset, turned.outputs, turned.rows, turned.biases)

    def network(self, offer: Offer, tolerance: float) -> Network:
        """The clone: a plain network where one exists, else one with a linear skip connection."""
        inputs, values = offer.inputs, offer.values
        if not self.units:
            return Network((self.jacobian,), (self.offset,), inputs, values=values)
        plain = self.plain(tolerance)
        shown = plain or self.turned()
        return Network(
            (shown.rows, shown.outputs.T.copy()),
            (shown.biases, shown.offset),
            inputs,
            skip=None if plain else shown.jacobian,
            values=values,
        )


def shallow_from_network(network: Network) -> Shallow:
    """A network with one hidden layer, or none, in this form, every row of length one."""
    if not network.hidden:
        (jacobian,), (offset,) = network.weights, network.biases
        return Shallow(jacobian, offset, np.empty((0, len(offset))), np.empty((0, jacobian.shape[1])), np.empty(0))
    (rows, outputs), (biases, offset) = network.weights, network.biases
    lengths = np.linalg.norm(rows, axis=1)
    lengths = np.where(lengths > 0, lengths, 1.0)
    jacobian = np.zeros((len(offset), rows.shape[1])) if network.skip is None else network.skip
    return Shallow(jacobian, offset, outputs.T * lengths[:, None], rows / lengths[:, None], biases / lengths)


def shallow_from_pieces(
    jacobians: list[Array], offsets: list[Array], kinks: list[float], start: Array, direction: Array
) -> Shallow:
    """The function whose pieces along start + t·direction are these, one more than there are kinks.

    Units are off in the piece at t = 0, and their boundaries pass through the line at the kinks.
    """
    reference = int(np.searchsorted(kinks, 0.0))
    outputs, rows, biases = [], [], []
    for i, t in enumerate(kinks):
        output, row = rank_one(jacobians[i + 1] - jacobians[i])
        size = float(np.linalg.norm(row)) * np.copysign(1.0, row @ direction) or 1.0
        row, away = row / size, np.copysign(1.0, t)
        outputs.append(output * size)
        rows.append(away * row)
        biases.append(-away * float(row @ (start + t * direction)))
    K, d = jacobians[0].shape
    return Shallow(
        jacobians[reference],
        offsets[reference],
        np.array(outputs).reshape(-1, K),
        np.array(rows).reshape(-1, d),
        np.array(biases).reshape(-1),
    )


def rank_one(jump: Array, along: Array | None = None) -> tuple[Array, Array]:
    """The best output ⊗ row, or close to it: one step from the largest row, exact if the rank is one.

    along: the jump in some direction, if that is known: it tells which row is the largest
    """
    sizes = np.einsum("kd,kd->k", jump, jump) if along is None else np.abs(along)
    largest = jump[int(np.argmax(sizes))]
    size = float(largest @ largest)
    if size == 0:
        return np.zeros(len(jump)), largest
    output = jump @ largest
    output /= size
    row: Array = output @ jump
    row /= float(output @ output)
    return output, row
