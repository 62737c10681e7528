"""Convolutional: convolutional networks from gradients of all outputs."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from relumine.errors import BudgetError, MisuseError
from relumine.oracle.base import Array, Offer, Oracle
from relumine.oracle.logits import LogitLink
from relumine.oracle.metering.metered import Metered, metered
from relumine.reconstruct.convolutional.architecture import Architecture, nothing
from relumine.reconstruct.convolutional.channels import Channels
from relumine.reconstruct.convolutional.clone import ConvolutionalNetwork
from relumine.reconstruct.convolutional.dense import Dense, dense_layers
from relumine.reconstruct.convolutional.features import Pulled, lacks, pulled
from relumine.reconstruct.convolutional.layers import Front, Geometry, Layer, Shape, Stage
from relumine.reconstruct.convolutional.segments import Segments, texture
from relumine.reconstruct.convolutional.sightings import Change, Observation, sightings_in
from relumine.reconstruct.convolutional.student import HIDDEN, STUDIED, Start, fitted, ordinary
from relumine.reconstruct.noise import Noise, noise_in
from relumine.reconstruct.result import Evidence, Outcome, Reconstruction, Stop, attempt
from relumine.reconstruct.verification import TOLERANCE, Met, met
from relumine.reconstruct.verification.domain import Domain

if TYPE_CHECKING:
    import torch

# How much two directions may differ that are the same, by the precision of the answers.
_TOLERANCE = {"float64": 1e-6, "float32": 3e-3}
# So many segments in a row without anything new end the search for channels.
_PATIENCE = 90
# Every so many of them are spent on biases that are missing, and so many without anything new make it worth while to
# take away what proved channels explain, everywhere.
_CROSSED, _AGAIN = 6, 5
# Biases that are sought in one large image.
_TOGETHER = 3
# And so many without anything new, ways to where answers show that a channel is missing.
_RARE = 4
# Points at first for the dense layers, more of them at a time, how often, and images to choose these from.
_POINTS, _MORE, _ROUNDS, _IMAGES = 24, 24, 25, 200
# Largest gap of a recovered clone in float64: several least squares follow each other. A unit that is missing was
# seen to leave 1e-5 or more.
_GAP = 1e-7
# So often a clone is mended at points where it is wrong, and so many of them are asked at a time.
_MENDED, _WRONG = 8, 3
# Each with a point beside it, this part of its size away, since units that switched together are to be told apart.
_BESIDE = 0.3
# So many outputs tell units apart that switch together.
_OUTPUTS = 3


@dataclass(frozen=True)
class Convolutional:
    """Reconstruct convolutions, ReLUs, pools and dense layers exactly, from gradients of all outputs.

    architecture: a torch module whose convolutions and pools are like the target's (its parameters do not matter), or
        a tuple of ``Stage``. None: as many layers as can be told are, and a student guesses the rest
    inputs: the owner's inputs, n×d or n×shape: where to search besides, and where a clone must be right
    limit: give up after this many gradient queries
    steps: how long a student learns that starts from what is proved where the whole is not; 0 fits none
    """

    architecture: "torch.nn.Module | tuple[Stage, ...] | None" = field(default=None, repr=False)
    inputs: Array | None = field(default=None, repr=False, compare=False)
    limit: int = 1000
    steps: int = 1000

    def __post_init__(self) -> None:
        if self.limit < 10:
            raise MisuseError(f"Convolutional: expected limit >= 10, got {self.limit}")

    def __call__(self, oracle: Oracle, rng: int | np.random.Generator | None = None) -> Reconstruction:
        shape = _checked(oracle.offer)
        stages = _stages(self.architecture, shape)
        meter = metered(oracle)
        before = meter.spent
        domain = Domain.as_they_are(oracle.offer, self.inputs)
        run = _Run(self, stages, shape, meter, domain, np.random.default_rng(rng))
        outcome, remark = attempt(run.reconstruct)
        evidence, proved = run.evidence(remark), None
        if outcome is not Outcome.RECOVERED and run.proved.layers:
            proved = ConvolutionalNetwork(run.proved)
        if outcome in STUDIED and self.steps and run.observations:
            run.clone, evidence = run.student(outcome, remark)
            outcome = Outcome.FITTED
        return Reconstruction(run.clone, outcome, meter.spent.since(before), evidence, repr(self), proved)


def fits(offer: Offer) -> bool:
    """Whether it can ask what is offered."""
    told = offer.gradients == "all" and offer.values not in ("label", "none")
    return told and len(offer.inputs) == 3 and offer.outputs >= _OUTPUTS and not offer.random


def _checked(offer: Offer) -> Shape:
    if offer.gradients != "all" or offer.values in ("label", "none"):
        raise MisuseError(
            f"Convolutional needs values and gradients of all outputs; the oracle offers values={offer.values!r}, "
            f"gradients={offer.gradients!r}"
        )
    if len(offer.inputs) != 3:
        raise MisuseError(f"Convolutional: expected images (channels, height, width), got inputs {offer.inputs}")
    if offer.outputs < _OUTPUTS:
        raise MisuseError(
            f"Convolutional: expected {_OUTPUTS} outputs or more, whose changes tell units; got {offer.outputs}"
        )
    return offer.inputs[0], offer.inputs[1], offer.inputs[2]


def _stages(
    architecture: "torch.nn.Module | tuple[Stage, ...] | None", shape: Shape
) -> tuple[tuple[Stage, ...], tuple[int, ...]]:
    """The convolutional stages, and the units of hidden dense layers, which are told for a student."""
    if architecture is None or isinstance(architecture, tuple):
        return architecture or (), HIDDEN
    from relumine.reconstruct.convolutional.torch_module import architecture_of

    return architecture_of(architecture, shape)


class _Run:
    """The state of one reconstruction."""

    def __init__(
        self,
        settings: Convolutional,
        stages: tuple[tuple[Stage, ...], tuple[int, ...]],
        shape: Shape,
        meter: Metered,
        domain: Domain,
        rng: np.random.Generator,
    ) -> None:
        self.settings, self.shape = settings, shape
        self.stages, self.hidden = stages
        self.meter, self.domain, self.rng = meter, domain, rng
        self.oracle: Oracle = LogitLink(meter) if meter.offer.values == "probabilities" else meter
        self.front = self.proved = Front(shape)
        self.missing = ""
        self.clone: ConvolutionalNetwork | None = None
        self.noise: Noise | None = None
        self.met: Met | None = None
        self.observations: list[Observation] = []
        self.channels: dict[int, Channels] = {}
        images = domain.samples if settings.steps else domain.samples[:0]
        self.ordinary = ordinary(meter.offer, images, settings.limit, rng)
        self.searching = settings.limit - len(self.ordinary)
        self.segments = Segments(shape, self.ask, self.start, self.error, rng)
        self.scale = float(domain.samples.std()) if len(domain.samples) else 1.0

    # -- asking

    def ask(self, point: Array) -> Observation:
        """The target at this point, as logits."""
        if len(self.observations) >= self.searching:
            remark = f"{self.report()}; {len(self.observations):,} gradient queries are the limit"
            raise Stop(Outcome.INCOMPLETE, remark)
        at = self.domain.representable(point)
        answer = self.oracle(at[None], gradients=True)
        if np.isnan(answer.values).any():
            raise Stop(Outcome.SATURATED)
        self.noise = self.noise or noise_in(answer.jacobians.ravel(), self.meter.offer.dtype)
        self.observations.append(Observation(at, answer.values[0], answer.jacobians[0]))
        return self.observations[-1]

    def start(self) -> tuple[Array, Array]:
        """A random image; every second one is the owner's, where there are any, with a texture on top."""
        image, strength = texture(self.shape, self.rng)
        image, strength = image * self.scale, strength * self.scale
        if len(self.domain.samples) and self.rng.integers(2):
            image = self.domain.samples[self.rng.integers(len(self.domain.samples))] + 0.1 * image
        return image, strength

    def error(self, seen: Observation) -> float:
        """How much a piece like this may change where nothing switched."""
        assert self.noise is not None
        piece = seen.piece(seen.point)
        return self.noise.of(float(np.linalg.norm(piece)), piece.size)

    @property
    def tolerance(self) -> float:
        assert self.noise is not None
        return _TOLERANCE["float32" if self.noise.floor > 1e-12 else "float64"]

    # -- layers

    def reconstruct(self) -> None:
        """Layer after layer, then the dense ones, then the comparison."""
        with self.meter.phase("calibrate"):
            self.segments.next(self.front, nothing(self.front))
        for stage in self.stages or self.told():
            with self.meter.phase(f"convolution {len(self.front.layers) + 1}"):
                self.front = self.front.and_(self.layer(Geometry(stage, self.front.outputs)))
            if not self.missing:
                # A stage that was guessed is proved by channels found behind it; the first is told by its borders.
                sure = self.settings.architecture is not None or len(self.front.layers) == 1
                self.proved = self.front if sure else Front(self.shape, self.front.layers[:-1])
        self.finish()

    def told(self) -> Iterator[Stage]:
        """Stage after stage, as far as they can be told."""
        told = Architecture(self.shape, self.segments, self.ask, self.start, lambda: self.tolerance, self.rng)
        with self.meter.phase("architecture"):
            stage: Stage | None = told.first()
        while stage is not None:
            self.stages = (*self.stages, stage)
            yield stage
            with self.meter.phase("architecture"):
                stage = told.next(self.front)

    def layer(self, geometry: Geometry) -> Layer:
        """The layer of this geometry behind the front, as far as its channels are found.

        A channel that nothing switches is off everywhere, or shows in the comparison.
        """
        channels = self.channels[len(self.front.layers)] = Channels(geometry, self.tolerance)
        known = channels.layer()
        for change in self.segments.again(self.front, known):
            channels.add(sightings_in(self.front, geometry, change, self.tolerance))
        wanted, futile = geometry.stage.channels, 0
        while futile < _PATIENCE and not channels.whole:
            before = channels.progress
            for change in self.changes(channels, known, futile):
                channels.add(sightings_in(self.front, geometry, change, self.tolerance))
            self.meter.found(sum(len(layer.kernels) for layer in self.front.layers) + len(channels.found))
            futile = futile + 1 if before == channels.progress else 0
            if futile % _AGAIN == _AGAIN - 1 and len(known.kernels) < len((layer := channels.layer()).kernels):
                known = layer
                channels.restart()
                for change in self.segments.again(self.front, known):
                    channels.add(sightings_in(self.front, geometry, change, self.tolerance))
        known = channels.layer()
        if len(known.kernels) < (wanted or len(channels.found)):
            of = "" if wanted is None else f" of {wanted}"
            told = f"of layer {len(self.front.layers) + 1} {len(known.kernels)}{of} channels were found"
            self.missing = self.missing or told
        if not len(known.kernels):
            raise Stop(Outcome.INCOMPLETE, self.report())
        return known

    def changes(self, channels: Channels, known: Layer, futile: int) -> list[Change]:
        """What to look at next: a segment; or, where a bias is missing, now and then an image on which it shows."""
        pending = channels.pending
        if pending and (len(channels.found) == channels.geometry.stage.channels or futile % _CROSSED == _CROSSED - 1):
            channels.orient(pending)
            kernels = np.array([channel.kernel for channel in pending])
            if changes := self.segments.crossing(self.front, known, kernels):
                return changes
            if self.rng.integers(2):
                chosen = self.rng.permutation(kernels)[:_TOGETHER]
                return self.segments.enlarged(self.front, known, np.hstack([chosen, np.zeros((len(chosen), 1))]))
        if futile % _RARE == _RARE - 1 and len(known.kernels):
            whole = self.front.and_(known)
            lacking = [lacks(whole, one) for one in self.segments.starts]
            ends = [one for one, lack in zip(self.segments.starts, lacking, strict=True) if lack]
            begins = [one for one, lack in zip(self.segments.starts, lacking, strict=True) if not lack]
            if ends and begins:
                end = ends[self.rng.integers(len(ends))]
                begin = min(begins, key=lambda one: float(np.linalg.norm(one.point - end.point)))
                return self.segments.towards(self.front, known, begin, end)
        return [self.segments.next(self.front, known)]

    def report(self) -> str:
        """How far it came."""
        sizes = ", ".join(str(len(layer.kernels)) for layer in self.proved.layers)
        told = f"proved convolutional layers: {sizes + ' channels' if sizes else 'none'}"
        return f"{told}; {self.missing}" if self.missing else told

    # -- dense layers and comparison

    def finish(self) -> None:
        """Dense layers until they explain all answers, then the comparison; where it fails, points are added."""
        seen = [pulled(self.front, start) for start in self.segments.starts if not lacks(self.front, start)]
        with self.meter.phase("dense"):
            while len(seen) < _POINTS:
                self.more(seen, self.start()[0])
            found = self.dense(seen)
        for _ in range(_MENDED):
            self.clone = _clone(self.front, found, self.meter.offer)
            with self.meter.phase("verify"):
                tolerance = max(TOLERANCE[self.meter.offer.dtype], _GAP)
                self.met = met(self.clone, self.meter, self.domain, self.rng, tolerance)
            if not len(self.met.wrong):
                return
            misses = np.abs(self.clone.predict(self.met.points) - self.met.values).max(axis=1)
            with self.meter.phase("mend"):
                for i in np.argsort(-misses)[:_WRONG]:
                    point = self.met.points[i]
                    self.more(seen, point)
                    self.more(seen, point + _BESIDE * float(point.std()) * texture(self.shape, self.rng)[0])
                found = self.dense(seen)
        self.doubt()
        raise Stop(Outcome.NOT_VERIFIED, self.report())

    def doubt(self) -> None:
        """What contradicts may be a channel of the last layer: only those before it, which showed it, are proved."""
        self.proved = Front(self.shape, self.proved.layers[: len(self.front.layers) - 1])

    def more(self, seen: list[Pulled], point: Array) -> None:
        """One more observation in terms of features, unless one that is missing is on there."""
        if not lacks(self.front, answer := self.ask(point)):
            seen.append(pulled(self.front, answer))

    def dense(self, seen: list[Pulled]) -> Dense:
        """The dense layers, with more points until images show all that images switch on."""
        for _ in range(_ROUNDS):
            try:
                found = dense_layers(seen, self.rng)
            except np.linalg.LinAlgError:  # features of a wrong architecture need not be in any proportion
                found = None
            images = np.array([self.start()[0] for _ in range(_IMAGES)])
            if found is None:
                chosen = list(range(_MORE))
            else:
                images = self.led(images, found)
                features = ConvolutionalNetwork(self.front).logits(images)
                if not (chosen := found.telling(features, _MORE)):
                    return found
            for i in chosen:
                self.more(seen, images[i])
        self.doubt()
        raise Stop(Outcome.INCOMPLETE, f"{self.report()}; dense layers were not found at {len(seen)} points")

    def student(self, outcome: Outcome, remark: str) -> tuple[ConvolutionalNetwork, Evidence]:
        """A student of the whole that starts from what is proved, from all answers and some of ordinary images."""
        self.searching, before = self.settings.limit, len(self.observations)
        with self.meter.phase("student"), suppress(Stop, BudgetError):
            for point in self.ordinary:
                self.ask(point)
        channels = self.channels.get(len(self.proved.layers))
        start = Start(self.proved, channels, self.stages, self.hidden, self.meter.offer.values, self.clone)
        images = len(self.observations) - before
        clone, evidence = fitted(start, self.oracle.offer, self.observations, images, self.settings.steps, self.rng)
        told = "; ".join(part for part in (remark or outcome.value, start.told, evidence.remark) if part)
        return clone, replace(evidence, noise_floor=self.noise.floor if self.noise else None, remark=told)

    def led(self, images: Array, found: Dense) -> Array:
        """Half of these images as they are, the others changed so that units and features not yet seen together are."""
        from relumine.reconstruct.convolutional.torch_module import ascended

        half = len(images) // 2
        network = _clone(self.front, found, self.meter.offer)
        return np.concatenate([images[:half], ascended(network, images[half:], ~found.shown)])

    def evidence(self, remark: str) -> Evidence:
        """What the outcome rests on."""
        floor = self.noise.floor if self.noise else None
        if self.met is None:
            return Evidence(noise_floor=floor, remark=remark)
        return Evidence(noise_floor=floor, remark=remark).and_met(self.met.gap, len(self.met.points), self.met.where)


def _clone(front: Front, dense: Dense, offer: Offer) -> ConvolutionalNetwork:
    features = prod(front.outputs)
    constant = dense.linear[:, -1]
    if not len(dense.rows):
        return ConvolutionalNetwork(front, (dense.linear[:, :features],), (constant,), None, offer.values)
    skip = None if dense.plain else dense.linear[:, :features]
    weights, biases = (dense.rows[:, :-1], dense.outputs), (dense.rows[:, -1], constant)
    return ConvolutionalNetwork(front, weights, biases, skip, offer.values)
