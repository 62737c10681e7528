"""The losses of gradient matching: ℓ_M on values, ℓ_G on gradients or explanations, for one backward pass."""

from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from relumine.explain.map_kind import MapKind
from relumine.explain.methods import Explained, Explanation, Gradient, Of, SmoothGrad, outputs
from relumine.oracle.base import Array, Offer, explained_outputs
from relumine.reconstruct.matching.logits import Queried

if TYPE_CHECKING:
    from relumine.reconstruct.matching.method import GradientMatching

# What the student's outputs are compared as. "centred": logits are only known up to a number common to all classes,
# as LogitLink answers them.
Kind = Literal["real", "logits", "centred", "probabilities", "log-probabilities"]

_TINY = float(np.finfo(np.float32).tiny)
# How steeply a wrong sign is punished: at a coordinate of typical size the right one costs 0.02.
_STEEPNESS = 4.0
# Shares are kept this far from 0 and 1 before their log-odds are taken.
_CLIP = 1e-9
_SMALL = 1e-30


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


class Matching:
    """Answered questions as tensors of the student's precision, and the losses of a student on them.

    inputs n×shape; values n×K; maps n×R×shape or None; chosen n×R×K says which combinations of outputs the maps
    explain; scale is the mean ‖J‖² of the answers, spread the variance of their values; labels: values are labels,
    whatever the maps are of.
    """

    def __init__(self, method: "GradientMatching", asked: Queried, like: Tensor) -> None:
        offer, answer, jacobians = asked.offer, asked.answer, asked.answer.gradients
        self.method, self.weight = method, method.weight_of(offer)
        self.explanation, self.shown = method.explanation or Gradient(), method.shown
        self.inputs = torch.from_numpy(asked.inputs.reshape(-1, *offer.inputs)).to(like)
        self.values = torch.from_numpy(answer.values).to(like)
        self.kind, self.labels = kind_of(offer, answer.values), offer.values == "label"
        self.spread = float(answer.values.var()) * offer.outputs or float(np.square(answer.values).mean()) or 1.0
        self.maps: Tensor | None = None
        if jacobians is not None:
            if self.shown.squared:  # magnitudes are what is compared
                jacobians = np.sqrt(np.maximum(jacobians, 0))
            one_hot = np.eye(offer.outputs)[explained_outputs(offer.gradients, answer.values)]
            self.chosen = torch.from_numpy(one_hot if asked.explained is None else asked.explained).to(like)
            self.maps = torch.from_numpy(jacobians.reshape(len(answer), -1, *offer.inputs)).to(like)
            scale = float(np.square(jacobians).sum(axis=(1, 2)).mean() / jacobians.shape[1])
            self.scale = scale if scale > _TINY else 1.0  # what vanishes tells nothing

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
        if self.maps is None:
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
        directions = coefficients @ self.chosen[rows]
        if self.kind == "centred":
            directions = directions - directions.mean(2, keepdim=True)
        wanted = torch.einsum("nrk,nk...->nr...", coefficients, self.maps[rows])
        compare = self._compared_by_two if isinstance(self.explanation, SmoothGrad) and self.linear else self._compared
        gap, values = compare(student, self.inputs[rows], directions, wanted, rng)
        if self.method.loss == "gradient":
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
        if self.kind == "real" or (self.method.logits_by == "squared" and self.kind in {"logits", "centred"}):
            if self.kind == "centred":
                values = values - values.mean(1, keepdim=True)
            return (values - wanted).square().sum(1).mean() / self.spread
        if self.kind == "probabilities":
            values = distorted_by(self.method.distorted, values)
        if values.shape[1] == 1:
            if self.kind == "probabilities":
                return functional.binary_cross_entropy(values, wanted)
            return functional.binary_cross_entropy_with_logits(values, wanted.sigmoid())
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


def gap(shown: MapKind, maps: Tensor, wanted: Tensor, scale: float) -> Tensor:
    """How far n×R×shape maps are from those answered, by what is shown of them, per map.

    scale: the mean ‖map‖² of the answers
    """
    mine, theirs = maps.flatten(2), wanted.flatten(2)
    if shown.signs:
        return _wrong_signs(mine, theirs.sign())
    mine = mine.abs() if shown.magnitudes else mine
    known = theirs != 0 if shown.masked else torch.ones_like(theirs, dtype=torch.bool)
    if shown.scaled:
        mine = mine / (mine * known).norm(dim=2, keepdim=True).clamp_min(_SMALL)
        theirs = theirs / theirs.norm(dim=2, keepdim=True).clamp_min(_SMALL)
        scale = 1.0
    off = (mine - theirs) * known
    if shown.masked:
        smallest = theirs.abs().masked_fill(~known, torch.inf).amin(2, keepdim=True).nan_to_num(posinf=0.0)
        off = off + functional.relu(mine.abs() - smallest) * ~known
    return off.square().sum() / (off.shape[0] * off.shape[1] * scale)


def distorted_by(reverse_sigmoid: tuple[float, float] | None, probabilities: Tensor) -> Tensor:
    """What a reverse sigmoid of these beta and gamma shows of probabilities n×K; None: there is none."""
    if reverse_sigmoid is None:
        return probabilities
    beta, gamma = reverse_sigmoid
    single = probabilities.shape[1] == 1
    both = torch.cat([probabilities, 1 - probabilities], 1) if single else probabilities
    odds = torch.logit(both, eps=_CLIP)
    cut = (both - beta * (torch.sigmoid(gamma * odds) - 0.5)).clamp(_CLIP, 1)
    shown = cut / cut.sum(1, keepdim=True)
    return shown[:, :1] if single else shown


def _wrong_signs(maps: Tensor, signs: Tensor) -> Tensor:
    """A logistic loss on each coordinate that has a sign, in units of its map's typical size."""
    size = maps.detach().square().mean(2, keepdim=True).sqrt().clamp_min(_SMALL)
    told = signs != 0
    losses = functional.softplus(-_STEEPNESS * signs * maps / size) * told
    return losses.sum() / told.sum().clamp_min(1)
