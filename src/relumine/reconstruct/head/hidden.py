"""One hidden layer on a backbone: the tensor of Jacobians in the row space of the head's first layer."""

from dataclasses import dataclass, replace

import numpy as np

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
_RARE, _COVER, _LEAST = 0.01, 0.4, 12


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
    basis: RowSpace


def hidden_head(asker: HeadAsker, limit: int, points: int) -> HiddenHead:
    """One hidden layer from the asker's inputs, in their order; inputs asked before come first."""
    with asker.meter.phase("search"):
        basis = _basis(asker, limit)
    while True:
        space = InRowSpace(asker, basis.basis)
        try:
            return _in(space, basis, asker, limit, points)
        except LeftTheRowSpaceError as left:
            with asker.meter.phase("search"):
                asker.observe(left.place)
                basis = _basis(asker, limit)


def _basis(asker: HeadAsker, limit: int) -> RowSpace:
    """Ask until further Jacobians show no further row, and nearly no input has a feature on that too few showed."""
    while True:
        seen, left = list(asker.asked.values()), asker.unasked
        space = row_space(asker, seen)
        if space is not None:
            enough = len(seen) >= max(_LEAST, _COVER * len(space.basis))
            if enough or not left or len(seen) >= limit or uncovered(asker, space) <= _RARE:
                return space
            asker.observe(left[int((asker.on[left] @ space.undetermined).argmax())])
        elif left and len(seen) < limit:
            asker.observe(left[0])
        else:
            raise Stop(
                Outcome.INCOMPLETE,
                f"the Jacobians at {len(seen)} inputs show as many rows of the head's first layer as they can: it "
                "takes more inputs, or more queries",
            )


def uncovered(asker: HeadAsker, space: RowSpace) -> float:
    """The share of the inputs at which a feature is on whose weights are not determined."""
    return float(np.mean(asker.on @ space.undetermined > 0))


def _in(space: InRowSpace, basis: RowSpace, asker: HeadAsker, limit: int, points: int) -> HiddenHead:
    order = [*asker.asked, *asker.unasked]
    run = HeadRun(_Limits(limit, points), space, asker.rng, space.points[order])
    outcome, remark = attempt(run.reconstruct)
    clone = run.clone()
    if outcome is Outcome.NOT_THIS_CLASS and asker.meter.spent.gradient_queries >= limit:
        outcome = Outcome.INCOMPLETE
    network = None if clone is None else replace(_of_features(clone, basis.basis), values=asker.offer.values)
    return HiddenHead(network, outcome, remark, space, basis)


def _of_features(network: Network, basis: Array) -> Network:
    """A function of B·φ as a function of φ."""
    first, *others = network.weights
    skip = None if network.skip is None else network.skip @ basis
    return replace(network, weights=(first @ basis, *others), skip=skip, inputs=(basis.shape[1],))


class HeadRun(OrdinaryRun):
    """An OrdinaryRun whose answers were pulled back, which costs digits."""

    meter: InRowSpace

    def _first(self) -> Observations:
        seen = super()._first()
        noise = seen.noise
        self.asker.noise = Noise(max(noise.relative, self.meter.error), noise.absolute)
        return Observations(seen.points, seen.values, seen.jacobians, self.asker.noise)

    @property
    def _never_off(self) -> int:
        """Units that no input switches are a linear part of the head wherever it was compared: that is no fault."""
        return 0
