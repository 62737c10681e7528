"""The next layer: where to ask for its units, and which of them are proved."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from relumine.oracle.base import Array
from relumine.reconstruct.deep.follow import REACH, Follower, complement
from relumine.reconstruct.deep.last import LastLayerFit, hidden_switches, last_layer
from relumine.reconstruct.deep.layers import Layers, Mask
from relumine.reconstruct.deep.pullback import PulledBack
from relumine.reconstruct.deep.regions import FURTHER, JUST_ON, Region, cell_around, views
from relumine.reconstruct.deep.search import Search
from relumine.reconstruct.deep.units import Sighting, Unit, crossings, gather, sightings
from relumine.reconstruct.deep.walk import walk

# A unit of the next layer shows wherever it is crossed; this leaves room for kinks that were too close to tell apart.
_SHOWS = 0.75
# Half the length of the short stretch that proves a unit at another place.
_ACROSS = 1e-2
# A stretch may be this oblique to the boundary it is to cross.
_STEEP = 0.05
# A region is searched within this distance of the origin in every coordinate.
_REACH = 4.0
# Of this many points the closest is connected with one at which a missing unit is on.
_OTHERS = 20
# What may be of a deeper layer is aimed at by this many stretches at once.
_BOLD = 12
# At most this many regions next to where a unit was seen are tried for a place to see it again.
_NEIGHBOURS = 12
# A boundary is followed from at most this many of the places where it was seen.
_STARTS = 12
# At most this many units whose row is known in part are taken into the last layer, with numbers no larger than this.
_FILLED = 6
_LARGEST = 1e3
# Attempts at seeing a unit.
_PATIENCE = 4


@dataclass
class Hint:
    """Where a missing unit may be: a direction of the features, answered points at which it is on."""

    along: Array | None = None
    suspects: NDArray[np.intp] = field(default_factory=lambda: np.empty(0, dtype=np.intp))


class NextLayer:
    """Finds the layer behind ``layers``."""

    def __init__(self, layers: Layers, search: Search) -> None:
        self.layers = layers
        self.search = search
        self.same = search.precision.same
        self.back = PulledBack(layers, search.book, search.precision)
        self.units: list[Unit] = []
        self._seen = 0
        self._witnessed: set[tuple[int, int]] = set()
        self._followed: set[int] = set()
        self._explored = 0
        self._bounds = search.offer.box or (-_REACH, _REACH)
        self._views = views(layers, self._bounds, search.rng) if len(layers) else []
        # Regions of all layers but the last are wider, and many features of the one before it are on there as well.
        self._wide = views(layers.below, self._bounds, search.rng) if len(layers) > 1 else []

    @property
    def wide(self) -> bool:
        """Whether there are more features than inputs, so that a normal cannot be pulled back."""
        return len(self.layers) > 0 and self.layers.widths[-1] > self.search.book.points.shape[1]

    # -- what is known

    def update(self) -> None:
        """Take note of the kinks seen since."""
        steps = self.search.book.steps(self._seen)
        if len(steps.left):
            new = sightings(self.layers, self.search.book.points, steps, self.search.precision, self._seen)
            self.units = gather(self.units, new, self.same)
            self._seen += len(steps.left)

    def witness(self, fit: LastLayerFit) -> None:
        """Take note of what answers show that all units but a missing one explain, as the last layer's."""
        if (len(fit.wrong), fit.last.units) in self._witnessed:
            return
        self._witnessed.add((len(fit.wrong), fit.last.units))
        self.units = gather(self.units, hidden_switches(self.layers, fit, self.search.book, self.same), self.same)

    def filled(self, fit: LastLayerFit) -> LastLayerFit:
        """The fit with units added whose row is known in part, if that explains more answers.

        Where a feature is never seen on at a unit's boundary, the unit does not switch while the feature is on: any
        number that keeps it from switching at the answered points is as good as the true one.
        """
        book, search = self.search.book, self.search
        parts = [unit for unit in self.units if not unit.complete and len(unit.lines) > 1]
        for unit in sorted(parts, key=lambda each: -len(each.seen))[:_FILLED]:
            for row in _fillings(unit, self.layers.features(book.points)):
                rows, biases = np.vstack([fit.last.rows, row]), np.append(fit.last.biases, unit.plane[1])
                better = last_layer(self.layers, rows, biases, book, search.rng, search.precision)
                if better is not None and len(better.wrong) < len(fit.wrong):
                    fit = better
                    break
            if not len(fit.wrong):
                break
        return fit

    @property
    def numbers(self) -> int:
        """How many numbers are known of the rows of units that were seen on several lines."""
        return sum(int(unit.shown.sum()) for unit in self.units if len(unit.lines) > 1)

    def proved(self) -> tuple[Array, Array]:
        """Rows and biases of the units that are complete and were seen wherever they had to show, twice at least.

        A deeper unit that passes for one of this layer depends linearly on true ones, which fail to show less often.
        """
        self.update()
        rows, biases = self._complete()
        chosen, _ = _independent(rows, self._sure(rows, biases))
        return rows[chosen], biases[chosen]

    def _sure(self, rows: Array, biases: Array) -> NDArray[np.intp]:
        """Which units showed often enough, the surest first."""
        crossed, shown = self._crossings(rows, biases)
        sure = np.flatnonzero((shown >= 2) & (shown >= _SHOWS * crossed))
        # As surely as a unit shows that failed to do so once more (cf. Laplace): much evidence counts, and failures do.
        return sure[np.argsort(-(shown[sure] + 1) / (crossed[sure] + 2), kind="stable")]

    def _complete(self) -> tuple[Array, Array]:
        planes = [unit.plane for unit in self.units if unit.complete]
        width = self.layers.widths[-1] if len(self.layers) else self.search.book.points.shape[1]
        return np.array([row for row, _ in planes]).reshape(-1, width), np.array([bias for _, bias in planes])

    def _crossings(self, rows: Array, biases: Array) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        return crossings(self.layers, self.search.book, rows, biases, self.search.precision)

    # -- asking

    def explore(self, hint: Hint, stuck: bool) -> None:
        """Ask where something new may show; further afield where nothing new showed lately."""
        self._explored += 1
        turn, other = divmod(self._explored, 2)
        if not self._views or (stuck and turn % 2 and not self._wide):
            self.search.whole_line()
        elif stuck and turn % 2:
            self._connect(None, self._wide[turn // 2 % len(self._wide)], far=True)
        elif other:
            self._connect(hint.along, self._views[0])  # it shows most
        elif len(hint.suspects):
            self._bridge(hint.suspects, np.setdiff1d(np.arange(self.search.book.count), hint.suspects))
        else:
            self._follow_rest(hint, turn)

    def _follow_rest(self, hint: Hint, turn: int) -> None:
        """Look where gradients are not explained by the units that are proved."""
        missing = self.back.missing(self.proved()[0])
        if missing is None or not len(missing.wrong) or turn % 3 == 0:
            self._connect(hint.along, self._views[turn % len(self._views)])
        elif len(missing.right) and turn % 3 == 1:
            self._bridge(missing.wrong, missing.right)
        else:
            # In this direction the units that are known do not change, and the missing ones do.
            self._connect(np.linalg.svd(missing.rest)[2][0], self._views[0])

    def _connect(self, along: Array | None, cell: Region, far: bool = False) -> None:
        """Search between two points of a region: any two, or those that lie furthest along some direction."""
        rng = self.search.rng
        if along is None and not far:
            ends = cell.inside(rng), cell.inside(rng)
        else:
            along = rng.standard_normal(len(cell.on)) if along is None else along
            blur = 0.1 * rng.standard_normal((2, len(along))) / np.sqrt(len(along))
            ends = cell.extreme(along + blur[0], rng), cell.extreme(blur[1] - along, rng)
        if ends[0] is not None and ends[1] is not None:
            self.search.stretch(ends[0], ends[1])

    def _bridge(self, wrong: NDArray[np.intp], right: NDArray[np.intp]) -> None:
        """Search between a point at which a missing unit is on and the closest one of some at which it is off."""
        rng, points = self.search.rng, self.search.book.points
        if not len(right):
            return
        start = points[rng.choice(wrong)]
        others = points[rng.choice(right, min(_OTHERS, len(right)), replace=False)]
        stop = others[int(np.argmin(np.linalg.norm(others - start, axis=1)))]
        # Both have been asked before: go a little further, which shows nothing less.
        beyond = rng.uniform(0.001, 0.01, 2)
        self.search.stretch(start + beyond[0] * (start - stop), stop + beyond[1] * (stop - start))

    def prove(self) -> None:
        """See units that were seen once at another place: those of the next layer show there, deeper ones do not."""
        self.update()
        complete = [unit for unit in self.units if unit.complete] if self._views else []
        for unit in complete:
            row, bias = unit.plane
            crossed, shown = self._crossings(row[None], np.array([bias]))
            if crossed[0] <= 2 and _SHOWS * crossed[0] <= shown[0] < 2:
                self._across(unit)
        rows, biases = self._complete()
        _, contested = _independent(rows, self._sure(rows, biases))
        for i in contested if complete else []:
            if complete[i].contested < _PATIENCE:
                complete[i].contested += 1
                self._across(complete[i])

    def follow(self) -> None:
        """Follow boundaries that no unit explains yet, in a region with more features than inputs."""
        self.update()
        follower = Follower(self.layers, self.search)
        for _ in range(_BOLD):
            kinks, steps = self.search.book.kinks()
            at = np.flatnonzero(steps.kinked)
            at = at[~self.layers.with_layer(*self._complete()).explains(kinks[at], self.search.precision.kink)]
            at = np.setdiff1d(at, np.array(sorted(self._followed), dtype=np.intp))
            at = at[np.abs(kinks[at]).max(axis=1, initial=0) < REACH]
            if not len(at):
                return
            i = int(self.search.rng.choice(at))
            self._followed.add(i)
            boundary = follower.boundary(kinks[i], steps.normals[i])
            if follower.follow(boundary):
                row = boundary.weights / np.linalg.norm(boundary.weights)
                bias = -float(row @ self.layers.features(boundary.point[None])[0])
                seen = Sighting(row, boundary.known, bias, i, -1 - i, boundary.point)
                self.units = gather(self.units, [seen], self.same)

    def aim(self, leads: set[int], bold: bool) -> None:
        """See units whose row is not known on every feature where the missing features are just on.

        What was seen on one line only may be of a deeper layer: unless ``bold``, it is left alone if it is no lead.
        """
        self.update()
        open_ = [unit for unit in self.units if not unit.complete and unit.aimed < _PATIENCE] if self._views else []
        worth = [unit for unit in open_ if len(unit.lines) > 1 or any(one.step in leads for one, _ in unit.seen)]
        if bold:
            others = [unit for unit in open_ if unit not in worth]
            worth += sorted(others, key=lambda unit: (unit.aimed, -int(unit.shown.sum())))[:_BOLD]
        for unit in worth:
            unit.aimed += self._across(unit)

    def _across(self, unit: Unit) -> bool:
        """A short stretch across the unit's boundary, where it shows most that is not known; False without a place."""
        for cell in self._places(unit):
            unknown = cell.on & ~unit.shown
            point = cell.inside(self.search.rng, on_plane=unit.plane, small=unknown if unknown.any() else None)
            if point is not None:
                return self._stretch_at(unit, point, cell.slope, unknown)
        return not unit.complete and self._walk(unit)

    def _stretch_at(self, unit: Unit, point: Array, slope: Array, unknown: Mask) -> bool:
        """A short stretch across the unit's boundary at this point of it, where these features are just on.

        It keeps its distance from these features' boundaries: what is not known of the row moves the unit's boundary a
        little, and may even turn it around.
        """
        normal = unit.plane[0] @ slope
        free = complement(slope[unknown])
        along = free.T @ (free @ normal)
        steepness = float(np.linalg.norm(along) / np.linalg.norm(normal))
        if steepness < _STEEP:
            along, steepness = normal, 1.0
        along *= (_ACROSS + 4 * JUST_ON * unknown.sum() / steepness) / np.linalg.norm(along)
        return self.search.stretch(point - along, point + along)

    def _walk(self, unit: Unit) -> bool:
        """The same where the boundary leads, from region to region; False if it was not found to lead anywhere new."""
        rng = self.search.rng
        starts = np.array([one.point for one, _ in unit.seen])
        starts = starts[rng.permutation(len(starts))[:_STARTS]]
        reach = FURTHER * self._bounds[1]
        for feature in rng.permutation(np.flatnonzero(~unit.shown)):
            for spread in (0.0, 1.0):
                blurred = starts + spread * rng.standard_normal(starts.shape)
                points = walk(self.layers, unit.plane, unit.shown, int(feature), blurred, reach)
                if len(points):
                    slope = self.layers.feature_slopes(points[:1])[0]
                    return self._stretch_at(unit, points[0], slope, np.arange(len(slope)) == feature)
        return False

    def _places(self, unit: Unit) -> Iterator[Region]:
        """Regions in which the unit may show something new: those that show much, then neighbours of where it was."""
        rng = self.search.rng
        if unit.complete:
            yield from (self._views[i] for i in rng.permutation(len(self._views)))
            return
        new = [cell for cell in self._views if np.any(cell.on & ~unit.shown)]
        yield from sorted(new, key=lambda cell: -int((cell.on & ~unit.shown).sum()))
        for feature in rng.permutation(np.flatnonzero(~unit.shown))[:_NEIGHBOURS]:
            one, _ = unit.seen[int(rng.integers(len(unit.seen)))]
            yield cell_around(self.layers, one.point, self._bounds, flip=int(feature))


def _fillings(unit: Unit, features: Array) -> list[Array]:
    """The unit's row with one number for all features not shown, large enough to keep the unit on, or off, there."""
    row, bias = unit.plane
    unknown = features[:, ~unit.shown].sum(axis=1)
    there = unknown > 0
    known = features[there] @ (row * unit.shown) + bias
    rows = []
    for side in (-1.0, 1.0):
        least = float((-side * known / unknown[there]).max(initial=0))
        if least < _LARGEST:
            rows.append(np.where(unit.shown, row, side * (1.1 * least + 0.1)))
    return rows


def _independent(rows: Array, order: NDArray[np.intp]) -> tuple[list[int], list[int]]:
    """Those of the rows, in this order, that do not depend on the ones before; and those that take part in dependences.

    If there are more than can be independent all are taken, and none is contested.
    """
    if len(order) > rows.shape[1]:
        return [int(i) for i in order], []
    chosen: list[int] = []
    contested: set[int] = set()
    for i in order:
        factors = np.linalg.lstsq(rows[chosen].T, rows[i], rcond=None)[0] if chosen else np.empty(0)
        if np.linalg.norm(rows[i] - factors @ rows[chosen]) > 1e-5:
            chosen.append(int(i))
        else:
            contested |= {int(i), *(chosen[j] for j in np.flatnonzero(np.abs(factors) > 1e-5))}
    return chosen, sorted(contested)
