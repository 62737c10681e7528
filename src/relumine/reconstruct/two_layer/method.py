"""TwoLayer: any one-hidden-layer ReLU network from little more than one gradient query per hidden unit."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from relumine.errors import MisuseError
from relumine.oracle.base import Array, Offer, Oracle
from relumine.oracle.metering.metered import Metered, metered
from relumine.reconstruct.lines.search import Kink
from relumine.reconstruct.lines.shallow import Shallow, shallow_from_network
from relumine.reconstruct.network import Network
from relumine.reconstruct.noise import Noise
from relumine.reconstruct.polish.answers import Answers
from relumine.reconstruct.polish.method import Polished, polished
from relumine.reconstruct.result import Evidence, Outcome, Reconstruction, Stop, attempt
from relumine.reconstruct.tensor.smooth import SmoothRun
from relumine.reconstruct.top_class.method import TopRun
from relumine.reconstruct.two_layer.asker import Asker
from relumine.reconstruct.two_layer.mending import Added, AskOnLine, Findings, Ray
from relumine.reconstruct.two_layer.pair import told_apart
from relumine.reconstruct.verification import FRESH_POINTS, TOLERANCE, fresh_points

# Below this noise floor biases are exact as they are found; above it they are fitted to all values.
_EXACT = 1e-12
# Before that, offsets of kinks far out are off by more than noise; a kink that is wrong is mostly off by far more.
_SLACK = 20
# Afterwards noise is far smaller than its bound, and what stands out is a unit overlooked.
_SHARP = 0.2
# A clone that is further off than this is never called recovered, whatever the noise.
_COARSEST = 1e-3
# One that is no further off than this lacks a unit or two, and another line may show them apart.
_NEARLY = 5e-2
# So many times more points are compared where a box limits the search.
_IN_A_BOX = 25
# Answers are explained when they are off by no more than this, in units of their expected error.
_FITS = 1.2
# At so many points it is simulated what noise does; nothing is asked there.
_SIMULATED = 500
_ROUNDS = 3

# A ray is left after so many answers in a row that single out no unit. After so many such rays the target is not a
# one-hidden-layer network.
_PATIENCE = 25
_RAYS = 3


@dataclass(frozen=True)
class TwoLayer:
    """Reconstruct x ↦ W relu(Ax + b) + c exactly: any norms, biases, h unknown, h > d, any number of outputs.

    One line is searched by meeting tangents (line.py); what it took wrongly is mended off the line (mending.py); signs
    and orientations need no queries (shallow.py); the result is compared with the target at fresh points and at points
    close to the recovered boundaries, where a wrong one would show.

    Where one output is explained at a time (the largest, or one of your choice) rather than all, see top_class.py.

    limit: give up after this many gradient queries; None means 20,000
    points: how many fresh points to compare, by value queries
    """

    limit: int = 20_000
    points: int = FRESH_POINTS

    def __post_init__(self) -> None:
        if self.limit < 10 or self.points < 1:
            raise MisuseError(f"TwoLayer: expected limit >= 10 and points >= 1, got {self.limit} and {self.points}")

    def __call__(self, oracle: Oracle, rng: int | np.random.Generator | None = None) -> Reconstruction:
        offer = oracle.offer
        if offer.gradients == "none" or offer.values in ("label", "none"):
            raise MisuseError(
                f"TwoLayer needs values and gradients; the oracle offers values={offer.values!r}, "
                f"gradients={offer.gradients!r}. Use TwoLayerFromValues() where there are values only"
            )
        meter = metered(oracle)
        before = meter.spent
        rng = np.random.default_rng(rng)
        run = self._run(meter, rng)
        outcome, remark = attempt(run.reconstruct)
        if isinstance(run, _Run) and run.smooth(outcome):
            run = SmoothRun(meter, rng, run.asker.seen(), limit=self.limit, points=self.points)
            outcome, remark = attempt(run.reconstruct)
        return Reconstruction(run.clone(), outcome, meter.spent.since(before), run.evidence(remark), repr(self))

    def _run(self, meter: Metered, rng: np.random.Generator) -> "_Run | TopRun | SmoothRun":
        if meter.offer.gradient_rows == meter.offer.outputs:
            return _Run(self, meter, rng)
        return TopRun(meter, rng, limit=self.limit, points=self.points)


@dataclass(frozen=True, eq=False)
class _Polish:
    """The kinks that were polished, with which answers, what came of it, and by how much noise may move its values."""

    kinks: list[Kink]
    answers: Answers
    fit: Polished
    model: Shallow
    uncertainty: float | None


class _Run:
    """The state of one reconstruction."""

    def __init__(self, settings: TwoLayer, meter: Metered, rng: np.random.Generator) -> None:
        self.settings = settings
        self.meter = meter
        self.rng = rng
        self.asker = Asker(meter, rng, settings.limit)
        self.comparison = self.asker.comparison
        self.findings: Findings | None = None
        self.proven: set[float] = set()
        self.polish: _Polish | None = None

    def smooth(self, outcome: Outcome) -> bool:
        """Whether units may be smooth; sigmoids that are saturated around the origin show no gradient and no kink."""
        clone = self.clone()
        flat = outcome is Outcome.NOT_THIS_CLASS and clone is not None and not clone.hidden
        return outcome is Outcome.NOT_PIECEWISE_LINEAR or flat

    @property
    def offer(self) -> Offer:
        return self.meter.offer

    @property
    def noise(self) -> Noise:
        return self.asker.noise

    def reconstruct(self) -> None:
        """Search, compare, mend, until every comparison agrees; where digits are few once more, on another line.

        What a line does not meet, or shows too close together, is found off it, but hardly behind noise.
        """
        try:
            self._on_a_line()
        except Stop as stop:
            doubted = stop.outcome in (Outcome.NOT_VERIFIED, Outcome.NOT_THIS_CLASS) and self.findings is not None
            if not doubted or not self._nearly or self.asker.exhausted:
                raise
            self.findings, self.polish = None, None
            self.comparison.clear()
            self.proven.clear()
            self._on_a_line()

    @property
    def _nearly(self) -> bool:
        """Whether noise hides the rest, as far as can be told: behind rounding it may hide anything."""
        if self.noise.absolute > 0:
            return True
        gap = self.comparison.gap(self._model())
        return self.noise.floor > _EXACT and gap is not None and gap <= _NEARLY

    def _on_a_line(self) -> None:
        with self.meter.phase("calibrate"):
            beginning = self.asker.calibrate()
        with self.meter.phase("search"):
            self.findings = self.asker.opened(*beginning)
            self._search()
            while not self._found.search.independent and (questions := self._disproved()):
                self._sight(questions)
                self._search()
        self._compare()
        self._agree()
        if self.asker.link is not None and (self.comparison.lost or self.comparison.scale < 1):
            self._compare_saturated()

    def _compare_saturated(self) -> None:
        """Where logits cannot be known, probabilities can be compared all the same."""
        points = fresh_points(self.offer, self.settings.points, self.rng)
        with self.meter.phase("verify"):
            values = self.meter(points, gradients=False).values
        clone = self.clone()
        if clone is None or np.abs(clone.predict(points) - values).max() > max(1e-6, 500 * self.noise.relative):
            raise Stop(Outcome.NOT_VERIFIED, "the clone differs where the probabilities are saturated")

    def _agree(self) -> None:
        """Mend until no comparison contradicts, or say that noise does."""
        if self.noise.floor <= _EXACT:
            self._mend()
            self._challenge()
            while len(self._wrong()):  # what mending changes is challenged in its turn
                self._mend()
                self._challenge()
            return
        for _ in range(_ROUNDS):
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
            corners = 1 if self.offer.box is None else _IN_A_BOX
            self.comparison.ask(self.comparison.fresh(corners * self.settings.points))

    def _challenge(self) -> None:
        """Ask values close to the recovered boundaries."""
        with self.meter.phase("verify"):
            self.comparison.challenge(self._model())

    # -- the line

    def _search(self) -> None:
        search = self._found.search
        while questions := search.questions():
            self._sight(questions)
            self.meter.found(len(search.gaps))
        self._sharpen_ends()
        self._tell_apart()

    def _disproved(self) -> list[float]:
        """Places beside supposed kinks where a value does not lie on the piece that should reach there.

        One output proves no kink by itself. A value just before it must lie on the piece on its left, a value just
        behind it on the piece on its right; two kinks taken for one miss that by their slopes.
        """
        search = self._found.search
        claims = [claim for claim in search.claims() if claim[0] not in self.proven]
        self.proven |= {claim[0] for claim in claims}
        if not claims:
            return []
        t = [claim[0] for claim in claims]
        points = self.comparison.representable(search.line.points(t))
        values = self.asker.oracle(points, gradients=False).values
        # Where rounding moved the point, the piece moves with it.
        moved = points - search.line.points(t)
        wrong = []
        for i, (place, sight, allowed) in enumerate(claims):
            expected = sight.intercept + place * sight.slope + sight.jacobian @ moved[i]
            if not np.abs(values[i] - expected).max() <= allowed:
                wrong.append(place)
        return wrong

    def _sight(self, questions: list[float]) -> None:
        search = self._found.search
        answer, sights = self.asker.ask_on(search.line, questions)
        if not np.isfinite(answer.values).all():
            raise Stop(Outcome.SATURATED)
        search.add(sights)

    def _sharpen_ends(self) -> None:
        """Where the outermost cell was only seen from afar, see it from near: offsets lose digits with distance."""
        search = self._found.search
        gaps = search.gaps
        if not gaps:
            return
        nearer = [
            t
            for t, end in ((2 * gaps[0].t - 2, gaps[0].left.t), (2 * gaps[-1].t + 2, gaps[-1].right.t))
            if abs(end) > 4 * abs(t) and t * end > 0
        ]
        if nearer:
            self._sight(nearer)

    def _tell_apart(self) -> None:
        """Where two kinks are too close for the target's digits, see beside the line which is which."""
        search = self._found.search
        for i, gap in enumerate(search.gaps):
            if not (search.independent and search.closed(gap) and gap.blurred):
                continue
            beside = search.gaps[max(0, i - 1) : i] + search.gaps[i + 1 : i + 2]
            room = min((abs(gap.left.t - other.t) for other in beside), default=1.0)
            kinks = told_apart(search.line, gap, room, self._jacobian_at)
            if kinks is not None:
                gap.tell_apart(kinks)

    def _jacobian_at(self, point: Array) -> Array:
        answer = self.asker.ask(self.comparison.representable(point[None]))
        if not np.isfinite(answer.values).all():
            raise Stop(Outcome.SATURATED)
        jacobian: Array = answer.jacobians[0]
        return jacobian

    @property
    def _found(self) -> Findings:
        assert self.findings is not None
        return self.findings

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
        units = len(self._found.kinks()) if self.findings else 0
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
        if self.noise.floor <= _EXACT:
            return self._noise_explains
        if self.polish is None:
            return _SLACK * self._noise_explains
        if not self._explained:
            return self.noise.absolute / self.comparison.size
        return min(_SHARP * 500 * self.noise.relative + self._rounding, _COARSEST)

    # -- mending

    def _mend(self) -> None:
        """While some compared point contradicts the model, ask along the ray that leads there, and explain."""
        found = self._found
        found.search.settled = True
        futile = 0
        with self.meter.phase("mend"):
            while len(wrong := self._wrong()):
                known = len(found.kinks())
                ray = Ray(self.comparison.points[wrong[futile % len(wrong)]])
                self._witness(ray, 1.0)
                self._follow(ray)
                futile = 0 if len(found.kinks()) > known else futile + 1
                if futile == _RAYS and self.noise.floor > _EXACT:
                    return  # rounding may be at fault, not a unit: polishing will tell
                if futile == _RAYS:
                    raise Stop(Outcome.NOT_THIS_CLASS, "what differs off the line is not made of single units")

    def _follow(self, ray: Ray) -> None:
        """Ask along the ray until the model is right all along it, or no unit can be singled out."""
        found = self._found
        fruitless = 0
        while not found.agrees(ray) and fruitless <= _PATIENCE:
            known = len(found.kinks())
            step = found.explain(ray)
            if isinstance(step, AskOnLine):
                self._sight([step.t])
                self._search()
            elif not isinstance(step, Added):
                place = step.place if step else found.undecided(ray)
                if place is None:
                    return
                self._witness(ray, place)
            fruitless = 0 if len(found.kinks()) > known else fruitless + 1
            self.meter.found(len(found.kinks()))

    def _witness(self, ray: Ray, place: float) -> None:
        start = self._found.search.line.start
        point = self.comparison.representable(start + place * (ray.end - start))
        answer = self.asker.ask(point[None])
        if not np.isfinite(answer.values).all():
            raise Stop(Outcome.SATURATED)
        self._found.add(ray, place, point, answer)

    # -- polishing

    def _polish(self) -> None:
        """Fit all parameters to every answer so far; fresh points then take the place of those that were used."""
        answers, model = self.asker.oracle.answers(), self._model()
        fit = polished(model.network(self.offer, _SLACK * self._noise_explains), answers, self.noise)
        if fit.whole and fit.misfit > _FITS:  # it may need the linear term that was left out
            fit = min(fit, polished(model.network(self.offer, 0.0), answers, self.noise), key=lambda fit: fit.misfit)
        simulated = fit.uncertainty(self.comparison.fresh(_SIMULATED), self.rng) if fit.whole else None
        uncertainty = None if simulated is None else max(1.0, fit.misfit) * float(simulated.max(initial=0))
        self.polish = _Polish(self._found.kinks(), answers, fit, shallow_from_network(fit.network), uncertainty)
        self.comparison.clear()
        self._compare()

    def _model(self) -> Shallow:
        """What is known so far; units found since the last polishing are polished roughly, for the time being."""
        model = self._found.model()
        if self.polish is None:
            return model
        if self._is_current:
            return self.polish.model
        answers = self.polish.answers
        return model.fitted(answers.points, answers.values, answers.distrust(self.noise))

    @property
    def _is_current(self) -> bool:
        return self.polish is not None and self.polish.kinks == self._found.kinks()

    @property
    def _uncertainty(self) -> float | None:
        return self.polish.uncertainty if self.polish is not None and self._is_current else None

    # -- results

    def clone(self) -> Network | None:
        if self.findings is None:
            return None
        if self.polish is not None and self._is_current:
            return self.polish.fit.network
        return self._model().network(self.offer, self._noise_explains)

    def evidence(self, remark: str) -> Evidence:
        if self.findings is None:
            return Evidence(self.noise.floor, remark=remark)
        kinks = sorted(gap.t for gap in self._found.search.gaps if gap.rank_one)
        spacing = float(np.diff(kinks).min()) if len(kinks) > 1 else None
        gap = self.comparison.gap(self._model())
        accuracy = None if self._uncertainty is None else self._uncertainty / self.comparison.size
        return Evidence(self.noise.floor, spacing, gap, len(self.comparison.points), remark, accuracy)
