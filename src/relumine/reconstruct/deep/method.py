"""Deep: fully connected ReLU networks with any number of hidden layers, from gradients."""

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from relumine.errors import MisuseError
from relumine.oracle.base import Answer, Array, Oracle
from relumine.oracle.metering.metered import Metered, metered
from relumine.reconstruct.deep.ascent import FEWEST, Ascent, Halted
from relumine.reconstruct.deep.growth import Growth
from relumine.reconstruct.deep.layers import Layers
from relumine.reconstruct.deep.search import Search
from relumine.reconstruct.network import Network
from relumine.reconstruct.result import Evidence, Outcome, Reconstruction, Stop, attempt
from relumine.reconstruct.verification import TOLERANCE, Met, met
from relumine.reconstruct.verification.domain import Domain

# No mismatch at 300 points bounds disagreement by 1 % of them (3/N). Patterns are proved by the signs at every answer,
# and a third of the points are compared.
_POINTS, _FEWER = 300, 3
# Attempts at growing after a comparison failed, and wrong points that are traced in each.
_ATTEMPTS = 8
_TRACES = 3
# Wrong points that are asked at once for a missing unit of the last hidden layer.
_SHOWN = 2
# A network that misses no compared point by more than this part of the tolerance needs no polishing.
_CLOSE = 0.05
# First-layer signals of the points that are to show rare units are spread by so many powers of e.
_SPREAD = 1.5
# Where one is on alone its signal is larger by so many powers of e, a thousandfold, so that biases of the next layer
# matter less: a unit may have no positive weight but one of a thousandth of its bias.
_ALONE = 7.0


@dataclass(frozen=True)
class Deep:
    """Reconstruct x ↦ W_L relu(… relu(W_1 x + b_1) …) + b_L exactly: depth and widths unknown, any number of outputs.

    With two outputs or more, activation patterns show the layers first (ascent.py). Where they do not:
    hyperplanes that return on different lines are the first layer. With some layers known, regions are chosen in which
    as many of their features are on as can be (regions.py); there the next layer looks like a first one, and its
    units are proved in the same way (next.py). The orientation of a unit shows in the gradients that it
    takes part in (pullback.py). Whether a layer is the last, linear least squares on all answers tells
    (last.py). Where the result differs from the target at fresh points, the unit behind that is traced.

    limit: give up after this many gradient queries
    points: how many fresh points to compare, by value queries: as many Gaussian ones as ones made to switch on units
        that rarely are; a third of them if activation patterns showed the network
    seconds: give up after this time
    inputs: the owner's inputs, n×d: where to search, and where a clone must be right
    """

    limit: int = 50_000
    points: int = _POINTS
    seconds: float = 600.0
    inputs: Array | Domain | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.limit < 10 or self.points < 1 or not self.seconds > 0:
            got = f"{self.limit}, {self.points} and {self.seconds}"
            raise MisuseError(f"Deep: expected limit >= 10, points >= 1 and seconds > 0, got {got}")

    def __call__(self, oracle: Oracle, rng: int | np.random.Generator | None = None) -> Reconstruction:
        return self.after(None, oracle, rng)

    def after(
        self, earlier: tuple[Array, Answer] | None, oracle: Oracle, rng: int | np.random.Generator | None = None
    ) -> Reconstruction:
        """The same, beginning with points and answers (with gradients) that another method has paid for."""
        offer = oracle.offer
        if offer.gradients != "all" or offer.values in ("label", "none"):
            raise MisuseError(
                f"Deep needs values and gradients of all outputs; the oracle offers values={offer.values!r}, "
                f"gradients={offer.gradients!r}"
            )
        domain = Domain.of(offer, self.inputs)
        meter = domain.standardised(metered(oracle))
        before = meter.spent
        run = _DeepRun(self, meter, domain, np.random.default_rng(rng))
        outcome, remark = attempt(lambda: run.reconstruct(earlier))
        proved = None if outcome is Outcome.RECOVERED else run.growth.proved()
        spent = meter.spent.since(before)
        return domain.restored(Reconstruction(run.network, outcome, spent, run.evidence(remark), repr(self), proved))


class _DeepRun:
    """The state of one reconstruction."""

    def __init__(self, settings: Deep, meter: Metered, domain: Domain, rng: np.random.Generator) -> None:
        self.settings = settings
        self.meter = meter
        self.rng = rng
        self.search = Search(meter, settings.limit, settings.seconds, domain, rng)
        self.comparison = self.search.comparison
        self.growth = Growth(self.search, meter)
        self.network: Network | None = None
        self.ascent: Ascent | None = None  # the search by activation patterns
        self.patterned = False  # whether activation patterns showed the whole network
        self.gaussian = 0  # so many of the compared points are Gaussian
        self.met: Met | None = None  # the last comparison at all places of the domain

    def reconstruct(self, earlier: tuple[Array, Answer] | None) -> None:
        """Grow a network; where it is wrong, trace what is missing, and grow again."""
        with self.meter.phase("calibrate"):
            self.search.calibrate()
            if earlier is not None:
                self.search.recall(*earlier)
        found = self._by_patterns()
        self.patterned = found is not None
        for _ in range(_ATTEMPTS):
            network = self.growth.network() if found is None else found
            found = None
            if network is None:
                raise Stop(Outcome.INCOMPLETE, self.growth.report())
            self._compare(network)
            wrong = self._wrong(network)
            if self._misses(network).max(initial=0) > _CLOSE * self._tolerance:
                polished = _without_idle(self.search.polished(network), self._tolerance)
                # A network that misses a unit is spoilt by answers that show it.
                if len(self._wrong(polished)) <= len(wrong):
                    network, wrong = polished, self._wrong(polished)
            self.network = network
            if not len(wrong):
                wrong = self._met_elsewhere(network)
            if not len(wrong):
                return
            found = self._mended(network, wrong)
            if found is not None:
                continue
            with self.meter.phase("trace"):
                traced = [self._trace(network, self.comparison.points[i]) for i in self._clearest(wrong)[:_TRACES]]
                if not any(traced):
                    self.search.whole_line()
        raise Stop(Outcome.NOT_VERIFIED, f"{len(wrong)} compared points differ after {_ATTEMPTS} attempts")

    def _by_patterns(self) -> Network | None:
        """The network by activation patterns; None where these do not show all of it."""
        search = self.search
        if search.offer.outputs - (search.offer.values == "probabilities") < FEWEST:
            return None
        most = self.settings.limit // 3
        self.ascent = ascent = Ascent(search.known, self.comparison.fresh, search.offer, search.noise, self.rng, most)
        try:
            with self.meter.phase("patterns"):
                return ascent.network()
        except Halted:
            with self.meter.phase("layer 1"):
                self.growth.first = ascent.first()
            return None

    def _mended(self, network: Network, wrong: NDArray[np.intp]) -> Network | None:
        """The network with what activation patterns show, with answers at some of the points where it is wrong."""
        if self.ascent is None:
            return None
        some = self.rng.permutation(wrong)[:_SHOWN]
        try:
            with self.meter.phase("patterns"):
                mended = self.ascent.mended(network, self.comparison.points[some])
        except Halted:
            mended = None
        if mended is None:
            self.ascent = None
        return mended

    # -- verifying

    @property
    def _tolerance(self) -> float:
        return self.search.precision.compared

    def _compare(self, network: Network) -> None:
        """Ask the values at fresh points; they are compared with every later network."""
        if len(self.comparison.points):
            return
        each = -(-self.settings.points // (2 * _FEWER if self.patterned else 2))
        with self.meter.phase("verify"):
            self.comparison.ask(self.comparison.fresh(each))
            self.gaussian = len(self.comparison.points)
            self.comparison.ask(self._spread(network, each))

    def _met_elsewhere(self, network: Network) -> NDArray[np.intp]:
        """Compare at all places of the domain; which of the compared points, with these among them, are wrong."""
        offer, domain = self.search.offer, self.comparison.domain
        tolerance = max(self._tolerance, TOLERANCE[offer.dtype])
        with self.meter.phase("verify"):
            where = domain if self.met is None else domain.without_samples
            found = self.met = met(network, self.meter, where, self.rng, tolerance, self.search.noise.floor)
        if not len(found.wrong):
            return np.empty(0, dtype=np.intp)
        self.comparison.add(found.points, self.search.as_logits(Answer(found.values)).values)
        wrong = self._wrong(network)
        if not len(wrong):
            raise Stop(Outcome.NOT_VERIFIED, "the clone differs where the probabilities are saturated")
        return wrong

    def _spread(self, network: Network, count: int) -> Array:
        """Points at which few or many units of a layer are on, by much or by little, and those at which one is alone.

        Rare units show at some: one of the next layer, where what it has a positive weight for is on alone.
        """
        if not network.hidden or self.search.offer.box is not None:
            return self.comparison.fresh(count)
        found = [self._reaching(network, depth, count) for depth in range(max(len(network.hidden) - 1, 1))]
        return self.comparison.representable(np.concatenate(found))

    def _reaching(self, network: Network, depth: int, count: int) -> Array:
        """The same for one layer: inputs for signals of any signs, all units below on if that can be."""
        units = network.hidden[depth]
        on = self.rng.uniform(size=(count, units)) < self.rng.uniform(size=(count, 1))
        on = np.concatenate([on, np.eye(units, dtype=bool)])
        alone = on & (on.sum(axis=1, keepdims=True) == 1)  # far inputs of small answers would be rounded too much
        signals = np.exp(_SPREAD * self.rng.standard_normal(on.shape) + _ALONE * alone)
        known = Layers(network.weights[: depth + 1], network.biases[: depth + 1])
        return known.inputs(np.where(on, signals, -signals), self.rng)

    def _misses(self, network: Network) -> Array:
        """n: the largest difference at each compared point, relative to the larger of its answer and the usual one."""
        answers = self.comparison.answers
        usual = float(np.abs(answers[: self.gaussian]).max(initial=0)) or 1.0
        result: Array = np.abs(network.logits(self.comparison.points) - answers).max(axis=1, initial=0)
        return np.asarray(result / np.maximum(usual, np.abs(answers).max(axis=1, initial=0)))

    def _wrong(self, network: Network) -> NDArray[np.intp]:
        return np.flatnonzero(self._misses(network) > self._tolerance)

    # -- tracing

    def _clearest(self, wrong: NDArray[np.intp]) -> NDArray[np.intp]:
        """These points in another order: first those at which most features are on, and most of a row will show."""
        points = self.search.book.inward(self.comparison.points[wrong])
        on = np.zeros(len(wrong))
        for signal in self.growth.layers.signals(points):
            on += (signal > 0).sum(axis=1)
        return wrong[np.argsort(-on, kind="stable")]

    def _trace(self, network: Network, wrong: Array) -> bool:
        """Find the kink behind which the network goes wrong: halve the way from where it is right, by values."""
        right = np.flatnonzero(self._misses(network) <= self._tolerance)
        if not len(right):
            return False
        start = self.comparison.points[self.rng.choice(right)]
        low, high = 0.0, 1.0
        for _ in range(self.search.precision.halvings):
            middle = (low + high) / 2
            point = self.comparison.representable((start + middle * (wrong - start))[None])
            value = self.search.oracle(point, gradients=False).values
            agrees = np.abs(network.logits(point) - value).max() <= 10 * self._tolerance * self.comparison.size
            low, high = (middle, high) if agrees else (low, middle)
        book, beyond = self.search.book, high - low
        ends = [book.inward(start + place * (wrong - start)) for place in (low - beyond, high + beyond)]
        known = len(book.steps().left)
        self.search.stretch(ends[0], ends[1])
        self.growth.leads |= set(range(known, len(book.steps().left)))
        return bool(book.steps(known).kinked.any())

    # -- results

    def evidence(self, remark: str) -> Evidence:
        compared = self.network is not None and len(self.comparison.points) > 0
        gap = float(self._misses(self.network).max()) if self.network and compared else None
        evidence = Evidence(self.search.noise.floor, None, gap, len(self.comparison.points), remark)
        if self.met is None:
            return evidence
        return evidence.and_met(self.met.gap, len(self.met.points), self.met.where)


def _without_idle(network: Network, tolerance: float) -> Network:
    """Without units of the last hidden layer that add nothing, such as those for a linear term that is none."""
    sizes = np.linalg.norm(network.weights[-1], axis=0)
    kept = sizes > tolerance * sizes.max(initial=0)
    if kept.all() or len(network.weights) < 2:
        return network
    weights = (*network.weights[:-2], network.weights[-2][kept], network.weights[-1][:, kept])
    return replace(
        network, weights=weights, biases=(*network.biases[:-2], network.biases[-2][kept], network.biases[-1])
    )
