"""One hidden layer from values with few digits: float32, or rounded to a few decimals.

A line shows where the kinks are (line.py), long steps beside it the units' directions to a few per cent
(slopes.py). From there all parameters are fitted, to fresh values first and then to every value paid for
(fit.py): that is as exact as the noise allows, and says how exact that is.
"""

from dataclasses import dataclass

import numpy as np

from relumine.oracle.base import Array
from relumine.oracle.metering.metered import Metered
from relumine.reconstruct.lines.search import Line
from relumine.reconstruct.lines.shallow import Shallow
from relumine.reconstruct.network import Network
from relumine.reconstruct.noise import Noise
from relumine.reconstruct.result import Evidence, Outcome, Stop
from relumine.reconstruct.values.asker import ValueAsker
from relumine.reconstruct.values.fit import LARGEST, KnownUnits, ValuesFit, answered
from relumine.reconstruct.values.growth import grown, undetermined, without_idle
from relumine.reconstruct.values.line import NoisyLine, Shown
from relumine.reconstruct.values.pool import CandidatePool
from relumine.reconstruct.values.slopes import assembled, slopes
from relumine.reconstruct.verification.comparison import Comparison
from relumine.reconstruct.verification.domain import Domain

# Attempts to build and fit a network; in each, of up to _LINES lines the one that shows most breakpoints, farthest
# apart, is taken. At least two lines, since one may hide a breakpoint. On short lines, of 25 networks 6-8-1 in a box 21
# were recovered in 8 attempts, 24 in 16.
_ATTEMPTS, _ATTEMPTS_ON_SHORT_LINES = 3, 16
_LINES, _LEAST_LINES = 8, 2
# The gradient of the narrowest region is good enough if it errs by less than this part.
_GOOD = 0.03
# Fresh values for the fit, per parameter, and how far out they are, in units of fresh points.
_PER_PARAMETER = 3
_SPREAD = 1.5
# Values further out than this, in units of the fresh points for the fit, are left out of it.
_FAR = 5.0
# A linear term that is this small, relative to the units, after they were turned around is none.
_NO_TERM = 0.3
# Fits are right if values are off by no more than this, in expected errors.
_MISFIT, _MISFIT_SINGLE = 1.15, 3.0
# Units added at most that no line showed; each must lower the misfit to less than this part of it.
_GROWTH, _HELPS = 4, 0.8
# Fitted networks are compared at this many times as many points: units that are rarely on may have been overlooked.
_THOROUGH = 10
# Points at which the effect of noise is simulated; nothing is asked there.
_SIMULATED = 2000
# How often a network that fresh values contradict is fitted to these too.
_ROUNDS = 3
# This many times as many values are asked where that may make a clone exact enough.
_MORE = 4
# Whatever the noise, a network further off than this, relative to the largest answer, is not called recovered.
_WORST = 1e-3
_TOO_FEW = f"so few digits allow no clone that is surely closer than {_WORST:g} of the largest answer"


class Answering(Shallow):
    """A function behind a softmax, or a sigmoid."""

    def values(self, inputs: Array) -> Array:
        """n×K: probabilities."""
        return answered(super().values(inputs), probabilities=True)


@dataclass(frozen=True, eq=False)
class _Candidate:
    line: Line
    shown: Shown

    @property
    def score(self) -> tuple[int, float]:
        return len(self.shown.kinks), self.shown.room


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
        self.fresh = np.empty((0, self.offer.dimension)), np.empty((0, self.offer.outputs))
        self.on_lines: list[tuple[Array, Array]] = []
        # Lines end where a box does, or where the softmax saturates: one does not meet all units.
        self.short = meter.offer.box is not None or self.ask.probabilities
        self.comparison = Comparison(meter, rng, domain)
        self.pool = CandidatePool(float(np.sqrt(self.offer.dimension)))
        self.averaged = False
        self.model: Shallow | None = None
        self.spacing: float | None = None
        self.uncertainty: float | None = None

    def reconstruct(self) -> None:
        """Build and fit a network until one agrees with the target."""
        for _ in range(_ATTEMPTS_ON_SHORT_LINES if self.short else _ATTEMPTS):
            with self.meter.phase("search"):
                best = self._best_line()
            with self.meter.phase("gradients"):
                start, errors = self._start(best)
            self.pool.add(start, errors)
            with self.meter.phase("polish"):
                fit = self._fitted(start)
            if self._settled(fit):
                return
            if self.ask.noise.absolute > _WORST * self.comparison.size:
                raise Stop(Outcome.NOT_VERIFIED, _TOO_FEW)  # whatever the fit
        if self.uncertainty is None:
            raise Stop(Outcome.NOT_VERIFIED, "values with so few digits do not show the units; ask for gradients")
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
            self.ask.paid.append((self.comparison.points, self.comparison.answers))
            fit = self._fitted_to_all(fit)
        return False

    # -- lines

    def _best_line(self) -> _Candidate:
        candidates: list[_Candidate] = []
        for _ in range(_LINES):
            candidate = self._shown(self._line())
            if candidate is None:
                self.comparison.scale /= 2
                continue
            candidates.append(candidate)
            best = max(candidates, key=lambda candidate: candidate.score)
            if len(candidates) >= _LEAST_LINES and self._good(best.shown):
                break
        if not candidates:
            raise Stop(Outcome.SATURATED)
        best = max(candidates, key=lambda candidate: candidate.score)
        kinks = best.shown.kinks
        self.spacing = float(np.diff(kinks).min()) if len(kinks) > 1 else None
        self.meter.found(len(kinks))
        return best

    def _line(self) -> Line:
        """A random line; in a box one between two points near its corners, since others leave it soon."""
        box = self.offer.box
        if box is None:
            return self.comparison.line()
        one, other = box[0] + (box[1] - box[0]) * self.rng.beta(0.2, 0.2, (2, self.offer.dimension))
        return Line((one + other) / 2, other - one)

    def _shown(self, line: Line) -> _Candidate | None:
        """What this line shows; None if there are no answers with any digits on it."""

        def values(t: list[float]) -> Array:
            logits = self.ask.logits(line.points(t))
            self.on_lines.append(self.ask.paid[-1])
            return logits

        def bounds(t: Array, logits: Array) -> Array:
            if len(t) > 1:
                steepest = float(np.abs(np.diff(logits, axis=0) / np.diff(t)[:, None]).max())
                self.ask.steep = max(self.ask.steep, steepest / float(np.linalg.norm(line.direction)))
            return self.ask.logit_bounds(line.points(t), logits)

        low, high = line.within(self.offer.box)
        most = max(LARGEST // (self.offer.dimension + 1 + self.offer.outputs), 1)
        shown = NoisyLine(values, bounds, (0.97 * low, 0.97 * high), most).shown()
        if len(shown.pieces) > most + 1:
            raise Stop(Outcome.NOT_VERIFIED, "values with so few digits show more units than can be fitted")
        return _Candidate(line, shown) if shown.pieces else None

    def _good(self, shown: Shown) -> bool:
        """Whether steps in the narrowest region are long enough for a good gradient."""
        if not shown.kinks:
            return True
        bound = max(float(piece.error.min()) for piece in shown.pieces)
        jump = float(np.median(np.abs(shown.jumps).max(axis=1)))
        return 10 * bound < _GOOD * shown.room * jump

    def _start(self, best: _Candidate) -> tuple[Shallow, Array]:
        def ask(points: Array) -> tuple[Array, Array]:
            logits = self.ask.logits(points)
            return logits, self.ask.logit_bounds(points, logits)

        ends = (best.shown.pieces[0].low, best.shown.pieces[-1].high)
        found = slopes(best.line, best.shown, ask, ends, self.offer.box)
        return assembled(best.line, best.shown, found)

    # -- fitting

    def _fitted(self, start: Shallow) -> ValuesFit:
        """Fit to fresh values what the last line showed, or what all lines did if that is more; then to all values."""
        known = self._fresh_for(start, units=max(start.units, len(self.pool)))
        pooled = self._pooled(known) if len(self.pool) > start.units else None
        fit = self._fitted_to(known, pooled or start)
        fit = self._grown(fit)
        if not self._explained(fit):
            return fit
        return self._fitted_to_all(self._turned(fit))

    def _fitted_to_all(self, fit: ValuesFit) -> ValuesFit:
        everything = self.ask.everything(_FAR * float(np.linalg.norm(self.fresh[0], axis=1).max()))
        return ValuesFit(fit.shallow, everything, fit.plain).improved()

    def _pooled(self, known: KnownUnits) -> Shallow | None:
        """The function of all units that any line showed, if there are enough values to tell."""
        logits = self.ask.as_logits(known.points, known.values)
        shown = np.isfinite(logits).all(axis=1)
        points, logits = known.points[shown], logits[shown]
        return self.pool.model(points, logits, self.ask.logit_bounds(points, logits))

    def _fitted_to(self, known: KnownUnits, start: Shallow) -> ValuesFit:
        plain = _plain(start)
        return ValuesFit(plain or start, known, plain is not None).improved()

    def _turned(self, fit: ValuesFit) -> ValuesFit:
        """The fit without a linear term, if that explains the values too."""
        plain = None if fit.plain else _plain(fit.shallow)
        if plain is None:
            return fit
        turned = ValuesFit(plain, fit.known, True).improved()
        return turned if self._explained(turned) else fit

    def _grown(self, fit: ValuesFit) -> ValuesFit:
        """Add units as long as that explains much of what is left; then leave out those that do not matter."""
        if self._explained(fit):
            return fit
        for _ in range(_GROWTH):
            more = grown(fit)
            if more.misfit > _HELPS * fit.misfit and not self._explained(more):
                break
            fit = more
            if self._explained(fit):
                return without_idle(fit, self._most_misfit)
        return fit

    def _explained(self, fit: ValuesFit) -> bool:
        """Whether noise explains by how much the values are off."""
        return fit.misfit <= self._most_misfit

    @property
    def _most_misfit(self) -> float:
        return _MISFIT if self.ask.noise.absolute > 0 else _MISFIT_SINGLE

    def _fresh_for(self, start: Shallow, units: int) -> KnownUnits:
        """Enough fresh values to fit a network with this number of units."""
        d, outputs = self.offer.dimension, self.offer.outputs
        count = units * (d + 1 + outputs) + outputs * (1 if _plain(start) else 1 + d)
        return self._fresh(-(-_PER_PARAMETER * count // outputs) + self.points)

    def _fresh(self, count: int) -> KnownUnits:
        """At least ``count`` fresh values; those that were asked for an earlier fit are as good."""
        spread = _SPREAD if self.offer.box is None and not self.ask.probabilities else 1.0
        missing = max(count - len(self.fresh[0]), 0)
        points = self.comparison.representable(spread * self.comparison.fresh(missing))
        values = self.ask(points) if missing else np.empty((0, self.offer.outputs))
        self.fresh = np.concatenate([self.fresh[0], points]), np.concatenate([self.fresh[1], values])
        if self.offer.box is None:
            return self.ask.known(*self.fresh)
        # In a box units may be on in one corner only: they are seen where a line met them, if anywhere.
        lines = [self.fresh, *self.on_lines]
        points, values = (np.concatenate(parts) for parts in zip(*lines, strict=True))
        near = np.linalg.norm(points, axis=1) <= float(np.linalg.norm(self.fresh[0], axis=1).max())
        return self.ask.known(points[near], values[near])

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
        return Evidence(self.ask.noise.floor, self.spacing, gap, len(self.comparison.points), remark, accuracy)

    def _shown_by(self, model: Shallow) -> Shallow:
        """The model, answering what the target does."""
        kind = Answering if self.ask.probabilities else Shallow
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
            if self._averaged():
                return False
            raise Stop(Outcome.NOT_VERIFIED, _TOO_FEW)
        self.comparison.ask(self.comparison.fresh((_THOROUGH - 1) * self.points))
        if len(self.comparison.wrong(shown, self._allowed)):
            return False
        self.comparison.challenge(_with_unit_rows(shown))
        return not len(self.comparison.wrong(shown, self._allowed))

    def _averaged(self) -> bool:
        """Ask several times as many values, once, if that may bring a clone close enough: errors average out."""
        done, self.averaged = self.averaged, True
        if done or float(self.ask.bounds(self.comparison.points, self.comparison.answers).max()) > (
            0.5 * _WORST * self.comparison.size
        ):
            return False
        self._fresh(_MORE * len(self.fresh[0]))
        return True

    @property
    def _allowed(self) -> float:
        """By how much fresh answers may differ, relative to the largest: by twice what noise does, and their own."""
        bound = float(self.ask.bounds(self.comparison.points, self.comparison.answers).max(initial=0))
        return (2 * (self.uncertainty or 0.0) + bound) / self.comparison.size


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
