"""A linear head: W = J·J_φ⁺ from one gradient query, and the bias from its value."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from relumine.oracle.base import Array
from relumine.reconstruct.head.asker import HeadAsker, Observation, logits_of
from relumine.reconstruct.network import Network
from relumine.reconstruct.verification import TOLERANCE

# Combinations of logits that were explained are solved for the logits up to this condition number.
_CONDITION = 1e4
# Values asked per unknown where gradients explain too few of the outputs: twice as many average rounding.
_VALUES = 2
# Up to this many features that were off are cheaper by values than by another gradient query.
_FEW = 20
# By how many errors what two gradients say of one head may differ.
_ERRORS = 50.0


@dataclass(frozen=True, eq=False)
class LinearHead:
    """The head that explains all answers so far, and which of its features' weights they determine."""

    network: Network
    determined: NDArray[np.bool_]


def linear_head(asker: HeadAsker, points: list[int]) -> Network | None:
    """A head that equals the target at these inputs, from as few gradient queries as it takes; None if none is linear.

    One query does where its answer explains all outputs and its input has nearly all features on. Every further one is
    asked where an output or features show that no earlier answer showed.
    """
    tolerance = TOLERANCE[asker.offer.dtype]
    wanted: int | None = 0
    while wanted is not None:
        with asker.meter.phase("search"):
            asker.observe(wanted)
        seen = list(asker.asked.values())
        if len(seen) > 1 and bends(seen):
            return None
        wanted = _next(asker, seen)
        if not seen or (_unexplained(asker, seen) and wanted is not None):
            continue
        head = _with_values(asker, solved(asker, seen), points)
        if head is not None and asker.gaps(head, points)[0].max() <= tolerance:
            return head
    one = asker.offer.gradient_rows < asker.offer.outputs
    return _from_values(asker, points, tolerance) if one else None


def bends(seen: list[Observation]) -> bool:
    """Whether two answers about the same outputs differ: the head is not linear."""
    first, last = seen[0], seen[-1]
    if not np.array_equal(first.combinations, last.combinations):
        return False
    both = first.pulled.known & last.pulled.known
    size = float(np.sqrt(np.mean(first.pulled.rows[:, both] ** 2))) if both.any() else 0.0
    allowed = _ERRORS * (first.pulled.error + last.pulled.error) * size
    return bool(np.abs(first.pulled.rows - last.pulled.rows)[:, both].max(initial=0) > allowed)


def _combinations(asker: HeadAsker, seen: list[Observation]) -> Array:
    """Stacked Q; logits behind a softmax are known up to a common number, which is taken to have no weights."""
    K = asker.offer.outputs
    common = [np.ones((1, K))] if asker.offer.values == "probabilities" and K > 1 else []
    return np.concatenate([*(one.combinations for one in seen), *common])


def _unexplained(asker: HeadAsker, seen: list[Observation]) -> bool:
    """Whether some output is not determined by the gradients so far."""
    sizes = np.linalg.svd(_combinations(asker, seen), compute_uv=False)
    return len(sizes) < asker.offer.outputs or sizes[-1] * _CONDITION < sizes[0]


def _next(asker: HeadAsker, seen: list[Observation]) -> int | None:
    """The input to ask next: where an output is on top that was not, or most features are on that were off."""
    left = asker.unasked
    if not left:
        return None
    if seen and _unexplained(asker, seen):
        if asker.offer.gradients != "top":
            return None
        tops = {int(one.logits.argmax()) for one in seen}
        labels = asker.values(left[: 20 * asker.offer.outputs]).argmax(axis=1)
        return next((i for i, label in zip(left, labels, strict=False) if int(label) not in tops), None)
    known = np.zeros(asker.backbone.features, dtype=bool)
    for one in seen:
        known |= one.pulled.known
    gains = asker.on[left] @ (asker.live & ~known)
    return left[int(gains.argmax())] if gains.max(initial=0) > 0 else None


def _with_values(asker: HeadAsker, head: LinearHead, points: list[int]) -> Network | None:
    """The head with the weights of a few features that were off by least squares over values; None if these are many.

    Features that are off at every input weigh nothing.
    """
    missing = asker.live & ~head.determined
    if not missing.any():
        return head.network
    if missing.sum() > _FEW:
        return None
    others = np.setdiff1d(np.arange(len(asker.rows)), points)
    shown = asker.on[others][:, missing]
    # Of every feature the inputs at which it is largest: rounding hides small ones.
    sizes = np.where(shown, np.abs(asker.features[others][:, missing]), -np.inf)
    largest = np.argsort(-sizes, axis=0)[: _VALUES * 2]
    places = [int(i) for i in np.unique(others[largest])]
    values = logits_of(asker.offer, asker.values(places))
    clear = np.isfinite(values).all(axis=1)
    left = (values - head.network.logits(asker.features[places]))[clear]
    (W,), (b,) = head.network.weights, head.network.biases
    W = W.copy()
    W[:, missing] = np.linalg.lstsq(asker.features[places][clear][:, missing], left, rcond=None)[0].T
    return Network((W,), (b,), head.network.inputs, values=head.network.values)


def solved(asker: HeadAsker, seen: list[Observation]) -> LinearHead:
    """W by least squares over all answers, feature by feature: each from the answers that show it."""
    K, F = asker.offer.outputs, asker.backbone.features
    W, determined = np.zeros((K, F)), np.zeros(F, dtype=bool)
    known = np.array([one.pulled.known for one in seen])
    for pattern in np.unique(known, axis=1).T:
        some = [one for one, shows in zip(seen, pattern, strict=True) if shows]
        if not some or _unexplained(asker, some):
            continue
        here = (known == pattern[:, None]).all(axis=0)
        Q, rows = _combinations(asker, some), np.concatenate([one.pulled.rows[:, here] for one in some])
        rows = np.concatenate([rows, np.zeros((len(Q) - len(rows), rows.shape[1]))])
        W[:, here] = np.linalg.lstsq(Q, rows, rcond=None)[0]
        determined |= here
    bias = np.mean([one.logits - W @ one.features for one in seen], axis=0)
    return LinearHead(Network((W,), (bias,), (F,), values=asker.offer.values), determined)


def _from_values(asker: HeadAsker, points: list[int], tolerance: float) -> Network | None:
    """W and b by least squares over values, where gradients do not explain all outputs."""
    offer, count = asker.offer, int(asker.live.sum()) + 1
    places = [i for i in range(len(asker.rows)) if i not in set(points)][: _VALUES * count]
    if len(places) < count:
        return None
    values = logits_of(offer, asker.values(places))
    clear = np.isfinite(values).all(axis=1)
    middle = np.median(asker.features[places], axis=0)
    system = np.hstack([asker.features[places] - middle, np.ones((len(places), 1))])[clear]
    sizes = np.linalg.norm(system, axis=1, keepdims=True)  # rounding errors are in proportion to them
    solution = np.linalg.lstsq(system / sizes, values[clear] / sizes, rcond=float(np.finfo(offer.dtype).eps))[0].T
    W = solution[:, :-1]
    head = Network((W,), (solution[:, -1] - W @ middle,), (asker.backbone.features,), values=offer.values)
    return head if asker.gaps(head, points)[0].max() <= tolerance else None
