"""A one-hidden-layer network fitted to values by Levenberg–Marquardt, whatever the start.

polish.py takes it for known which units are on, and stays with a step that makes things worse. From values alone the
start is too rough for that: here the patterns are computed anew at each step, and steps are shortened until they help.
The normal equations are small enough to be written down, unit by unit.
"""

from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_factor, cho_solve
from scipy.special import log_softmax

from relumine.oracle.base import Array
from relumine.oracle.logits import probabilities_of
from relumine.reconstruct.lines.shallow import Shallow

# The normal equations of more parameters than this take too long.
LARGEST = 4000
# Steps at most; they end when one lowers the sum of squares by less than this part of it, or the first one as long as
# noise is no explanation yet: what creeps from there has no way out.
_STEPS = 40
_CREEPS, _GAIN = 0.02, 1e-3
_FAR = 3.0
# How much steps are shortened at first, by what that changes after each, and where it ends.
_DAMPING, _CHANGE, _LEAST, _MOST = 1e-3, 10.0, 1e-9, 1e6

# A probability shows its logarithm if it is larger than its error by this factor; others count as errors this large.
_SHOWS, _HIDDEN, _TINY = 8.0, 1e6, 1e-12

# Draws of noise by which a fit's uncertainty is simulated.
_DRAWS = 6


class Link(Enum):
    """What values are of the logits."""

    NONE = "themselves"
    SOFTMAX = "probabilities"
    LOG = "logarithms of probabilities; of a single probability its logit"


@dataclass(frozen=True, eq=False)
class KnownValues:
    """``values`` n×K at ``points`` n×d, and the expected ``errors`` n×K."""

    points: Array
    values: Array
    errors: Array
    link: Link

    @property
    def shown(self) -> NDArray[np.bool_]:
        """n×K: which numbers tell anything."""
        return self.errors < _HIDDEN

    def logged(self) -> "KnownValues":
        """Logarithms of probabilities, with the errors that rounding makes of them.

        A fit to probabilities has no way back from where it is sure of the wrong class; one to their logarithms has.
        """
        if self.link is not Link.SOFTMAX:
            return self
        p = np.clip(self.values, _TINY, 1 - (self.values.shape[1] == 1) * _TINY)
        room = p * (1 - p) if p.shape[1] == 1 else p
        errors = np.where(room > _SHOWS * self.errors, self.errors / room, _HIDDEN)
        return KnownValues(self.points, np.log(p) - (np.log1p(-p) if p.shape[1] == 1 else 0.0), errors, Link.LOG)


def answered(logits: Array, link: Link) -> Array:
    """What a target with these logits answers."""
    if link is Link.SOFTMAX:
        return probabilities_of(logits)
    return log_softmax(logits, axis=1) if link is Link.LOG and logits.shape[1] > 1 else logits


@dataclass(frozen=True, eq=False)
class ValuesFit:
    """A function beside the values that it was fitted to; its linear term is zero, and stays so, if ``plain``."""

    shallow: Shallow
    known: KnownValues
    plain: bool

    @property
    def parameters(self) -> int:
        """How many numbers are fitted."""
        model = self.shallow
        return model.rows.size + model.units + model.outputs.size + model.offset.size * (1 + self._linear)

    @property
    def _linear(self) -> int:
        return 0 if self.plain else self.known.points.shape[1]

    @property
    def misfit(self) -> float:
        """How far the values are off, in expected errors, per number that the parameters leave free.

        Every unit has a parameter too many: its row may be longer where its output is less.
        """
        free = max(int(self.known.shown.sum()) - self.parameters + self.shallow.units, 1)
        return float((self.squares / free) ** 0.5)

    @cached_property
    def squares(self) -> float:
        """The sum of the squared residuals."""
        return float(np.sum(self._residuals**2))

    @property
    def unexplained(self) -> Array:
        """n×K: by how much the values are missed, where they are known at all."""
        return np.where(self.known.shown, self.known.values - self._answers, 0.0)

    def uncertainty(self, points: Array, rng: np.random.Generator) -> Array:
        """n×K: by how much the answers at these points would change with other noise of the same size, at most.

        Some draws of such noise are fitted as the values were; nothing is asked.
        """
        shape, link = self.known.values.shape, self.known.link
        drawn = np.stack([self._gradient(rng.standard_normal(shape)) for _ in range(_DRAWS)], axis=1)
        before = answered(self.shallow.values(points), link)
        moved = [self._moved(step).shallow.values(points) for step in self._solved(drawn, _LEAST).T]
        result: Array = np.max([np.abs(answered(after, link) - before) for after in moved], axis=0)
        return result

    def improved(self) -> "ValuesFit":
        """The best fit that steps from here lead to."""
        fit, damping = self, _DAMPING
        for _ in range(_STEPS):
            better = fit._moved(fit._solved(fit._gradient(fit._residuals), damping))
            if better.squares < fit.squares:
                gain = 1 - better.squares / fit.squares
                fit, damping = better, max(damping / _CHANGE, _LEAST)
                if gain < (_CREEPS if fit.misfit > _FAR else _GAIN):
                    break
            elif damping < _MOST:
                damping *= _CHANGE
            else:
                break
        return fit

    # -- the answers and their derivatives

    @cached_property
    def _on(self) -> NDArray[np.bool_]:
        return self.shallow.active(self.known.points) > 0

    @cached_property
    def _answers(self) -> Array:
        return answered(self.shallow.values(self.known.points), self.known.link)

    @cached_property
    def _residuals(self) -> Array:
        result: Array = (self.known.values - self._answers) / self.known.errors
        return result

    @cached_property
    def _inputs(self) -> Array:
        """What each unit's row and bias are multiplied by."""
        return np.hstack([self.known.points, np.ones((len(self.known.points), 1))])

    @cached_property
    def _features(self) -> Array:
        """What each output's weights are multiplied by."""
        points = self.known.points
        hidden = np.maximum(self.shallow.active(points), 0)
        return np.hstack([hidden, np.ones((len(points), 1)), points[:, : self._linear]])

    def _pulled(self, answers: Array) -> Array:
        """The derivative of answers by logits, transposed, times these."""
        if self._linked is Link.NONE:
            return answers
        p = probabilities_of(self.shallow.values(self.known.points))
        if p.shape[1] == 1:
            return answers * p * (1 - p)
        if self._linked is Link.LOG:
            return np.asarray(answers - p * answers.sum(axis=1, keepdims=True))
        result: Array = p * (answers - (p * answers).sum(axis=1, keepdims=True))
        return result

    @property
    def _linked(self) -> Link:
        """How logits are mixed: not at all, if there is one and its logarithm is known."""
        single = self.known.link is Link.LOG and self.known.values.shape[1] == 1
        return Link.NONE if single else self.known.link

    @cached_property
    def _weights(self) -> Array:
        """n×K×K: what a change of two logits costs together."""
        inverse = 1 / self.known.errors**2
        unit = np.eye(inverse.shape[1])
        if self._linked is Link.NONE:
            return inverse[:, :, None] * unit
        columns = [self._pulled(np.broadcast_to(row, inverse.shape)) for row in unit]
        derivative = np.stack(columns, axis=2)  # of answer k by logit c, at [n, c, k]
        result: Array = np.einsum("nck,nk,nek->nce", derivative, inverse, derivative, optimize=True)
        return result

    def _gradient(self, residuals: Array) -> Array:
        back = self._pulled(residuals / self.known.errors)
        rows = (back @ self.shallow.outputs.T * self._on).T @ self._inputs
        return np.concatenate([rows.ravel(), (self._features.T @ back).T.ravel()])

    @cached_property
    def _normal(self) -> Array:
        """The normal matrix: unit after unit (row, bias), then output after output (features)."""
        inputs, features, weights, on = self._inputs, self._features, self._weights, self._on
        units, wide, many = self.shallow.units, inputs.shape[1], features.shape[1]
        normal = np.zeros((self.parameters, self.parameters))
        places = [slice(j * wide, (j + 1) * wide) for j in range(units)]
        ends = [slice(units * wide + k * many, units * wide + (k + 1) * many) for k in range(weights.shape[1])]
        for j in range(units):
            mine = np.flatnonzero(on[:, j])
            x = inputs[mine]
            costs = np.einsum("nke,k->ne", weights[mine], self.shallow.outputs[j])  # n×K
            pairs = costs @ self.shallow.outputs.T * on[mine]
            for i in range(j + 1):
                normal[places[j], places[i]] = (x * pairs[:, i, None]).T @ x
            for k, end in enumerate(ends):
                normal[end, places[j]] = features[mine].T @ (x * costs[:, k, None])
        for k, end in enumerate(ends):
            for e in range(k + 1):
                if self._linked is not Link.NONE or e == k:
                    normal[end, ends[e]] = (features * weights[:, k, e, None]).T @ features
        return normal  # the lower triangle, which is all that is needed

    def _solved(self, gradient: Array, damping: float) -> Array:
        normal = self._normal.copy()
        diagonal = np.diag(normal)
        normal[np.diag_indices(len(normal))] += damping * diagonal + 1e-12 * float(diagonal.max(initial=0)) + 1e-300
        try:
            solution: Array = cho_solve(cho_factor(normal, lower=True, overwrite_a=True), gradient)
        except LinAlgError:
            return np.zeros_like(gradient)
        return solution

    def _moved(self, step: Array) -> "ValuesFit":
        model, wide = self.shallow, self._inputs.shape[1]
        rows = step[: model.units * wide].reshape(-1, wide)
        ends = step[model.units * wide :].reshape(len(model.offset), -1)
        jacobian = model.jacobian if self.plain else model.jacobian + ends[:, model.units + 1 :]
        moved = Shallow(
            jacobian,
            model.offset + ends[:, model.units],
            model.outputs + ends[:, : model.units].T,
            model.rows + rows[:, :-1],
            model.biases + rows[:, -1],
        )
        return replace(self, shallow=moved)
