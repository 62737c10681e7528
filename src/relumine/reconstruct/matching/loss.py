"""The losses of gradient matching: ℓ_M on values, ℓ_G on gradients or explanations, for one backward pass."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from relumine.explain.map_kind import GRADIENT, MapKind
from relumine.explain.methods import Explained, Explanation, Gradient, Of, SmoothGrad, outputs
from relumine.oracle.base import Answer, Array, Offer, explained_outputs
from relumine.reconstruct.matching.shown import distorted_by, gap

# What the student's outputs are compared as. "centred": logits are only known up to a number common to all classes,
# as LogitLink answers them.
Kind = Literal["real", "logits", "centred", "probabilities", "log-probabilities"]

_TINY = float(np.finfo(np.float32).tiny)


def kind_of(offer: Offer, values: Array) -> Kind:
    """What the oracle's values, and so its gradients, are of. Logits that can only be centred, or log p, are told."""
    explained = offer.explained or offer.values
    if explained in {"probabilities", "label"}:
        return "probabilities"
    if explained != "logits" or offer.outputs == 1 or offer.values != "logits":
        return "logits" if explained == "logits" else "real"
    size = np.abs(values).max(initial=1e-30)
    if np.abs(values.mean(axis=1)).max(initial=0) < 1e-6 * size:
        return "centred"
    if np.abs(np.logaddexp.reduce(values, axis=1)).max(initial=0) < 1e-5 * size:
        return "log-probabilities"
    return "logits"


@dataclass(frozen=True, eq=False)
class Matching:
    """Answered questions as tensors, and the losses of a student on them.

    inputs n×shape; values n×K; maps n×R×shape or None; chosen n×R×K says which combinations of outputs the maps
    explain; scale is the mean ‖J‖² of the answers; labels: values are labels, whatever the maps are of.
    """

    inputs: Tensor
    values: Tensor
    maps: Tensor | None
    chosen: Tensor | None
    kind: Kind
    labels: bool
    explanation: Explanation
    shown: MapKind
    distorted: tuple[float, float] | None
    loss: Literal["joint", "gradient", "membership"]
    weight: float
    squared: bool
    scale: float
    spread: float

    @property
    def of(self) -> Of:
        """What the student's outputs are turned into before they are explained."""
        return "logits" if self.kind == "centred" else self.kind

    @property
    def answered(self) -> Of:
        """What the student's outputs are turned into where they stand for the oracle's values."""
        return "probabilities" if self.labels else self.of

    @property
    def linear(self) -> bool:
        """Whether random combinations of maps may be compared in place of maps."""
        return self.explanation.linear and self.shown.linear

    def __len__(self) -> int:
        return len(self.inputs)

    def estimate(self, student: nn.Module, rows: Tensor, rng: np.random.Generator) -> Tensor:
        """An unbiased estimate of the loss on these rows, with one random combination of outputs per input."""
        if self.maps is None or self.chosen is None:
            return self._membership(outputs(student, self.inputs[rows], self.of), rows)
        coefficients = self._coefficients(len(rows), rng)
        return self._losses(student, rows, coefficients, rng)

    def exact(self, student: nn.Module, rows: Tensor, rng: np.random.Generator) -> Tensor:
        """The loss on these rows, all maps compared."""
        if self.maps is None:
            return self._membership(outputs(student, self.inputs[rows], self.of), rows)
        count = self.maps.shape[1]
        every = torch.eye(count).to(self.inputs).expand(len(rows), count, count) * count**0.5
        return self._losses(student, rows, every, rng)

    def _losses(self, student: nn.Module, rows: Tensor, coefficients: Tensor, rng: np.random.Generator) -> Tensor:
        assert self.maps is not None
        assert self.chosen is not None
        directions = coefficients @ self.chosen[rows]
        if self.kind == "centred":
            directions = directions - directions.mean(2, keepdim=True)
        wanted = torch.einsum("nrk,nk...->nr...", coefficients, self.maps[rows])
        compare = self._compared_by_two if isinstance(self.explanation, SmoothGrad) and self.linear else self._compared
        gap, values = compare(student, self.inputs[rows], directions, wanted, rng)
        if self.loss == "gradient":
            return gap
        return gap + self.weight * self._membership(values, rows)

    def _compared(
        self, student: nn.Module, inputs: Tensor, directions: Tensor, wanted: Tensor, rng: np.random.Generator
    ) -> tuple[Tensor, Tensor]:
        """How far the student's maps are from those wanted, and its values."""
        values, maps = self._explained(self.explanation, student, inputs, directions, rng)
        return gap(self.shown, maps, wanted, self.scale), values

    def _compared_by_two(
        self, student: nn.Module, inputs: Tensor, directions: Tensor, wanted: Tensor, rng: np.random.Generator
    ) -> tuple[Tensor, Tensor]:
        """The same for the mean of SmoothGrad's maps, from two gradients: the product of their errors.

        The noise of both is independent, so the product's mean is the square of the mean error. The square of one
        map's error has the student's own noise in it, and to punish that makes students flat.
        """
        assert isinstance(self.explanation, SmoothGrad)
        points = self.explanation.points_around(inputs, 2, rng).flatten(0, 1)
        maps = self._explained(Gradient(), student, points, directions.repeat_interleave(2, 0), rng).maps
        one, other = (maps.view(len(inputs), 2, *maps.shape[1:]) - wanted.unsqueeze(1)).unbind(1)
        gap = (one * other).sum() / (wanted.shape[0] * wanted.shape[1] * self.scale)
        return gap, outputs(student, inputs, self.of)

    def _explained(
        self, by: Explanation, student: nn.Module, inputs: Tensor, directions: Tensor, rng: np.random.Generator
    ) -> Explained:
        learning = torch.is_grad_enabled()
        return by.maps(student, inputs, classes=directions, of=self.of, create_graph=learning, rng=rng)

    def _coefficients(self, count: int, rng: np.random.Generator) -> Tensor:
        """n×1×R: signs for linear explanations, else one map chosen at random; E‖c·D‖² = ‖D‖² for both."""
        assert self.maps is not None
        maps = self.maps.shape[1]
        if maps == 1:
            drawn = np.ones((count, 1))
        elif self.linear:
            drawn = rng.standard_normal((count, maps))
        else:
            drawn = np.eye(maps)[rng.integers(maps, size=count)] * maps**0.5
        return torch.from_numpy(drawn[:, None]).to(self.inputs)

    def _membership(self, values: Tensor, rows: Tensor) -> Tensor:
        """Squared error where values are real numbers or, if so wanted, logits; else cross-entropy above the least."""
        wanted = self.values[rows]
        if self.labels:
            return self._classified(values, wanted)
        if self.kind == "real" or (self.squared and self.kind in {"logits", "centred"}):
            if self.kind == "centred":
                values = values - values.mean(1, keepdim=True)
            return (values - wanted).square().sum(1).mean() / self.spread
        if self.kind == "probabilities":
            values = distorted_by(self.distorted, values)
        if values.shape[1] == 1:
            return self._single(values, wanted)
        log_p = values.clamp_min(_TINY).log() if self.kind == "probabilities" else values.log_softmax(1)
        p = wanted if self.kind == "probabilities" else wanted.softmax(1)
        result: Tensor = (torch.special.xlogy(p, p) - p * log_p).sum(1).mean()
        return result

    def _classified(self, values: Tensor, wanted: Tensor) -> Tensor:
        """Cross-entropy with labels, one-hot or 0 and 1; real numbers pass for logits."""
        if self.kind == "probabilities":
            odds = torch.logit(values, eps=1e-7) if values.shape[1] == 1 else values.clamp_min(_TINY).log()
        else:
            odds = values
        if values.shape[1] == 1:
            return functional.binary_cross_entropy_with_logits(odds, wanted)
        result: Tensor = -(wanted * odds.log_softmax(1)).sum(1).mean()
        return result

    def _single(self, values: Tensor, wanted: Tensor) -> Tensor:
        if self.kind == "probabilities":
            return functional.binary_cross_entropy(values, wanted)
        return functional.binary_cross_entropy_with_logits(values, wanted.sigmoid())


def matching(
    offer: Offer,
    inputs: Array,
    answer: Answer,
    like: Tensor,
    *,
    explained: Array | None = None,
    explanation: Explanation | None,
    loss: Literal["joint", "gradient", "membership"],
    weight: float,
    squared: bool = True,
    shown: MapKind = GRADIENT,
    distorted: tuple[float, float] | None = None,
) -> Matching:
    """Answers as tensors of the student's precision; ``explained``: the combinations n×R×K, if not what is offered."""
    asked = torch.from_numpy(inputs.reshape(-1, *offer.inputs)).to(like)
    maps = chosen = None
    scale = 1.0
    if answer.gradients is not None:
        if shown.squared:  # magnitudes are what is compared
            answer = Answer(answer.values, np.sqrt(np.maximum(answer.jacobians, 0)))
        maps = torch.from_numpy(answer.jacobians.reshape(len(answer), -1, *offer.inputs)).to(like)
        one_hot = np.eye(offer.outputs)[explained_outputs(offer.gradients, answer.values)]
        chosen = torch.from_numpy(one_hot if explained is None else explained).to(like)
        scale = float(np.square(answer.jacobians).sum(axis=(1, 2)).mean() / answer.jacobians.shape[1])
        scale = scale if scale > _TINY else 1.0
    spread = float(answer.values.var()) * offer.outputs or float(np.square(answer.values).mean()) or 1.0
    return Matching(
        inputs=asked,
        values=torch.from_numpy(answer.values).to(like),
        maps=maps,
        chosen=chosen,
        kind=kind_of(offer, answer.values),
        labels=offer.values == "label",
        explanation=explanation or Gradient(),
        shown=shown,
        distorted=distorted,
        loss=loss,
        weight=weight,
        squared=squared,
        scale=scale,
        spread=spread,
    )
