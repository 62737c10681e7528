"""Mending: what a line search took for one unit and was two, or never met, shows at points off the line.

At such a point (a witness) answer and prediction differ by an affine function. If one unit is at fault, that function
*is* a unit of the target, and so is the difference of two witnesses that only one unit tells apart. Where it vanishes
on the line, inside a gap that was taken for a single kink, the unit was overlooked; what remains of the gap's jump is
its partner. So a witness names the place on the line to ask, and one answer there mends two units.
"""

from dataclasses import dataclass

import numpy as np

from relumine.oracle.base import Array
from relumine.reconstruct.line import Gap, Kink, LineSearch, Sight, rank_one
from relumine.reconstruct.shallow import Shallow


@dataclass(frozen=True, eq=False)
class Witness:
    """An answered point off the line."""

    point: Array
    value: Array
    jacobian: Array


@dataclass(frozen=True, eq=False)
class _Differences:
    """Answer minus model at n witnesses: Jacobians n×K×d, values n×K, and the same restricted to the line."""

    jacobians: Array
    values: Array
    slopes: Array
    intercepts: Array


class Findings:
    """All that is known: the line's kinks, and units that the searched part of the line does not meet."""

    def __init__(self, search: LineSearch, reference: Sight) -> None:
        self.search = search
        self.reference = reference
        self.witnesses: list[Witness] = []
        self._beyond: list[Kink] = []

    def kinks(self) -> list[Kink]:
        """All kinks, those beyond the searched part last."""
        return [*self.search.kinks(), *self._beyond]

    def model(self) -> Shallow:
        """The function that these kinks make, every unit off at the line's start."""
        return self._model(self.kinks())

    def _model(self, kinks: list[Kink]) -> Shallow:
        line, reference = self.search.line, self.reference
        jacobian = reference.jacobian
        away = np.array([np.copysign(1.0, kink.t) for kink in kinks])
        return Shallow(
            jacobian,
            reference.intercept - jacobian @ line.start,
            np.array([kink.output for kink in kinks]).reshape(-1, len(jacobian)),
            np.array([kink.row for kink in kinks]).reshape(-1, jacobian.shape[1]) * away[:, None],
            np.array([kink.bias for kink in kinks]).reshape(-1) * away,
        )

    def disagreeing(self, model: Shallow) -> Array:
        """Which witnesses contradict the model."""
        return self._contradict(self._differences(model))

    def _contradict(self, differences: _Differences) -> Array:
        sizes = np.linalg.norm(differences.jacobians, axis=(1, 2))
        result: Array = sizes > 4 * self.search.tolerance
        return result

    def _differences(self, model: Shallow) -> _Differences:
        line = self.search.line
        points = np.array([witness.point for witness in self.witnesses])
        jacobians = np.array([witness.jacobian for witness in self.witnesses]) - model.jacobians(points)
        values = np.array([witness.value for witness in self.witnesses]) - model.values(points)
        intercepts = values + np.einsum("nkd,nd->nk", jacobians, line.start - points)
        return _Differences(jacobians, values, jacobians @ line.direction, intercepts)

    def proposals(self) -> list[float]:
        """Places on the line where the witnesses say a kink was overlooked, one per gap."""
        differences = self._differences(self.model())
        wrong = self._contradict(differences)
        # A witness that agrees stands for all that do: only one of them is compared with the others.
        slopes = np.concatenate([differences.slopes[wrong], np.zeros((1, differences.slopes.shape[1]))])
        intercepts = np.concatenate([differences.intercepts[wrong], np.zeros((1, slopes.shape[1]))])
        first, second = np.triu_indices(len(slopes), 1)
        alone = second == len(slopes) - 1
        slopes, intercepts = slopes[first] - slopes[second], intercepts[first] - intercepts[second]
        return _Votes(self.search, slopes, intercepts, alone).places()

    def beyond(self) -> bool:
        """Explain a witness by a unit that the searched part of the line does not meet; False if none can be."""
        kinks = self.kinks()
        differences = self._differences(self._model(kinks))
        wrong = self._contradict(differences)
        for i in np.flatnonzero(wrong):
            kink = self._unmet(differences.jacobians[i], differences.values[i], self.witnesses[i].point)
            if kink is None:
                continue
            after = self.disagreeing(self._model([*kinks, kink]))
            if not after[i] and not np.any(after & ~wrong):
                self._beyond.append(kink)
                return True
        return False

    def _unmet(self, jacobian: Array, value: Array, point: Array) -> Kink | None:
        output, row = rank_one(jacobian)
        line = self.search.line
        along = float(row @ line.direction)
        if along == 0 or float(np.linalg.norm(jacobian - np.outer(output, row))) > 4 * self.search.tolerance:
            return None
        size = float(np.linalg.norm(row)) * np.copysign(1.0, along)
        output, row = output * size, row / size
        bias = float(output @ value / (output @ output)) - float(row @ point)
        t = -(float(row @ line.start) + bias) / float(row @ line.direction)
        low, high = self.search.ends
        if low < t < high:
            return None
        # Off at the line's start and on at the witness, it adds its jump on the way from one to the other.
        return Kink(t, output * np.copysign(1.0, t), row, bias)


class _Votes:
    """Each pair of witnesses, if one unit tells them apart, names the place on the line where that unit's kink is."""

    def __init__(self, search: LineSearch, slopes: Array, intercepts: Array, alone: Array) -> None:
        self.search = search
        steep = np.einsum("nk,nk->n", slopes, slopes)
        usable = steep > 0
        self.slopes, self.intercepts, self.alone = slopes[usable], intercepts[usable], alone[usable]
        self.t = -np.einsum("nk,nk->n", self.slopes, self.intercepts) / steep[usable]

    def places(self) -> list[float]:
        """One place per gap that is named twice alike, or else by a witness on its own."""
        repeated = self._repeated()
        for chosen in (repeated, self.alone):
            places = self._places(chosen)
            if places:
                return places
        return []

    def _repeated(self) -> Array:
        """Whether another pair names the same place: by chance it never happens."""
        order = np.argsort(self.t)
        sorted_t = self.t[order]
        near = np.abs(np.diff(sorted_t)) <= 1e-7 * (1 + np.abs(sorted_t[1:]))
        repeated = np.zeros(len(order), dtype=bool)
        repeated[order[1:]] |= near
        repeated[order[:-1]] |= near
        return repeated

    def _places(self, chosen: Array) -> list[float]:
        places = []
        for gap in self.search.unproven():
            inside = chosen & (self.t > gap.left.t) & (self.t < gap.right.t)
            named = [self._between(i, gap) for i in np.flatnonzero(inside)]
            valid = [t for t in named if t is not None]
            if valid:
                places.append(float(np.median(valid)))
        return places

    def _between(self, pair: int, gap: Gap) -> float | None:
        """A point between the unit's kink and its partner's, if the partner lies in the gap too."""
        for sign in (1.0, -1.0):
            slope = gap.slope - sign * self.slopes[pair]
            intercept = gap.intercept - sign * self.intercepts[pair]
            steep = float(slope @ slope)
            if steep <= (1e-9 * float(np.linalg.norm(gap.slope))) ** 2:
                # The whole jump is missing: the gap is wrong, but this does not show how. Prove its kink.
                return self.search.proof(gap)
            partner = float(-(slope @ intercept) / steep)
            if gap.left.t < partner < gap.right.t and abs(partner - self.t[pair]) > gap.step:
                return (partner + float(self.t[pair])) / 2
        return None
