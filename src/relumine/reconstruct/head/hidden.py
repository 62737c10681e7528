"""One hidden layer on a backbone: the tensor of Jacobians in the row space of the head's first layer."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from relumine.oracle.base import Array
from relumine.reconstruct.head.asker import HeadAsker
from relumine.reconstruct.head.subspace import InRowSpace, LeftTheRowSpaceError, RowSpace, row_space
from relumine.reconstruct.network import Network
from relumine.reconstruct.noise import Noise
from relumine.reconstruct.result import Outcome, Stop, attempt
from relumine.reconstruct.tensor.observations import Observations
from relumine.reconstruct.tensor.ordinary import OrdinaryRun

# The share of inputs at which a feature may be on whose weights too few answers determine, and how many queries, per
# row of the first layer, are asked at most to come below it: features that are hardly ever on are not worth more.
RARE, _COVER, _LEAST = 0.01, 0.4, 12


@dataclass(frozen=True)
class _Limits:
    most: int
    points: int


@dataclass(frozen=True, eq=False)
class HiddenHead:
    """What the tensor showed: a head, if any, and what is to be said of it; ``space`` is where it was found."""

    network: Network | None
    outcome: Outcome
    remark: str
    space: InRowSpace


def hidden_head(asker: HeadAsker, points: int) -> HiddenHead:
    """One hidden layer from the asker's inputs, in their order; inputs asked before come first."""
    with asker.meter.phase("search"):
        space = _space(asker)
    best: HiddenHead | None = None
    while True:
        try:
            found = _in(space, asker, points)
        except LeftTheRowSpaceError as left:
            with asker.meter.phase("search"):
                _again(asker, left.place)
                space = _space(asker)
            continue
        if best is not None and found.outcome is not Outcome.RECOVERED:
            return best
        best = found if found.outcome is Outcome.RECOVERED else None
        with asker.meter.phase("search"):
            place = _telling(asker, found) if asker.left and best is not None else None
            if place is not None:
                asker.observe(place)
        better = row_space(asker, list(asker.asked.values()))
        if better is None or better.undetermined.sum() >= space.space.undetermined.sum():
            return found
        space = InRowSpace(asker, better)


def _space(asker: HeadAsker) -> InRowSpace:
    """Ask until further Jacobians show no further row, and nearly no input has a feature on that too few showed."""
    along: InRowSpace | None = None
    while True:
        seen, left = list(asker.asked.values()), asker.unasked
        space = row_space(asker, seen)
        if space is None and not (left and asker.left):
            raise Stop(
                Outcome.INCOMPLETE,
                f"the Jacobians at {len(seen)} inputs show as many rows of the head's first layer as they can: it "
                "takes more inputs, or more queries",
            )
        if space is None:
            asker.observe(left[0])
            continue
        enough = len(seen) >= max(_LEAST, _COVER * len(space.basis)) or not asker.left
        if enough or not left or uncovered(asker, space) <= RARE:
            return InRowSpace(asker, space)
        along = along or InRowSpace(asker, space)
        place = left[int((asker.on[left] @ space.undetermined).argmax())]
        try:
            along.observe(place)
        except LeftTheRowSpaceError:
            _again(asker, place)
            along = None


def _again(asker: HeadAsker, place: int) -> None:
    """All of the Jacobian of the head at an input at which it has more rows than were known."""
    if place not in asker.asked:
        asker.observe(place)


def _telling(asker: HeadAsker, found: HiddenHead) -> int | None:
    """The input to ask next if some unit is known from a single answer, which hides what features weigh that were off.

    It is one where most such units switch, or where most of these features are on.
    """
    if found.network is None or not found.network.hidden or uncovered(asker, found.space.space) <= RARE:
        return None
    on = asker.features @ found.network.weights[0].T + found.network.biases[0] > 0
    switched, left = on != on[next(iter(asker.asked))], asker.unasked
    gains = switched[left] @ (switched[list(asker.asked)].sum(axis=0) == 1)
    if not gains.any():
        gains = asker.on[left] @ found.space.space.undetermined
    return left[int(gains.argmax())] if gains.any() else None


def uncovered(asker: HeadAsker, space: RowSpace) -> float:
    """The share of the inputs at which a feature is on whose weights are not determined."""
    return float(np.mean(asker.on @ space.undetermined > 0))


def _in(space: InRowSpace, asker: HeadAsker, points: int) -> HiddenHead:
    run = HeadRun(_Limits(asker.limit, points), space, asker)
    outcome, remark = attempt(run.reconstruct)
    clone = run.clone()
    if outcome is Outcome.NOT_THIS_CLASS and not asker.left:
        outcome = Outcome.INCOMPLETE
    network = None if clone is None else replace(_of_features(clone, space.space.basis), values=asker.offer.values)
    return HiddenHead(network, outcome, remark, space)


def _of_features(network: Network, basis: Array) -> Network:
    """A function of B·φ as a function of φ."""
    first, *others = network.weights
    skip = None if network.skip is None else network.skip @ basis
    return replace(network, weights=(first @ basis, *others), skip=skip, inputs=(basis.shape[1],))


class HeadRun(OrdinaryRun):
    """An OrdinaryRun whose answers were pulled back, which costs digits; one set of inputs is compared all the time.

    Of those that contradict, the one that is off least is asked next: it differs by one unit most likely, and that
    unit is told from it alone.
    """

    meter: InRowSpace

    def __init__(self, settings: _Limits, space: InRowSpace, asker: HeadAsker) -> None:
        super().__init__(settings, space, asker.rng, space.points[[*asker.asked, *asker.unasked]])
        self._head = asker

    def _first(self) -> Observations:
        seen = super()._first()
        noise = seen.noise
        self.asker.noise = Noise(max(noise.relative, self.meter.error), noise.absolute)
        return Observations(seen.points, seen.values, seen.jacobians, self.asker.noise)

    def _find(self) -> None:
        super()._find()
        asked = self._among(self.meter.points[[*self._head.asked]])
        if asked.any():
            with self.meter.phase("search"):
                self._learn(self._unused[asked])

    def _gather(self) -> None:
        """Ask inputs in their order as long as a further one tells units apart: those that contradict tell more."""
        while not self._enough:
            before, asked = self._units, len(self._head.asked)
            if not len(points := self._next(self._searched.missing(self._left))):
                return
            self._learn(points)
            if 0 < before == self._units and len(self._head.asked) > asked:
                return

    def _among(self, points: Array) -> NDArray[np.bool_]:
        """Which inputs to come are these."""
        return np.asarray((self._unused[:, None] == points).all(axis=2).any(axis=1))

    def _learn(self, points: Array) -> None:
        self._unused = self._unused[~self._among(points)]
        super()._learn(points)

    def _unseen(self, count: int) -> Array:
        return self.meter.points[self._head.compared(count)]

    def _mend(self) -> None:
        while len(wrong := self._wrong()):
            least = wrong[int(self.comparison.misses(self._model())[wrong].argmin())]
            with self.meter.phase("mend"):
                self._learn(self.comparison.points[[least]])
            self._compare()
        with self.meter.phase("mend"):
            self._gather()
