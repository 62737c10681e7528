"""One hidden layer from values with few digits: float32, or rounded to a few decimals.

Over short steps such values show their rounding and nothing else, so no breakpoint is looked for. A linear function is
fitted to values at fresh points, and units are added to it where the fit's residuals are most curved (growth.py); after
each all parameters are fitted (fit.py), until noise explains what is left. That says how exact the fit can be.
"""

from dataclasses import replace

import numpy as np

from relumine.oracle.base import Array
from relumine.oracle.metering.metered import Metered
from relumine.reconstruct.lines.shallow import Shallow
from relumine.reconstruct.network import Network
from relumine.reconstruct.noise import Noise
from relumine.reconstruct.result import Evidence, Outcome, Stop
from relumine.reconstruct.values.asker import ValueAsker
from relumine.reconstruct.values.fit import LARGEST, Link, ValuesFit, answered
from relumine.reconstruct.values.growth import grown, undetermined, without_idle
from relumine.reconstruct.verification.comparison import Comparison
from relumine.reconstruct.verification.domain import Domain

# Values for the fit, per parameter, in each attempt, and how far out they are, in units of fresh points.
_PER_PARAMETER = (3, 6, 12)
_SPREAD = 1.5
# Growth ends where this many units lower the misfit to no less than this part of it.
_IN_VAIN, _HELPS = 6, 0.9
# Values count alike while they are missed by this many times their errors; then as if they erred by this part of that.
_CLOSE, _ALIKE = 3.0, 0.1
# A linear term that is this small, relative to the units, after they were turned around is none.
_NO_TERM = 0.3
# Fits are right if values are off by no more than this, in expected errors.
_MISFIT, _MISFIT_SINGLE = 1.15, 3.0
# Fitted networks are compared at this many times as many points: units that are rarely on may have been overlooked.
_THOROUGH = 10
# Points at which the effect of noise is simulated; nothing is asked there.
_SIMULATED = 2000
# How often a network that fresh values contradict is fitted to these too.
_ROUNDS = 3
# Whatever the noise, a network further off than this, relative to the largest answer, is not called recovered.
_WORST = 1e-3
_TOO_FEW = f"so few digits allow no clone that is surely closer than {_WORST:g} of the largest answer"


class Answering(Shallow):
    """A function behind a softmax, or a sigmoid."""

    def values(self, inputs: Array) -> Array:
        """n×K: probabilities."""
        return answered(super().values(inputs), Link.SOFTMAX)


class FewDigits:
    """One reconstruction: ``model`` and ``uncertainty`` are the best that it has."""

    def __init__(
        self, meter: Metered, noise: Noise, points: int, limit: int, domain: Domain, rng: np.random.Generator
    ) -> None:
        self.meter = meter
        self.ask = ValueAsker(meter, noise, limit, domain)
        self.points = points
        self.rng = rng
        self.offer = meter.offer
        self.comparison = Comparison(meter, rng, domain)
        self.model: Shallow | None = None
        self.uncertainty: float | None = None

    def reconstruct(self) -> None:
        """Grow and fit a network until one agrees with the target, from more values each time."""
        for per_parameter in _PER_PARAMETER:
            fit = self._grown(per_parameter)
            if self._settled(fit):
                return
            if not self._more_may_help():
                raise Stop(Outcome.NOT_VERIFIED, _TOO_FEW)
        if self.uncertainty is None:
            raise Stop(Outcome.NOT_VERIFIED, "values with so few digits do not show the units; ask for gradients")
        if self._allowed > _WORST:
            raise Stop(Outcome.NOT_VERIFIED, _TOO_FEW)
        raise Stop(Outcome.NOT_VERIFIED, "a network explains the values that it was fitted to, but not all fresh ones")

    def _settled(self, fit: ValuesFit) -> bool:
        """Whether fresh values agree; what contradicts a fit that explains all else is fitted too, a few times."""
        for _ in range(_ROUNDS):
            self.model = fit.shallow
            self.comparison.clear()
            with self.meter.phase("verify"):
                if self._verified(fit):
                    return True
            if not self._explained(fit):
                return False
            self.ask.keep(self.comparison.points, self.comparison.answers)
            fit = replace(fit, known=self.ask.known()).improved()
        return False

    # -- fitting

    def _grown(self, per_parameter: int) -> ValuesFit:
        """A linear function with one unit after the other, until noise explains what is left or units do not help."""
        fit = ValuesFit(self._nothing(), self.ask.known().logged(), False)
        misfits: list[float] = []
        while True:
            if fit.parameters > LARGEST:
                raise Stop(Outcome.NOT_VERIFIED, "values with so few digits show more units than can be fitted")
            with self.meter.phase("search"):
                self._ask_for(per_parameter * fit.parameters)
            self.ask.learn(fit.shallow)
            self.meter.found(fit.shallow.units)
            fit = self._fitted(fit)
            misfits.append(fit.misfit)
            if self._explained(fit):
                known = replace(without_idle(fit, self._most_misfit), known=self.ask.known())
                return self._turned(known.improved())
            if len(misfits) > _IN_VAIN and min(misfits[-_IN_VAIN:]) > _HELPS * min(misfits[:-_IN_VAIN]):
                return fit
            fit = grown(fit)

    def _fitted(self, fit: ValuesFit) -> ValuesFit:
        """All parameters fitted to all values, which count alike until they are met about as well as noise allows.

        Before that a unit is missing, and shows in all of them; logarithms of large probabilities err least by far.
        """
        known, missed = self.ask.known().logged(), np.inf
        if not known.shown.any():
            raise Stop(Outcome.SATURATED)
        while True:
            fit = replace(fit, known=known)
            left = _rms(fit.unexplained[known.shown])
            if left <= _CLOSE * _rms(known.errors[known.shown]):
                return fit.improved()
            if left > missed / 2:
                return fit
            missed = left
            fit = replace(fit, known=replace(known, errors=np.hypot(known.errors, _ALIKE * left))).improved()

    def _nothing(self) -> Shallow:
        d, outputs = self.offer.dimension, self.offer.outputs
        rows, none = np.empty((0, d)), np.empty(0)
        return Shallow(np.zeros((outputs, d)), np.zeros(outputs), np.empty((0, outputs)), rows, none)

    def _turned(self, fit: ValuesFit) -> ValuesFit:
        """The fit without a linear term, if that explains the values too."""
        plain = _plain(fit.shallow)
        if plain is None:
            return fit
        turned = ValuesFit(plain, fit.known, True).improved()
        return turned if self._explained(turned) else fit

    def _explained(self, fit: ValuesFit) -> bool:
        """Whether noise explains by how much the values are off."""
        return fit.misfit <= self._most_misfit

    @property
    def _most_misfit(self) -> float:
        return _MISFIT if self.ask.noise.absolute > 0 else _MISFIT_SINGLE

    def _ask_for(self, numbers: int) -> None:
        """See that values at fresh points are known that show this many numbers."""
        known = self.ask.known().logged()
        share = int(known.shown.sum()) / max(len(known.points), 1) or float(self.offer.outputs)
        missing = int(np.ceil(numbers / share)) + self.points - self.ask.count
        if missing > 0:
            spread = _SPREAD if self.offer.box is None and self.ask.link is Link.NONE else 1.0
            self.ask(spread * self.comparison.fresh(missing))

    # -- results

    def clone(self) -> Network | None:
        """The network that was fitted last."""
        return None if self.model is None else _with_unit_rows(self.model).network(self.offer, 0.0)

    def evidence(self, remark: str) -> Evidence:
        """What was compared, and how exact the noise lets any clone be."""
        if self.model is None:
            return Evidence(self.ask.noise.floor, remark=remark)
        gap = self.comparison.gap(self._shown_by(self.model))
        accuracy = None if self.uncertainty is None else self.uncertainty / self.comparison.size
        return Evidence(self.ask.noise.floor, None, gap, len(self.comparison.points), remark, accuracy)

    def _shown_by(self, model: Shallow) -> Shallow:
        """The model, answering what the target does."""
        kind = Answering if self.ask.link is Link.SOFTMAX else Shallow
        return kind(model.jacobian, model.offset, model.outputs, model.rows, model.biases)

    def _verified(self, fit: ValuesFit) -> bool:
        """Whether all that was fitted is explained by noise, and fresh values are to within twice its effect."""
        shown = self._shown_by(fit.shallow)
        self.comparison.ask(self.comparison.fresh(self.points))
        self.uncertainty = None
        if not self._explained(fit) or undetermined(fit) is not None:
            return False
        simulated = fit.uncertainty(self.comparison.fresh(_SIMULATED), self.rng)
        self.uncertainty = max(1.0, fit.misfit) * float(simulated.max(initial=0))
        if self._allowed > _WORST:
            return False
        self.comparison.ask(self.comparison.fresh((_THOROUGH - 1) * self.points))
        if len(self.comparison.wrong(shown, self._allowed)):
            return False
        self.comparison.challenge(_with_unit_rows(shown))
        return not len(self.comparison.wrong(shown, self._allowed))

    def _more_may_help(self) -> bool:
        """Whether the answers' own rounding leaves room for a clone that is close enough: only errors average out."""
        return self._rounding <= 0.5 * _WORST * self.comparison.size

    @property
    def _rounding(self) -> float:
        return float(self.ask.bounds(self.comparison.points, self.comparison.answers).max(initial=0))

    @property
    def _allowed(self) -> float:
        """By how much fresh answers may differ, relative to the largest: by twice what noise does, and their own."""
        return (2 * (self.uncertainty or 0.0) + self._rounding) / self.comparison.size


def _plain(model: Shallow) -> Shallow | None:
    """The same function, or nearly, without a linear term, if units can be turned around so that little is left."""
    if model.units == 0 or model.units > model.jacobian.size:
        return None
    turned = model.turned()
    size = float(np.sqrt(np.sum(model.outputs**2 * np.sum(model.rows**2, axis=1)[:, None])))
    if float(np.linalg.norm(turned.jacobian)) > _NO_TERM * size:
        return None
    return Shallow(np.zeros_like(turned.jacobian), turned.offset, turned.outputs, turned.rows, turned.biases)


def _with_unit_rows(model: Shallow) -> Shallow:
    lengths = np.maximum(np.linalg.norm(model.rows, axis=1), 1e-300)[:, None]
    outputs, rows = model.outputs * lengths, model.rows / lengths
    return type(model)(model.jacobian, model.offset, outputs, rows, model.biases / lengths[:, 0])


def _rms(numbers: Array) -> float:
    return float(np.sqrt(np.mean(numbers**2))) if numbers.size else 0.0
