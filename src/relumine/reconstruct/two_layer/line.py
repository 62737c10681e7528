"""LineRun: one line searched by meeting tangents, and mended off it: for one output, and for degenerate targets."""

from dataclasses import replace

import numpy as np

from relumine.oracle.base import Answer, Array
from relumine.oracle.metering.metered import Metered
from relumine.reconstruct.lines.search import DOUBTED, Kink
from relumine.reconstruct.lines.shallow import Shallow
from relumine.reconstruct.result import Evidence, Outcome, Stop
from relumine.reconstruct.tensor.observations import Observations
from relumine.reconstruct.two_layer.agreement import EXACT, Settings
from relumine.reconstruct.two_layer.both_sides import BothSides
from relumine.reconstruct.two_layer.mending import Added, AskOnLine, LineFindings, Ray

# A ray is left after so many answers in a row that single out no unit. After so many such rays the target is not a
# one-hidden-layer network.
_PATIENCE = 25
_RAYS = 3
# Gradients off the line are asked four at once. For rows to be told by the space of what is left, the last three must
# add nothing to it, and its dimension must fall short of the rank of all rows by as many.
_AT_ONCE, _SPARE = 4, 3
# Where too many gaps are wrong, values are asked at this part of the probability, and below the second all of them.
_STRICTER, _LEAST_DOUBTED = 0.75, 0.01


class LineRun(BothSides):
    """The state of one reconstruction along a line; ``seen`` are answers of an earlier search."""

    def __init__(
        self, settings: Settings, meter: Metered, rng: np.random.Generator, seen: Observations | None = None
    ) -> None:
        super().__init__(settings, meter, rng)
        self._seen = seen
        self.findings: LineFindings | None = None
        self._beside: list[Array] = []  # points off the line that are asked next

    @property
    def _state(self) -> list[Kink] | None:
        return self.findings.kinks() if self.findings is not None else None

    @property
    def _units(self) -> int:
        return len(self._found.kinks()) if self.findings else 0

    def _raw(self) -> Shallow:
        return self._found.model()

    def evidence(self, remark: str) -> Evidence:
        """What the outcome rests on."""
        evidence = super().evidence(remark)
        if self.findings is None:
            return evidence
        kinks = sorted(gap.t for gap in self._found.search.gaps if gap.rank_one)
        return replace(evidence, smallest_spacing=float(np.diff(kinks).min()) if len(kinks) > 1 else None)

    def _find(self) -> None:
        self.findings, self._beside = None, []
        with self.meter.phase("calibrate"):
            beginning = self.asker.calibrate()
        with self.meter.phase("search"):
            self.findings = self.asker.opened(*beginning)
            self._search()
            if not self._found.search.independent:
                exact = self.noise.floor <= EXACT
                self._check(DOUBTED if exact else 0.0)
                if exact:
                    self._settle()

    # -- comparing

    @property
    def _settled(self) -> bool:
        """Whether gradients off the line agree with the model exactly; they were asked for one output only."""
        return self.noise.floor <= EXACT and self._found.witnesses > 0 and not self._found.search.independent

    def _answered(self) -> tuple[Array, Array]:
        return self._found.answered()

    # -- the line

    def _search(self) -> None:
        search = self._found.search
        while questions := search.questions():
            self._sight(questions)
            self.meter.found(len(search.gaps))
        self._sharpen_ends()

    def _check(self, least: float) -> None:
        """Ask values beside supposed kinks, where that disproves one with this probability at least, and mend these.

        One output proves no kink by itself. A value just before it must lie on the piece on its left, a value just
        behind it on the piece on its right; two kinks taken for one miss that by their slopes.
        """
        search = self._found.search
        while claims := search.claims(least):
            t = [claim.t for claim in claims]
            points = self.comparison.representable(search.line.points(t))
            values = self.asker.oracle(points, gradients=False).values
            moved = points - search.line.points(t)
            wrong = []
            for claim, value, by in zip(claims, values, moved, strict=True):
                if claim.holds(value, by):
                    claim.gap.passed.add(claim.side)
                else:
                    wrong.append(claim.t)
            if wrong:
                self._sight(wrong)
                self._search()

    # -- off the line

    def _settle(self) -> None:
        """Find the gaps that are several kinks from gradients off the line, and ask in these.

        What such a gap leaves at a point is a multiple of the row of either of its units, or of their sum, which is the
        row that was taken for theirs. As long as few gaps are wrong these span a small space, in which the rows of
        right ones do not lie.
        """
        found, least = self._found, DOUBTED
        if not found.kinks():
            return
        if self._seen is not None and not found.witnesses:
            found.add(self._seen.points, Answer(self._seen.values, self._seen.jacobians))
        rank = int(np.linalg.matrix_rank(found.model().rows))
        fewest = found.witnesses + _AT_ONCE
        while True:
            left, in_vain = found.left()
            if found.witnesses < fewest or (in_vain < _SPARE and len(left) <= rank - _SPARE):
                self._off_line(_AT_ONCE)
            elif len(left) == 0:
                return
            elif len(left) > rank - _SPARE:
                # Too many to tell by this: fewer are left where more values are asked on the line.
                if least == 0:
                    return
                least = _STRICTER * least if least > _LEAST_DOUBTED else 0.0
                self._check(least)
            elif doubted := found.doubted(left):
                self._sight(doubted)
                self._search()
                self._check(least)
            else:
                return  # not the line's fault: a unit that it does not meet

    def _off_line(self, count: int) -> None:
        """Ask at points close to boundaries that were found, many of them at once."""
        while len(self._beside) < count:
            self._beside += list(self.comparison.near_boundaries(self._found.model()))
        points, self._beside = np.array(self._beside[:count]), self._beside[count:]
        answer = self.asker.ask(points)
        known = np.isfinite(answer.values).all(axis=1)
        self._found.add(points[known], Answer(answer.values[known], answer.jacobians[known]))

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

    @property
    def _found(self) -> LineFindings:
        assert self.findings is not None
        return self.findings

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
                if futile == _RAYS and self.noise.floor > EXACT:
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
        ray.insert(place, self._found.witnesses)
        self._found.add(point[None], answer)
