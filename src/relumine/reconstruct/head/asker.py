"""Asking a target behind a backbone: the inputs that may be asked, their features, and what answers say of the head."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import qr

from relumine.oracle.base import Answer, Array, Offer, explained_outputs
from relumine.oracle.logits import in_logits
from relumine.oracle.metering.metered import Recorder
from relumine.reconstruct.head.backbone import Backbone
from relumine.reconstruct.head.pullback import OUTSIDE, Pullback, pulled_back
from relumine.reconstruct.result import Clone, Outcome, Stop
from relumine.reconstruct.verification import gaps
from relumine.reconstruct.verification.domain import rows_of

# Inputs that are looked at, which costs one forward pass of the backbone each and no query.
_INPUTS = 1000
# Of these as many are chosen by their features; the others are random, as a comparison needs them.
_DIFFERENT = 100
# A head with a hidden layer is compared at this many random inputs: no mismatch bounds disagreement by 1 % of them
# (3/N). At 40, the default of methods that choose their inputs, units that switch at one in a hundred were overlooked.
_POINTS = 300
# Numbers of the backbone's Jacobians that are kept for later: half a gigabyte of a float32 target's.
_KEPT = 2**27
# Sizes of inputs that are made up, in units of N(0, I): features far from zero and close to it.
_SIZES = (0.1, 10.0)


@dataclass(frozen=True, eq=False)
class Observation:
    """One answer, with Q·J_head (R×F) ``pulled`` back: Q (R×K) says which combinations of logits were explained.

    whole: by all of J_φ, and not along a row space that was known
    """

    features: Array
    logits: Array
    combinations: Array
    pulled: Pullback
    whole: bool = True


class HeadAsker:
    """Inputs ``rows`` n×d with their ``features`` n×F; asks each at most once with gradients, and once without.

    limit: of gradient queries
    """

    def __init__(
        self, meter: Recorder, backbone: Backbone, inputs: Array | None, limit: int, rng: np.random.Generator
    ) -> None:
        self.meter, self.backbone, self.limit, self.rng = meter, backbone, limit, rng
        self._before = meter.spent.gradient_queries
        self.given = inputs is not None
        rows = _made_up(self.offer, _INPUTS, rng) if inputs is None else rows_of(self.offer, inputs)
        rows = rows.astype(self.offer.dtype).astype(np.float64)
        unique = np.unique(rows, axis=0)
        self.rows = unique[rng.permutation(len(unique))[:_INPUTS]]
        self.features = backbone(self.rows)
        self.on = _on(self.features)
        order = self._order()
        self.rows, self.features, self.on = self.rows[order], self.features[order], self.on[order]
        self.asked: dict[int, Observation] = {}
        self.kept: dict[int, NDArray[np.floating]] = {}

    def _order(self) -> NDArray[np.intp]:
        """First the input with most features on, then those that differ most from all before them, then the others.

        Features in units of their deviation, so that one that is on rarely is met early.
        """
        first = int(self.on.sum(axis=1).argmax())
        standard = (self.features - self.features.mean(axis=0)) / np.maximum(self.features.std(axis=0), 1e-300)
        _, pivots = qr(standard.T, mode="r", pivoting=True)
        different = [int(i) for i in pivots[: min(_DIFFERENT, len(pivots) // 2)] if i != first]
        rest = np.setdiff1d(np.arange(len(self.rows)), [first, *different])
        return np.array([first, *different, *self.rng.permutation(rest)], dtype=np.intp)

    @property
    def offer(self) -> Offer:
        """What the target offers."""
        return self.meter.offer

    @property
    def inner(self) -> Offer:
        """The same of the head alone."""
        return replace(self.offer, inputs=(self.backbone.features,), box=None)

    @property
    def live(self) -> NDArray[np.bool_]:
        """F: features that differ among the inputs; what weighs the others cannot be told from a bias."""
        return np.asarray(np.ptp(self.features, axis=0) > 0)

    @property
    def unasked(self) -> list[int]:
        """Inputs whose gradients were not asked."""
        return [i for i in range(len(self.rows)) if i not in self.asked]

    @property
    def left(self) -> int:
        """How many more may be asked with gradients."""
        return self.limit - (self.meter.spent.gradient_queries - self._before)

    def gradients(self, place: int) -> Answer:
        """The answer at this input, with gradients."""
        if place not in self.asked and self.left <= 0:
            raise Stop(Outcome.INCOMPLETE, f"{self.limit} gradient queries were not enough: allow more")
        return self.meter(self.rows[place : place + 1], gradients=True)

    def compared(self, count: int) -> list[int]:
        """Inputs whose gradients were not asked: those that differ most, and so many random ones, or more."""
        count = max(count, _POINTS)
        return [i for i in self.unasked if i < _DIFFERENT or i >= len(self.rows) - count]

    def observe(self, i: int) -> Observation | None:
        """Ask the gradients at one input; None where probabilities are saturated."""
        if i in self.asked and self.asked[i].whole:
            return self.asked[i]
        values, combinations, gradients = self._explained(self.gradients(i))
        if not np.isfinite(gradients).all():
            self.rows[i] = self.rows[0]  # nothing to be learnt there
            return None
        jacobian = self.backbone.jacobian(self.rows[i])
        pulled = pulled_back(gradients, jacobian, self.offer.dtype)
        if (len(self.kept) + 1) * jacobian.size <= _KEPT:
            self.kept[i] = jacobian.astype(self.offer.dtype)
        if pulled.outside > OUTSIDE[self.offer.dtype]:
            raise Stop(
                Outcome.NOT_THIS_CLASS,
                f"{pulled.outside:.1%} of a gradient cannot have passed through this backbone: the target has another "
                "one, or other weights in it, or what it answers are not gradients",
            )
        self.asked[i] = Observation(self.features[i], values, combinations, pulled)
        return self.asked[i]

    def _explained(self, answer: Answer) -> tuple[Array, Array, Array]:
        """Logits (K), which combinations of them were explained (R×K), and the gradients of these (R×d)."""
        K, offer = self.offer.outputs, self.offer
        one = offer.gradient_rows < K
        if offer.values != "probabilities":
            chosen = explained_outputs(offer.gradients, answer.values)[0]
            return answer.values[0], np.eye(K)[chosen], answer.jacobians[0]
        if not one or K <= 2:
            logits = in_logits(offer, answer)
            return logits.values[0], np.eye(K), logits.jacobians[0]
        # ∇log p_k = Σ_c (δ_kc − p_c)·∇z_c
        values = logits_of(offer, answer.values)[0]
        p, (k,) = answer.values[0], explained_outputs(offer.gradients, answer.values)[0]
        gradients = answer.jacobians[0] / p[k] if p[k] > 0 else np.full_like(answer.jacobians[0], np.nan)
        return values, (np.eye(K)[k] - p)[None], gradients if np.isfinite(values).all() else gradients * np.nan

    def values(self, places: list[int]) -> Array:
        """n×K: the target's values at these inputs."""
        with self.meter.phase("verify"):
            return self.meter(self.rows[places], gradients=False).values

    def gaps(self, head: Clone, places: list[int]) -> tuple[Array, float]:
        """n: how far the head is off at these inputs, relative to the spread of the answers; the share of same tops."""
        answers, features = self.values(places), self.features[places]
        found = gaps(head, self.inner, features, answers, 0.0, 0.0)
        said = head.predict(features)
        same = said.argmax(axis=1) == answers.argmax(axis=1) if said.shape[1] > 1 else (said > 0) == (answers > 0)
        return found, float(np.mean(same))


def logits_of(offer: Offer, values: Array) -> Array:
    """n×K: values, or the logits of probabilities: NaN where they are saturated."""
    return in_logits(offer, Answer(values)).values if offer.values == "probabilities" else values


def _on(features: Array) -> NDArray[np.bool_]:
    """n×F: features that are not at the least of all inputs together with others, as a ReLU that is off is."""
    least = features == features.min(axis=0)
    return np.asarray(~(least & (least.sum(axis=0) > 1)))


def _made_up(offer: Offer, count: int, rng: np.random.Generator) -> Array:
    """Inputs of many sizes; of images every second one has patches of one colour, larger and smaller ones."""
    noise = rng.standard_normal((count, *offer.inputs))
    if len(offer.inputs) >= 2:
        for i in range(1, count, 2):
            noise[i] = _patches(offer.inputs, rng)
    low, high = np.log(_SIZES)
    sizes = np.exp(rng.uniform(low, high, size=count))
    rows: Array = noise.reshape(count, -1) * sizes[:, None]
    if offer.box is None:
        return rows
    low, high = offer.box
    return np.asarray(np.clip((low + high) / 2 + (high - low) / 4 * rows, low, high))


def _patches(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Random numbers on a coarse grid, each repeated over a square of the last two axes."""
    side = int(2 ** rng.integers(1, 5))
    rows, columns = (np.arange(n) // side for n in shape[-2:])
    coarse = rng.standard_normal((*shape[:-2], rows[-1] + 1, columns[-1] + 1))
    return np.asarray(coarse[..., rows, :][..., columns])
