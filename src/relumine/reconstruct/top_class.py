"""One hidden layer from the gradient of one output at a time: directions from kinks, output weights from values.

Where an endpoint explains the largest of K outputs only, a line still shows every unit's boundary (top_class_line.py).
On which side a unit is on, and its weights to all K outputs, follow from answers already paid for (top_class_fit.py).
What no line has shown yet is looked for on further lines, through points that contradict the network so far.
"""

from collections.abc import Iterator

import numpy as np

from relumine.oracle.base import Array, Offer
from relumine.oracle.metered import Metered
from relumine.reconstruct.comparison import Comparison
from relumine.reconstruct.line import Line
from relumine.reconstruct.network import Network
from relumine.reconstruct.noise import Noise, noise_in
from relumine.reconstruct.profile import Profile
from relumine.reconstruct.result import Evidence, Outcome, Stop
from relumine.reconstruct.shallow import Shallow
from relumine.reconstruct.top_class_fit import boundaries, fitted, orientations, polished, refined
from relumine.reconstruct.top_class_line import Seen, absent, merged, seen_by_profile, seen_by_tangents
from relumine.reconstruct.top_class_sights import OneGradient, Sights
from relumine.reconstruct.verification import TOLERANCE

# How far out a line is searched, and how close two points are that lie in one cell nearly always (as in two_layer.py).
_FAR = {"float64": 1e5, "float32": 1e3}
_NEAR = {"float64": 1e-5, "float32": 1e-3}
# A clone that is further off than this is never called recovered, whatever the noise.
_COARSEST = 1e-3
# So many times more points are compared where a box limits the search.
_IN_A_BOX = 25
# Lines searched at most, and lines in a row that show no unit which was not known.
_LINES = 12
_FUTILE = 5
# A clone that misses by so many times what it may misses digits, not units.
_NEARLY = 1e3
# A line through a compared point begins a little beside it, so that nothing is asked twice.
_ASIDE = 0.01
# More values than unknowns are fitted, by so many.
_SPARE = 20
# A kink is where a boundary was predicted if it is this close, in units of 1 + |t|; so many that are not are no
# accident.
_RESOLUTION = {"float64": 1e-5, "float32": 1e-3}
_ABSENT = 3
_REFINEMENTS = 3


class TopRun:
    """The state of one reconstruction."""

    def __init__(self, meter: Metered, rng: np.random.Generator, *, limit: int, points: int) -> None:
        self.meter = meter
        self.rng = rng
        self.limit = limit
        self.points = points
        self.oracle = OneGradient(meter)
        self.comparison = Comparison(self.oracle, rng)
        self.noise = Noise(0.0)
        self.gradients_asked = 0
        self.seen: list[Seen] = []
        self.sights: Sights | None = None
        self.values = np.empty((0, self.offer.dimension)), np.empty((0, self.offer.outputs))
        self.model: Shallow | None = None

    @property
    def offer(self) -> Offer:
        return self.meter.offer

    def reconstruct(self) -> None:
        """Search lines until the network that they show agrees with the target."""
        with self.meter.phase("calibrate"):
            line, self.calibrated = self._calibrate()
        self._compare()
        futile = 0
        for _ in range(_LINES):
            with self.meter.phase("search"):
                new = self._search(line)
            futile = 0 if new else futile + 1
            if self._agrees(last=not new):
                self._compare_saturated()
                return
            if futile == _FUTILE:
                break
            line = self._next_line()
        raise self._failure(all_shown=futile == _FUTILE)

    def _failure(self, *, all_shown: bool) -> Stop:
        gap = self.comparison.gap(self.model) if self.model else None
        if self.noise.absolute > 0:
            return Stop(Outcome.NOT_VERIFIED, "rounded answers do not show the units; ask for more digits")
        if gap is not None and gap <= _NEARLY * self._tolerance:
            return Stop(Outcome.NOT_VERIFIED, "values differ by more than noise explains")
        if all_shown:
            return Stop(Outcome.NOT_VERIFIED, "explanations do not show all units; TwoLayerFromValues() needs none")
        return Stop(Outcome.NOT_THIS_CLASS, f"{_LINES} lines were not enough: each shows other units")

    # -- asking

    def _ask(self, points: Array) -> Sights:
        self.gradients_asked += len(points)
        if self.gradients_asked > self.limit:
            raise Stop(Outcome.NOT_THIS_CLASS, f"{self.limit} gradient queries were not enough; raise `limit`")
        return self.oracle.sights(points)

    def _ask_on(self, line: Line, t: list[float]) -> Sights:
        return self._ask(self.comparison.representable(line.points(t)))

    def _values_on(self, line: Line, t: list[float]) -> Array:
        return self.oracle(self.comparison.representable(line.points(t)), gradients=False).values

    def _compare(self) -> None:
        """Ask the values at fresh points; they are compared with every later model."""
        with self.meter.phase("verify"):
            corners = 1 if self.offer.box is None else _IN_A_BOX
            self.comparison.ask(self.comparison.fresh(corners * self.points))
        self.oracle.learn_alike(self.comparison.answers)

    # -- calibration

    def _calibrate(self) -> tuple[Line, Sights]:
        """Find the noise, and a line on which answers are finite; logits' gradients must be constant nearby."""
        near = _NEAR[self.offer.dtype]
        for _ in range(3):
            line, sights = self._finite_line(near)
            self.noise = noise_in(np.concatenate([sights.values.ravel(), sights.gradients.ravel()]), self.offer.dtype)
            if self.oracle.link is not None:
                return line, sights
            first, second = sights.gradients
            allowed = self.noise.of(float(np.linalg.norm(first)), first.size)
            if sights.tops[0] == sights.tops[1] and float(np.linalg.norm(second - first)) <= allowed:
                self._refuse_foreign_gradients(sights)
                return line, sights
        raise Stop(Outcome.NOT_PIECEWISE_LINEAR, f"3 of 3 gradients changed within {near:g}")

    def _refuse_foreign_gradients(self, sights: Sights) -> None:
        """Between two close points the value must change as the gradient says."""
        moved = sights.points[1] - sights.points[0]
        expected, change = float(sights.gradients[0] @ moved), float(np.diff(sights.explained)[0])
        allowed = 16 * self.noise.of(float(np.abs(sights.values).max()), 1)
        length = float(np.linalg.norm(sights.gradients[0]) * np.linalg.norm(moved)) / np.sqrt(moved.size)
        if abs(change - expected) > allowed + 0.1 * length:
            raise Stop(
                Outcome.NOT_THIS_CLASS, "the values do not change as the gradients say: they are of another thing"
            )

    def _finite_line(self, near: float) -> tuple[Line, Sights]:
        for _ in range(12):
            line = self.comparison.line()
            sights = self._ask_on(line, [0.0, near])
            if np.isfinite(sights.values).all():
                return line, sights
            self.comparison.scale /= 2
        raise Stop(Outcome.SATURATED)

    # -- searching

    def _search(self, line: Line) -> int:
        """How many units this line shows that were not known."""
        if self.oracle.link is None:
            seen, sights = seen_by_tangents(line, self._begin(line), self._ask_on, self.noise)
        else:
            profile = Profile(
                lambda t: self._values_on(line, t),
                self.noise,
                box=line.within(self.offer.box),
                limit=0.5 * self.oracle.link.limit,
                found=self.meter.found,
            )
            seen, sights = seen_by_profile(line, profile, self._ask_on, self.noise)
        if self.sights is not None:
            self._refuse_absent(line, sights)
        known, offset = len(self.seen), 0 if self.sights is None else len(self.sights)
        reach = float(np.linalg.norm(line.start)) + float(np.linalg.norm(line.direction))
        self.seen = merged(self.seen, seen, offset, reach)
        self.sights = sights if self.sights is None else self.sights.and_then(sights)
        self.meter.found(len(self.seen))
        return len(self.seen) - known

    def _begin(self, line: Line) -> tuple[list[float], Sights]:
        """The ends of a line and something between them; of the first line that is there from calibration."""
        low, high = line.within(self.offer.box)
        far = _FAR[self.offer.dtype]
        ends = [max(-far, low), min(far, high)]
        if self.sights is None:
            return [0.0, _NEAR[self.offer.dtype], *ends], self.calibrated.and_then(self._ask_on(line, ends))
        return [0.0, *ends], self._ask_on(line, [0.0, *ends])

    def _refuse_absent(self, line: Line, sights: Sights) -> None:
        """What bends on one line and not on another is no unit of a first layer."""
        assert self.sights is not None
        shown = self.sights.tops[[unit.left for unit in self.seen]]
        count = absent(self.seen, shown, line, sights, _RESOLUTION[self.offer.dtype])
        if count >= max(_ABSENT, 0.2 * len(self.seen)):
            raise Stop(Outcome.NOT_THIS_CLASS, f"{count} of {len(self.seen)} units of one line are not on another")

    def _next_line(self) -> Line:
        """Through a compared point whose largest output was seldom on top so far: it may see what others do not."""
        line = self.comparison.line()
        if self.sights is None or not len(self.comparison.points):
            return line
        shown = np.bincount(self.sights.tops, minlength=self.offer.outputs)
        seldom = shown[self.comparison.answers.argmax(axis=1)] + self.rng.random(len(self.comparison.points))
        start = self.comparison.points[int(seldom.argmin())] + _ASIDE * line.direction
        return Line(start if self.offer.box is None else np.clip(start, *self.offer.box), line.direction)

    # -- fitting

    @property
    def _tolerance(self) -> float:
        """How much of the largest answer noise can explain."""
        rounding = 16 * self.noise.absolute * np.sqrt(self.offer.dimension * (len(self.seen) + 1))
        return float(
            min(max(TOLERANCE["float64"], 500 * self.noise.relative + rounding / self.comparison.size), _COARSEST)
        )

    def _agrees(self, *, last: bool) -> bool:
        """Whether a network of the boundaries seen so far meets all compared points."""
        assert self.sights is not None
        rows, biases = boundaries(self.seen, self.offer.dimension)
        signs = orientations(self.seen, self.sights)
        straight = signs is None
        if straight and 0 < len(rows) <= self.offer.dimension and not last:
            return False  # units are missing, or there is a linear term: another line will tell
        if signs is not None:
            rows, biases = rows * signs[:, None], biases * signs
        for model in self._models(rows, biases, straight=straight):
            self.model = model
            if self._right() and self._right_at_boundaries():
                return True
        return False

    def _models(self, rows: Array, biases: Array, *, straight: bool) -> Iterator[Shallow]:
        """Ever closer fits, from ever more values."""
        slopes = self.offer.dimension if straight else 0
        for enough in (slopes + _SPARE if straight else 0, slopes + len(rows) + 1 + _SPARE):
            self._ask_values(enough)
            points, values = self._known()
            model = fitted(rows, biases, points, values, straight=straight)
            for _ in range(_REFINEMENTS if self.oracle.link is not None else 0):
                model = fitted(*self._refined(model), points, values, straight=straight)
            yield model
            if model.units:
                yield polished(model, points, values, straight=straight)

    def _known(self) -> tuple[Array, Array]:
        """All points whose values are known, but for those that are compared, and the values."""
        assert self.sights is not None
        finite = np.isfinite(self.sights.values).all(axis=1)
        points = np.concatenate([self.sights.points[finite], self.values[0]])
        return points, np.concatenate([self.sights.values[finite], self.values[1]])

    def _refined(self, model: Shallow) -> tuple[Array, Array]:
        """Rows without what blurred them, and biases with which their boundaries meet the line where they did."""
        assert self.sights is not None
        rows = refined(self.seen, model, self.sights)
        places = [self.sights.points[[unit.left, unit.right]].mean(axis=0) for unit in self.seen]
        return rows, model.biases - np.einsum("md,md->m", rows - model.rows, np.array(places).reshape(rows.shape))

    def _ask_values(self, enough: int) -> None:
        """See that so many values off the lines are known."""
        missing = enough - len(self.values[0])
        if missing <= 0:
            return
        with self.meter.phase("output weights"):
            points = self.comparison.fresh(missing)
            values = self.oracle(points, gradients=False).values
        known = np.isfinite(values).all(axis=1)
        self.values = np.concatenate([self.values[0], points[known]]), np.concatenate([self.values[1], values[known]])

    def _right(self) -> bool:
        assert self.model is not None
        return not len(self.comparison.wrong(self.model, self._tolerance))

    def _right_at_boundaries(self) -> bool:
        assert self.model is not None
        with self.meter.phase("verify"):
            self.comparison.challenge(self.model)
        return self._right()

    def _compare_saturated(self) -> None:
        """Where logits cannot be known, probabilities can be compared all the same."""
        if self.oracle.link is None or not (self.comparison.lost or self.comparison.scale < 1):
            return
        points = self.comparison.representable(
            self.comparison.fresh(self.points) / (self.comparison.scale if self.offer.box is None else 1)
        )
        with self.meter.phase("verify"):
            values = self.meter(points, gradients=False).values
        clone = self.clone()
        if clone is None or np.abs(clone.predict(points) - values).max() > max(1e-6, 500 * self.noise.relative):
            raise Stop(Outcome.NOT_VERIFIED, "the clone differs where the probabilities are saturated")

    # -- results

    def clone(self) -> Network | None:
        """What was found, if anything."""
        return None if self.model is None else self.model.network(self.offer, 100 * self._tolerance)

    def evidence(self, remark: str) -> Evidence:
        """What the outcome rests on."""
        if self.model is None:
            return Evidence(self.noise.floor, remark=remark)
        gap = self.comparison.gap(self.model)
        return Evidence(self.noise.floor, None, gap, len(self.comparison.points), remark)
