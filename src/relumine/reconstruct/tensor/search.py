"""TensorSearch: which inputs to ask until every answered piece is explained by units.

Gaussian inputs around one base come first, and from the fifteenth on inputs on lines through it: where h ≤ d their
tensor shows all units at once. Where more units switch than there are inputs, inputs in a small ball around a fresh
centre show those that pass through the ball; what known units explain is subtracted, and with fewer unknown ones the
balls grow, until the Gaussian inputs can be decomposed too. With fewer than 16 inputs per output one small ball walks
instead (walk.py). Two pieces whose difference cannot be decomposed (parallel rows, shared patterns) are parted on the
segment between them, at the point where their tangents meet.
"""

from collections.abc import Callable
from math import sqrt

import numpy as np

from relumine.oracle.base import Answer, Array
from relumine.reconstruct.noise import Noise
from relumine.reconstruct.result import Outcome, Stop
from relumine.reconstruct.tensor.balls import ENOUGH, MOST, Balls, Cluster
from relumine.reconstruct.tensor.base_lines import BaseLines
from relumine.reconstruct.tensor.decomposition import Tensor, decomposed
from relumine.reconstruct.tensor.errors import alike, deviation, independent, turned_at
from relumine.reconstruct.tensor.joint import jointly
from relumine.reconstruct.tensor.observations import Observations
from relumine.reconstruct.tensor.refinement import refined
from relumine.reconstruct.tensor.units import Units, no_units
from relumine.reconstruct.tensor.walk import Walk

# Where each of so many inputs shows further units, more are asked on lines through the base (base_lines.py). Patterns
# are tried if there are no more than of so many inputs elsewhere, which takes four seconds.
_SINGLE, _LISTED, _LISTED_OF_FEW, _FEW_OUTPUTS = 14, 19, 22, 4
# Dimensions that must be free besides K before a decomposition is tried. With fewer than K free every pattern fits;
# these two are a margin against patterns of no unit that nearly fit. Not tuned.
_FREE = 2
# Points that alternating eigenvectors need, per h/K: 1.5 was enough in 5 whole runs of 784-256-10; 1.3 was tried on 3.
_MARGIN = 1.5
# Answers in a row that single out no unit end the search: those around the first base, and three balls of others.
_PATIENCE = 60
# Behind rounded answers a line tells the rest sooner: of 784-64-10 with four decimals it takes 120 queries.
_PATIENCE_ROUNDED = 12
# Inputs from which on walks take fewer queries than a line: 20-60-10 took 47 and 71; 20-100-3 took no fewer.
_WALKED = 20
# Where inputs that differ are so much larger than others, further ones are, too.
_FAR = 2.0
# Queries of a walk before the Gaussian inputs are tried again.
_STRETCH = 16
# Answers are compared with this many before them, in so many turns of alternating least squares.
_NEIGHBOURS, _TURNS = 3, 2
# Closer to the end of a segment the point where tangents meet may be on the end's own piece: then it is halved.
_EDGE = 0.01
# Units that share a pattern are told apart by further points, half of them by each; this many, or after this many
# points in vain, by a point between two of them.
_FEW, _SHARED = 3, 4
# By how much more than the noise of one answer what is left may be: units are known as well as the least determined
# direction of the tensor, a thousandth of the best. float32 has no room for that, and its bound is generous.
_SLACK = {True: 10000.0, False: 1.0}
# While a ball walks units are known less well; once all is explained they are fitted again.
_SLACK_WALKING = {True: 1e7, False: 1.0}


class TensorSearch:
    """Everything seen so far, the units that explain it, and what is left.

    far: whether inputs may be larger than fresh ones; beyond: whether they may lie opposite to these
    """

    def __init__(
        self,
        ask: Callable[[Array], tuple[Array, Answer]],
        fresh: Callable[[int], Array],
        near: Callable[[Array, float], Array],
        seen: Observations,
        rng: np.random.Generator,
        *,
        far: bool = False,
        beyond: bool = False,
    ) -> None:
        self._rng, self._anywhere = rng, far
        self._ask, self._fresh, self.near = ask, fresh, near
        self.seen = seen
        K, d = seen.jacobians.shape[1:]
        self.outputs, self.dimension = int(K), int(d)
        self.units = no_units(K, d)
        self._exact, self._deviation = seen.noise.floor < 1e-12, deviation(seen.noise)
        # Offsets are as exact as slopes if they count in units of the inputs' size, which may be that of none of them.
        typical = fresh(1)[0] if self._deviation else seen.points[0]
        self._column = max(1.0, float(np.linalg.norm(typical)))
        self.rest = self._scaled(seen.pieces)
        self.main = Cluster(0, np.inf)
        self.clusters = [self.main]
        self._futile = self._gathered = 0
        self.reached = 1
        self._through_base = BaseLines(beyond)
        self._slack = _SLACK[self._exact]
        self._size = float(np.linalg.norm(seen.jacobians[0]))
        self._walk: Walk | None = None

    @property
    def noise(self) -> Noise:
        return self.seen.noise

    def _scaled(self, pieces: Array) -> Array:
        """Pieces whose offsets count as much as their slopes do."""
        return np.concatenate([pieces[:, :, :-1], pieces[:, :, -1:] / self._column], axis=2)

    @property
    def error(self) -> float:
        """The largest singular value by which two pieces may differ that are the same."""
        return float(self._bound(1.0))

    def _error(self, *places: int) -> float:
        """The same for pieces seen at these places: far out offsets are less exact."""
        return float(self._bound(self._far(list(places)).max()))

    def _far(self, places: list[int]) -> Array:
        """How many times as far out as the base these places are, or 1."""
        far: Array = np.maximum(1.0, np.linalg.norm(self.seen.points[places], axis=1) / self._column)
        return far

    def _bound(self, far: Array | float) -> Array:
        growing = self._slack + sqrt(len(self.units))
        return growing * (alike(self.noise, self._size, far) + independent(self._deviation, self.rest.shape[1:], far))

    # -- asking

    def add(self, points: Array, cluster: Cluster) -> list[int]:
        """Ask here, for this cluster; where answers are saturated nothing is learnt."""
        asked, answer = self._ask(points)
        known = np.isfinite(answer.values).all(axis=1)
        self._futile += len(points)
        if self._futile > (_PATIENCE if self.noise.absolute == 0 else _PATIENCE_ROUNDED) + self._gathered:
            raise Stop(Outcome.NOT_THIS_CLASS, "what the pieces differ by is not made of single units")
        first = len(self.seen)
        self._size = max([self._size, *np.linalg.norm(answer.jacobians[known], axis=(1, 2))])
        self.seen = self.seen.and_(asked[known], answer.values[known], answer.jacobians[known])
        new = Observations(asked[known], answer.values[known], answer.jacobians[known], self.noise)
        self.rest = np.concatenate([self.rest, self._scaled(new.pieces - self.units.pieces(new.points))])
        places = list(range(first, len(self.seen)))
        cluster.members += places
        if self.reached < self.outputs:
            self.reached = max(self.reached, self._outputs_reached())
        return places

    def gather(self, points: Array) -> None:
        """Ask here, for the tensor around the first base: answers that show unknown units are none in vain."""
        places = self.add(points, self.main)
        self._gathered += len(set(places).intersection(self.unexplained(self.main)))

    def _outputs_reached(self) -> int:
        """K, or fewer where outputs depend on each other, as those of probabilities do."""
        differences = np.moveaxis(self.rest[-4:] - self.rest[0], 1, 0).reshape(self.outputs, -1)
        return int((np.linalg.svd(differences, compute_uv=False) > 2 * self.error).sum())

    def accept(self, units: Units) -> None:
        """These are units of the target."""
        self._futile = 0
        self.units = self.units.and_(units)
        self.rest = self.rest - self._scaled(units.pieces(self.seen.points))
        if self._deviation:
            places = [0, *self.unexplained(self.main)]
            scaled = Units(self.units.outputs, self._scaled(self.units.rows[None])[0])
            self.rest = turned_at(places, self.rest, scaled, self._homogeneous(places))

    def refine(self, places: list[int]) -> None:
        """Fit all known units to the differences between neighbours among these places.

        A unit is known a little less well than those that were subtracted to find it. Without this, errors grew from
        1e-13 to 1e-9 over 300 queries of 50-2000-10, and then hid further units.
        """
        pairs = [(i, j) for n, i in enumerate(places) for j in places[max(0, n - _NEIGHBOURS) : n]]
        if not pairs or not len(self.units):
            return
        first, second = np.array(pairs).T
        on = self.units.on(self.seen.points).astype(np.float64)
        switched = on[first] - on[second]
        chosen = switched.any(axis=0)
        for _ in range(_TURNS):
            some = self.units.at(chosen)
            units = Units(some.outputs, self._scaled(some.rows[None])[0])
            left = self.rest[first] - self.rest[second]
            new = self._unscaled(refined(units, switched[:, chosen], left, self._error(*places)))
            self.rest = self.rest + self._scaled(some.pieces(self.seen.points) - new.pieces(self.seen.points))
            self.units = self.units.at(~chosen).and_(new)
            switched, chosen = np.hstack([switched[:, ~chosen], switched[:, chosen]]), np.sort(chosen)

    # -- what is left

    def unexplained(self, cluster: Cluster) -> list[int]:
        """The members whose piece differs from the base's by more than known units explain, least first."""
        if not cluster.members:
            return []
        left = self.rest[cluster.members] - self.rest[cluster.base]
        sizes = np.linalg.norm(left, axis=(1, 2))
        errors = self._bound(self._far(cluster.members))
        order = [i for i in np.argsort(sizes) if sizes[i] > errors[i] and np.linalg.norm(left[i], ord=2) > errors[i]]
        return [cluster.members[i] for i in order]

    def _tensor(self, base: int, places: list[int]) -> Tensor:
        differences = self.rest[places] - self.rest[base]
        places_and_base = self._homogeneous(places), self._homogeneous([base])[0]
        on = self._through_base.of(places) if base == 0 else None
        if self._deviation == 0:
            return Tensor(differences, *places_and_base, self._error(*places), on=on)
        exact = alike(self.noise, self._size, self._far(places).max())
        return Tensor(differences, *places_and_base, float(exact), self._deviation, on)

    def ranks(self, base: int, places: list[int]) -> list[int]:
        """For every beginning of these places: the rank of what is left there, compared with the base."""
        D = self.dimension + 1
        basis, ranks = np.empty((0, D)), []
        for place in places:
            block = self.rest[place] - self.rest[base]
            block = block - (block @ basis.T) @ basis
            _, sizes, rows = np.linalg.svd(block, full_matrices=False)
            basis = np.concatenate([basis, rows[sizes > self._error(place)]])
            ranks.append(len(basis))
        return ranks

    @property
    def _listable(self) -> int:
        """Of so many points, each on a line of its own, all patterns can be tried."""
        return _LISTED_OF_FEW if self.reached <= _FEW_OUTPUTS else _LISTED

    def room(self, count: int) -> int:
        """How many units can be told apart at this many points."""
        return min(self.reached * (count - 1) - _FREE, self.dimension)

    def linear(self) -> Array:
        """K×(d+1): what all pieces share that are explained, besides units."""
        same = np.linalg.norm(self.rest - self.rest[0], ord=2, axis=(1, 2)) <= self.error
        mean = self.rest[same].mean(axis=0)
        if np.linalg.norm(mean[:, :-1]) <= self.error:
            mean[:, :-1] = 0.0
        return np.hstack([mean[:, :-1], mean[:, -1:] * self._column])

    # -- decomposing

    def peel(self, cluster: Cluster) -> bool:
        """Decompose what can be; whether a unit was found."""
        found = False
        while self._peeled(cluster):
            found = True
        return found

    def _peeled(self, cluster: Cluster) -> bool:
        places = self.unexplained(cluster)
        if not places or len(places) == cluster.tried:
            return False
        if self._single(cluster.base, places[0]):
            return True
        if cluster.failures > _SHARED and len(self.units) == cluster.known:
            return False
        fits = self._fitting(cluster, places)
        return bool(fits) and self._decomposed(cluster, places, fits)

    def _decomposed(self, cluster: Cluster, places: list[int], fits: list[int]) -> bool:
        """Whether units were told apart at some of the unexplained places."""
        tensor = self._tensor(cluster.base, fits)
        units = decomposed(tensor, self._rng, self._listable)
        cluster.tried = len(places)
        if self._deviation and units is not None and len(units) < tensor.rank and len(places) < MOST:
            return False  # another point tells the others apart; subtracting these would add their errors to the rest
        if self._accepted(units):
            cluster.tried = cluster.failures = 0
            return True
        cluster.failures += 1
        cluster.known = len(self.units)
        return False

    def shared(self) -> Units | None:
        """Units that explain what is left around the first base where several share a pattern; others would, too."""
        fits = self._fitting(self.main, self.unexplained(self.main))
        units = jointly(self._tensor(self.main.base, fits), self._rng, self._listable) if fits else None
        return None if units is None else self._unscaled(units)

    def _unscaled(self, units: Units) -> Units:
        return Units(units.outputs, np.hstack([units.rows[:, :-1], units.rows[:, -1:] * self._column]))

    def _fitting(self, cluster: Cluster, places: list[int]) -> list[int]:
        """Some of these places at which few enough units switch that they can be told apart."""
        some = self._through_base.listed(places, 2**self._listable) if cluster is self.main else places[:MOST]
        if found := self._telling(cluster, some):
            return found
        many = len(places) > MOST and cluster is self.main and not self._through_base
        room = min(int(self.reached * len(places) / _MARGIN), self.dimension)
        return places if many and self.ranks(cluster.base, places)[-1] <= room else []

    def _telling(self, cluster: Cluster, some: list[int]) -> list[int]:
        fits = [n for n, rank in enumerate(self.ranks(cluster.base, some), 1) if n > 1 and rank <= self.room(n)]
        if fits:
            some = some[: fits[-1]]
        tensor = self._tensor(cluster.base, some)
        telling = tensor.telling()
        if telling.sum() > 1 and tensor.at(telling).rank <= self.room(int(telling.sum())):
            return [place for place, tells in zip(some, telling, strict=True) if tells]
        return []

    def _single(self, first: int, second: int) -> bool:
        """Whether these two pieces differ by one unit, which is kept."""
        left, sizes, right = np.linalg.svd(self.rest[second] - self.rest[first], full_matrices=False)
        error = self._error(first, second)
        if len(sizes) < 2 or sizes[1] > error or sizes[0] <= error:
            return False
        ends = self._homogeneous([first, second]) @ right[0]
        if ends[0] * ends[1] >= 0:
            return False
        sign = float(np.sign(ends[1]))
        return self._accepted(Units(sign * sizes[0] * left[None, :, 0], sign * right[:1]))

    def _homogeneous(self, places: list[int]) -> Array:
        """[x, 1] in the units in which pieces are kept."""
        points = self.seen.points[places]
        return np.hstack([points, np.full((len(points), 1), self._column)])

    def _accepted(self, units: Units | None) -> bool:
        """Whether some of these units contradict no piece that is explained already; they are kept."""
        if units is None or not len(units):
            return False
        units = self._unscaled(units)
        on, right = units.on(self.seen.points), np.ones(len(units), dtype=bool)
        for cluster in self.clusters:
            explained = sorted(set(cluster.members) - set(self.unexplained(cluster)))
            right &= (on[explained] == on[cluster.base]).all(axis=0)
        if right.any():
            self.accept(units.at(right))
        return bool(right.any())

    def tell_apart(self, base: int, places: list[int]) -> bool:
        """Whether units were found by which these answers differ from the base's."""
        tensor = self._tensor(base, places)
        telling = tensor.telling()
        if telling.sum() < 2 or tensor.at(telling).rank > self.room(int(telling.sum())):
            return False
        return self._accepted(decomposed(tensor.at(telling), self._rng, self._listable))

    # -- the strategy

    def run(self) -> None:
        """Ask until everything seen is explained."""
        while True:
            for cluster in self.clusters:
                self.peel(cluster)
            if not (places := self.unexplained(self.main)) and len(self.main.members) >= 2:
                if self._walk is None:
                    return
                self.refine([*self._walk.cluster.members, *self.main.members])
                self._walk, self._slack = None, _SLACK[self._exact]
                continue
            ranks = self.ranks(self.main.base, places)
            if self.reached == 1 and len(places) > _FEW:
                raise Stop(Outcome.NOT_THIS_CLASS, "all outputs are multiples of one: nothing tells units apart")
            if ranks and ranks[-1] > self.dimension:
                self._divide(places)
            elif ranks and (ranks[-1] <= _FEW or self.main.failures > _SHARED):
                self._split(0, places[0])
            elif self._through_base or (len(places) >= _SINGLE and ranks[-1] == self.reached * len(places)):
                self._lengthen()
            else:
                self.gather(self._as_far(places) * self._fresh(self.missing(ranks)))

    def _as_far(self, places: list[int]) -> float:
        """How many times as far out as fresh inputs are: units that show there only are told apart there."""
        if not places or not self._anywhere:
            return 1.0
        sizes = np.linalg.norm(self.seen.points[places], axis=1) / np.linalg.norm(self.fresh_point())
        return float(np.median(sizes)) if np.median(sizes) > _FAR else 1.0

    def _lengthen(self) -> None:
        """Ask on a line through the base and one of the first inputs."""
        line, t = self._through_base.next(self.main.members, self._distance)
        start = self.seen.points[0]
        places = self.add((start + t * (self.seen.points[line] - start))[None], self.main)
        self._through_base.add(places, line, t)
        self._gathered += len(places)

    def _distance(self, first: int, second: int) -> float:
        return float(np.linalg.norm(self.rest[second] - self.rest[first]))

    def fresh_point(self) -> Array:
        """Where an input may be."""
        point: Array = self._fresh(1)[0]
        return point

    def missing(self, ranks: list[int]) -> int:
        """How many more points it takes to tell as many units apart as were seen to switch."""
        rank = ranks[-1] if ranks else 0
        needed = -(-(rank + _FREE) // self.reached) + 1
        return max(1, (needed if needed <= MOST else int(_MARGIN * rank / self.reached) + 1) - len(ranks))

    def _divide(self, places: list[int]) -> None:
        """Look where fewer units switch."""
        if self.room(MOST - 1) < ENOUGH:
            self._split(0, places[0])
        elif self.dimension < self.reached * (MOST - 2):  # balls are small then, and as many as units
            if self.reached <= _FEW_OUTPUTS or self.dimension < _WALKED:
                raise Stop(Outcome.NOT_THIS_CLASS, "more units switch than there are inputs: search a line")
            if self._walk is None:
                self._walk, self._slack = Walk(self, Cluster(0, 0.0)), _SLACK_WALKING[self._exact]
            self._walk.go(_STRETCH)
        else:
            Balls(self).ask(places)

    def _split(self, first: int, second: int) -> None:
        """Part two pieces at the point of their segment where their tangents meet, until units stand alone.

        With one unit between them that is a point of its boundary; with several, one between their boundaries.
        """
        pairs = [(first, second, 0)]
        while pairs:
            first, second, depth = pairs.pop()
            apart = self._distance(first, second) > self._error(first, second)
            if apart and not self._single(first, second) and depth <= MOST:
                (middle,) = self.add(self._meeting(first, second)[None], self.main)
                pairs += [(middle, second, depth + 1), (first, middle, depth + 1)]

    def _meeting(self, first: int, second: int) -> Array:
        """Where on the segment between two answers their tangents meet, by the median of outputs; else its middle.

        Every output's tangents meet at an average of the boundaries, weighted by its own jumps there.
        """
        difference = self.rest[second] - self.rest[first]
        start, end = self._homogeneous([first, second])
        values, slopes = difference @ start, difference @ (end - start)
        meetings = -values[slopes != 0] / slopes[slopes != 0]
        inside = meetings[(meetings > _EDGE) & (meetings < 1 - _EDGE)]
        share = float(np.median(inside)) if len(inside) else 0.5
        point: Array = self.seen.points[first] + share * (self.seen.points[second] - self.seen.points[first])
        return point
