"""Agreement: a reconstruction held against fresh values, mended, and polished, until nothing contradicts it."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from relumine.oracle.base import Answer, Offer
from relumine.oracle.logits import in_logits
from relumine.oracle.metering.metered import Metered
from relumine.reconstruct.lines.shallow import Shallow, shallow_from_network
from relumine.reconstruct.network import Network
from relumine.reconstruct.noise import Noise
from relumine.reconstruct.piecewise import named
from relumine.reconstruct.polish.answers import Answers
from relumine.reconstruct.polish.method import Polished, polished
from relumine.reconstruct.result import Evidence, Outcome, Stop
from relumine.reconstruct.two_layer.asker import Asker
from relumine.reconstruct.verification import TOLERANCE, Met, fresh_points, met, tolerated

# Below this noise floor biases are exact as they are found; above it they are fitted to all values.
EXACT = 1e-12
# Before that, offsets of kinks far out are off by more than noise; a kink that is wrong is mostly off by far more.
_SLACK = 20
# Afterwards noise is far smaller than its bound, and what stands out is a unit overlooked.
_SHARP = 0.2
# A clone that is further off than this is never called recovered, whatever the noise.
_COARSEST = 1e-3
# One that is no further off than this lacks a unit or two, and another line may show them apart.
_NEARLY = 5e-2
# Where a box limits the search, this many times as many points are compared.
_IN_A_BOX = 25
# Answers are explained when they are off by no more than this, in units of their expected error.
_FITS = 1.2
# At so many points it is simulated what noise does; nothing is asked there.
_SIMULATED = 500
_ROUNDS = 3
# Values up to so many times the usual size tell biases. More numbers than this (compared values of all units and
# outputs) are not fitted: least squares would take longer than the search.
_REACH, _LARGE = 1e8, 2e6


class Settings(Protocol):
    """What a run is told: the most gradient queries, and how many fresh points to compare."""

    @property
    def most(self) -> int: ...

    @property
    def points(self) -> int: ...


@dataclass(frozen=True, eq=False)
class _Polish:
    """What was polished, with which answers, what came of it, and by how much noise may move its values."""

    state: object
    answers: Answers
    fit: Polished
    model: Shallow
    uncertainty: float | None


class TwoLayerRun(ABC):
    """The state of one reconstruction."""

    def __init__(
        self, settings: Settings, meter: Metered, rng: np.random.Generator, asker: Asker | None = None
    ) -> None:
        self.settings = settings
        self.meter = meter
        self.rng = rng
        self.asker = asker or Asker(meter, rng, settings.most)
        self.comparison = self.asker.comparison
        self.domain = self.comparison.domain  # where a clone must be right
        self.polish: _Polish | None = None
        self.met: Met | None = None

    @abstractmethod
    def _find(self) -> None:
        """Search, from the beginning."""

    @abstractmethod
    def _mend(self) -> None:
        """Explain the compared points that contradict the model, as far as queries can."""

    @property
    @abstractmethod
    def _state(self) -> object:
        """Changes whenever what was found does; None if nothing was."""

    @property
    @abstractmethod
    def _units(self) -> int:
        """How many units were found."""

    @abstractmethod
    def _raw(self) -> Shallow:
        """What was found, as it was found."""

    def smooth(self, outcome: Outcome) -> bool:
        """Whether units may be smooth; sigmoids that are saturated around the origin show no gradient and no kink."""
        clone = self.clone()
        flat = outcome is Outcome.NOT_THIS_CLASS and clone is not None and not clone.hidden and not self.asker.blurred
        return outcome is Outcome.NOT_PIECEWISE_LINEAR or flat

    @property
    def offer(self) -> Offer:
        return self.meter.offer

    @property
    def noise(self) -> Noise:
        return self.asker.noise

    def reconstruct(self) -> None:
        """Search, compare, mend, until every comparison agrees; where digits are few once more, from another start."""
        try:
            self._attempt()
        except Stop as stop:
            doubted = stop.outcome in (Outcome.NOT_VERIFIED, Outcome.NOT_THIS_CLASS) and self._state is not None
            in_vain = stop.outcome is Outcome.NOT_VERIFIED and self.asker.blurred  # blurred values never agree
            if not doubted or not self._nearly or self.asker.exhausted or in_vain:
                raise
            self.polish = None
            self.comparison.clear()
            self._attempt()

    @property
    def _nearly(self) -> bool:
        """Whether noise hides the rest, as far as can be told: behind rounding it may hide anything."""
        if self.noise.absolute > 0:
            return True
        gap = self.comparison.gap(self._model())
        return self.noise.floor > EXACT and gap is not None and gap <= _NEARLY

    def _attempt(self) -> None:
        self._find()
        self._compare()
        self._agree()
        self._compare_saturated()
        self._meet()

    def _meet(self) -> None:
        """Compare at all places of the domain, such as far out, where every unit shows; mend what contradicts there.

        Units found far out have few digits near the origin, until all answers are fitted together.
        """
        self.met = None
        allowed = tolerated(self.offer, self.evidence(""))
        left = 1 if self.asker.blurred else _ROUNDS
        while left:
            clone, known = self.clone(), self._units
            assert clone is not None
            # A hard tanh adds no two large numbers that cancel, as the two ReLUs do that it was found as.
            clone = named(clone, self.noise.floor)
            with self.meter.phase("verify"):
                self.met = met(clone, self.meter, self.domain, self.rng, allowed, self.noise.floor)
            if not len(wrong := self.met.wrong):
                return
            answer = Answer(self.met.values[wrong])
            answer = answer if self.asker.link is None else in_logits(self.offer, answer)
            self.comparison.add(self.met.points[wrong], answer.values, elsewhere=True)
            self._agree()
            self._polish()
            left -= self.asker.blurred or self._units <= known  # each unit that is found lets others show
        raise Stop(Outcome.NOT_VERIFIED, "the clone differs elsewhere than at N(0, I)")

    def _compare_saturated(self) -> None:
        """Where logits cannot be known, probabilities can be compared all the same."""
        if self.asker.link is None or not (self.comparison.lost or self.comparison.scale < 1):
            return
        points = fresh_points(self.offer, self.settings.points, self.rng)
        with self.meter.phase("verify"):
            values = self.meter(points, gradients=False).values
        clone = self.clone()
        if clone is None or np.abs(clone.predict(points) - values).max() > max(1e-6, 500 * self.noise.relative):
            raise Stop(Outcome.NOT_VERIFIED, "the clone differs where the probabilities are saturated")

    def _agree(self) -> None:
        """Mend until no comparison contradicts, or say that noise does."""
        if self.noise.floor <= EXACT:
            self._mend()
            self._challenge()
            while len(self._wrong()):  # what mending changes is challenged in its turn
                self._mend()
                self._challenge()
            return
        for _ in range(1 if self.asker.blurred else _ROUNDS):
            self._mend()
            self._polish()
            self._challenge()
            if not len(self._wrong()) and self._explained:
                return
        gap = self.comparison.gap(self._model()) or 0.0
        if self.noise.absolute > 0 and gap <= self._noise_explains and not self._explained:
            raise Stop(Outcome.NOT_VERIFIED, "the answers differ from the clone by more than rounding explains")
        if gap > self._noise_explains:
            far_off = gap > _SLACK * self._noise_explains
            outcome = Outcome.NOT_THIS_CLASS if far_off else Outcome.NOT_VERIFIED
            raise Stop(outcome, "values differ by more than noise explains")

    def _compare(self) -> None:
        """Ask the values at fresh points; they are compared with every later model."""
        with self.meter.phase("verify"):
            # A line inside a box does not meet every unit; one that is on in a corner shows at few points.
            count = self._fresh_points if self.offer.box is None else _IN_A_BOX * self.settings.points
            self.comparison.ask(self.comparison.fresh(count))

    @property
    def _fresh_points(self) -> int:
        """How many fresh points are compared; half of them where other scales show what these do not."""
        return self.settings.points if self.noise.floor > EXACT else -(-self.settings.points // 2)

    def _challenge(self) -> None:
        """Ask values close to the recovered boundaries."""
        with self.meter.phase("verify"):
            self.comparison.challenge(self._model())

    # -- comparing

    def _wrong(self) -> NDArray[np.intp]:
        """Which compared points contradict what is known so far."""
        return self.comparison.wrong(self._model(), self._tolerance)

    @property
    def _noise_explains(self) -> float:
        """How much of the largest answer noise can explain."""
        return float(min(max(TOLERANCE["float64"], 500 * self.noise.relative + self._rounding), _COARSEST))

    @property
    def _rounding(self) -> float:
        """How much of that is due to rounded answers: bounded roughly at first, simulated once all were fitted."""
        if self._uncertainty is not None:
            return (self.noise.absolute + 2 * self._uncertainty) / self.comparison.size
        units = self._units
        return float(16 * self.noise.absolute * np.sqrt(self.offer.dimension * (units + 1)) / self.comparison.size)

    @property
    def _explained(self) -> bool:
        """Whether rounding explains by how much the answers so far differ from the clone."""
        if self.noise.absolute == 0 or self.polish is None or self._uncertainty is None:
            return True
        return self.polish.fit.misfit <= _FITS

    @property
    def _tolerance(self) -> float:
        """What a point may miss before a unit is suspected: little once all is fitted, more before."""
        if self.noise.floor <= EXACT:
            return self._noise_explains
        if self.polish is None:
            return _SLACK * self._noise_explains
        if not self._explained:
            return self.noise.absolute / self.comparison.size
        return min(_SHARP * 500 * self.noise.relative + self._rounding, _COARSEST)

    # -- polishing

    def _polish(self) -> None:
        """Fit all parameters to every answer so far; fresh points then take the place of those that were used."""
        answers, model = self.asker.oracle.answers(), self._model()
        fit = polished(model.network(self.offer, _SLACK * self._noise_explains), answers, self.noise)
        if fit.whole and fit.misfit > _FITS:  # it may need the linear term that was left out
            other = polished(model.network(self.offer, 0.0), answers, self.noise)
            fit = other if other.misfit <= max(_FITS, fit.misfit / 2) else fit  # rounding is fitted by it a little
        simulated = fit.uncertainty(self.comparison.fresh(_SIMULATED), self.rng) if fit.whole else None
        uncertainty = None if simulated is None else max(1.0, fit.misfit) * float(simulated.max(initial=0))
        self.polish = _Polish(self._state, answers, fit, shallow_from_network(fit.network), uncertainty)
        self.comparison.clear()
        self._compare()

    def _model(self) -> Shallow:
        """What is known so far; units found since the last polishing are polished roughly, for the time being."""
        model = self._raw()
        if self.polish is None:
            return model
        if self._is_current:
            return self.polish.model
        answers = self.polish.answers
        return model.fitted(answers.points, answers.values, answers.distrust(self.noise))

    @property
    def _is_current(self) -> bool:
        return self.polish is not None and self.polish.state == self._state

    @property
    def _uncertainty(self) -> float | None:
        return self.polish.uncertainty if self.polish is not None and self._is_current else None

    # -- results

    def clone(self) -> Network | None:
        if self._state is None:
            return None
        if self.polish is not None and self._is_current:
            return self.polish.fit.network
        return self._sharpened().network(self.offer, self._noise_explains)

    def _sharpened(self) -> Shallow:
        """The model with biases that meet the compared values best: where kinks lie far out they have fewer digits."""
        model, compared = self._model(), self.comparison
        sizes = np.abs(compared.answers).max(axis=1, initial=0)
        usual = float(np.median(sizes[sizes > 0])) if sizes.any() else 1.0
        near = sizes <= _REACH * usual
        if self.noise.floor > EXACT or not near.any() or near.sum() * model.outputs.size > _LARGE:
            return model
        points, values = compared.points[near], compared.answers[near]
        errors = np.maximum(sizes[near], usual)
        models = model, model.fitted(points, values, errors)
        left = [np.abs(one.values(points) - values).max(axis=1) / errors for one in models]
        return models[int(left[1].max() < left[0].max())]

    def evidence(self, remark: str) -> Evidence:
        if self._state is None:
            return Evidence(self.noise.floor, remark=remark)
        gap = self.comparison.gap(self._model())
        accuracy = None if self._uncertainty is None else self._uncertainty / self.comparison.size
        evidence = Evidence(self.noise.floor, None, gap, len(self.comparison.points), remark, accuracy)
        return evidence if self.met is None else evidence.and_met(self.met.gap, len(self.met.points), self.met.where)
