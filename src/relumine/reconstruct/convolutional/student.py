"""A student that starts from what is proved of a convolutional network, trained on all answers that were paid for.

It is fitted by gradient matching (``relumine.reconstruct.matching``), with the proved channels as they are and free to
move them; held-out answers choose, also between these and a clone that the comparison refused.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from relumine.oracle.base import Answer, Array, Offer, ValueKind
from relumine.oracle.metering.metered import Spent
from relumine.reconstruct.convolutional.channels import Channels
from relumine.reconstruct.convolutional.clone import ConvolutionalNetwork
from relumine.reconstruct.convolutional.layers import Front, Geometry, Layer, Stage
from relumine.reconstruct.convolutional.sightings import Observation
from relumine.reconstruct.matching.method import GradientMatching
from relumine.reconstruct.matching.sources import Medoids
from relumine.reconstruct.result import Evidence, Outcome

# Channels of a layer and units of a hidden dense layer where nothing tells them.
_CHANNELS, HIDDEN = 16, (64,)
# Where a student does what the exact method could not.
STUDIED = (Outcome.INCOMPLETE, Outcome.NOT_VERIFIED, Outcome.BUDGET_EXHAUSTED)
# Ordinary images that are asked for it: this share of the limit, and not more.
_SHARE, _IMAGES = 0.5, 200
# Answers closer to the one before than this part of its size say the same once more: steps on segments do.
_APART = 0.05
# λ that are tried: where layers are known, gradients are matched so well that values may tell more (docs/learned.md).
_WEIGHTS = (0.1, 10.0)
# A rate at which nothing moves.
_STILL = 1e-12
# This share of the ordinary images judges, but not fewer; of fewer images in all none is held out.
_HELD_OUT, _FEWEST, _ENOUGH = 0.1, 5, 20


@dataclass(frozen=True, eq=False)
class Start:
    """What a student starts from.

    proved: the layers that are proved; channels: those found of the next layer, or None
    stages: all convolutional layers, told or guessed; hidden: units of the hidden dense layers
    values: what the clone answers; refused: a clone that the comparison refused, or None
    """

    proved: Front
    channels: Channels | None
    stages: tuple[Stage, ...]
    hidden: tuple[int, ...]
    values: ValueKind
    refused: ConvolutionalNetwork | None = None

    @property
    def rows(self) -> Array:
        """n×(t+1): kernels and biases of the channels that are proved of the next layer."""
        if self.channels is None:
            return np.zeros((0, 0))
        layer = self.channels.layer()
        return np.hstack([layer.kernels, layer.biases[:, None]])

    @property
    def told(self) -> str:
        """What it starts from, in words."""
        count = len(self.proved.layers)
        layers = f"convolutional layer{'s' if count > 1 else ''} 1{f' to {count}' if count > 1 else ''}, proved"
        channels = f"{len(self.rows)} channels of layer {count + 1}"
        parts = [layers] * bool(count) + [channels] * bool(len(self.rows))
        return f"a student was fitted that starts from {' and '.join(parts)}" if parts else "a student was fitted"

    def network(self, offer: Offer, rng: np.random.Generator) -> ConvolutionalNetwork:
        """The student as it starts: what is not known is random, as torch begins."""
        front, before = Front(self.proved.inputs), np.ones(self.proved.inputs[0])
        known = [np.hstack([layer.kernels, layer.biases[:, None]]) for layer in self.proved.layers]
        known += [self.rows] * bool(len(self.rows))
        for i, stage in enumerate(self.stages):
            geometry = Geometry(stage, front.outputs)
            rows = known[i] if i < len(known) else np.zeros((0, geometry.taps.shape[1] + 1))
            proved = i < len(self.proved.layers)
            count = len(rows) if proved else stage.channels or max(_CHANNELS, len(rows))
            layer, before = _begun(geometry, rows, count, before, rng)
            front = front.and_(layer)
        widths = (prod(front.outputs), *self.hidden, offer.outputs)
        drawn = [_drawn(after, size + 1, rng) for size, after in pairwise(widths)]
        weights, biases = tuple(rows[:, :-1] for rows in drawn), tuple(rows[:, -1] for rows in drawn)
        return ConvolutionalNetwork(front, weights, biases, None, self.values)


def ordinary(offer: Offer, samples: Array, limit: int, rng: np.random.Generator) -> Array:
    """The owner's inputs that are asked for a student: typical ones that differ, where there are many."""
    count = min(int(_SHARE * limit), _IMAGES)
    return samples if len(samples) <= count else Medoids(samples).pick(offer, count, rng)


def fitted(
    start: Start, offer: Offer, seen: list[Observation], images: int, steps: int, rng: np.random.Generator
) -> tuple[ConvolutionalNetwork, Evidence]:
    """The best student of these answers, of which the last ``images`` are of ordinary images, with its evidence.

    offer: what the answers are: logits, where probabilities were asked
    """
    kept = _alike(_apart(seen[: len(seen) - images]), seen[len(seen) - images :])
    points = np.array([one.point for one in kept])
    answer = Answer(np.array([one.values for one in kept]), np.array([one.jacobian for one in kept]))
    judges = np.arange(len(kept))[-max(_FEWEST, int(_HELD_OUT * images)) :] if images >= _ENOUGH else None
    network, seed = start.network(offer, rng), int(rng.integers(2**31))

    def learned(
        begun: ConvolutionalNetwork, frozen: Sequence[int] = (), **how: Any
    ) -> tuple[ConvolutionalNetwork, Evidence]:
        from relumine.reconstruct.convolutional.torch_module import network_of, trainable
        from relumine.reconstruct.matching.student import StudentClone

        method = GradientMatching(trainable(begun, frozen), len(kept), **{"steps": steps, **how})
        result = method.fit(offer, points, answer, seed, Spent(), held_out=judges)
        assert isinstance(result.clone, StudentClone)
        return network_of(result.clone.module, begun), result.evidence

    known = [*(len(layer.kernels) for layer in start.proved.layers), *([len(start.rows)] if len(start.rows) else [])]
    tried = [learned(network, known, weight=weight)[0] for weight in _WEIGHTS]
    tried += [learned(network)[0] for _ in known[:1]]
    tried += [] if start.refused is None else [start.refused]
    # All by the same loss, as they are: after a step of no size.
    told = [learned(one, steps=1, learning_rate=_STILL, relu_smoothing=0.0, weight=1.0)[1] for one in tried]
    best = int(np.argmin([np.inf if one.verification_gap is None else one.verification_gap for one in told]))
    return replace(tried[best], values=start.values), told[best]


def _apart(seen: list[Observation]) -> list[Observation]:
    """Without those that lie so close to the one before that they say the same."""
    kept: list[Observation] = []
    for one in seen:
        if not kept or np.linalg.norm(one.point - kept[-1].point) > _APART * np.linalg.norm(one.point):
            kept.append(one)
    return kept


def _alike(others: list[Observation], images: list[Observation]) -> list[Observation]:
    """Those that lie in the range of the images' values, and these; larger ones would be all that counts."""
    if not images:
        return others
    middle = np.mean([one.values for one in images], axis=0)
    most = max(float(np.linalg.norm(one.values - middle)) for one in images)
    return [*(one for one in others if np.linalg.norm(one.values - middle) <= most), *images]


def _begun(geometry: Geometry, rows: Array, count: int, before: Array, rng: np.random.Generator) -> tuple[Layer, Array]:
    """A layer with these channels and random ones, all as long as torch's are at first, which suits learning rates.

    The scale of a channel is free: ``before`` is what those it reads were divided by, returned is what its own were.
    """
    known = rows.copy()
    known[:, :-1] *= np.repeat(before, (rows.shape[1] - 1) // len(before))
    sizes = np.linalg.norm(known[:, :-1], axis=1) * 3**0.5
    drawn = _drawn(max(count - len(rows), 0), rows.shape[1], rng)
    channels = np.vstack([known / sizes[:, None], drawn])
    return Layer(geometry, channels[:, :-1], channels[:, -1]), np.append(sizes, np.ones(len(drawn)))


def _drawn(count: int, size: int, rng: np.random.Generator) -> Array:
    """Weights and a bias of so many units, as torch draws them."""
    bound = (size - 1) ** -0.5
    return rng.uniform(-bound, bound, (count, size))
