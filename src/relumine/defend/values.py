"""What is shown of a prediction: the label, confident classes, misleading probabilities."""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from relumine.defend.base import Defended, as_distribution, without_sum
from relumine.oracle.base import Array, Offer

# Probabilities are kept this far from 0 and 1 before their log-odds are taken.
_CLIP = 1e-9


@dataclass(frozen=True, eq=False)
class LabelOnly(Defended):
    """Answers which class it is: 1 for it and 0 for the others (K = 1: 1 or 0).

    explanations: "none", or "kept", which hides the values alone
    """

    sentence = "Shows the class only (explanations: {explanations})."

    explanations: Literal["none", "kept"] = "none"

    def __post_init__(self) -> None:
        offer = self.oracle.offer
        self._require(offer.values != "none", "values that tell the class", offer.values)
        classes = offer.outputs > 1 or offer.values != "real"
        self._require(classes, "several outputs, or one that is a logit or a probability", "one real output")

    def _offered(self, offer: Offer) -> Offer:
        explained = offer.explained or (None if offer.values == "label" else offer.values)
        gradients = offer.gradients if self.explanations == "kept" else "none"
        return replace(offer, values="label", gradients=gradients, explained=explained)

    def _shown_values(self, values: Array) -> Array:
        if values.shape[1] == 1:
            return (values > (0 if self.oracle.offer.values == "logits" else 0.5)).astype(np.float64)
        return np.asarray(np.eye(values.shape[1])[values.argmax(axis=1)])


class OfProbabilities(Defended):
    """Changes probabilities only."""

    def __post_init__(self) -> None:
        self._require(self.oracle.offer.values == "probabilities", "probabilities", self.oracle.offer.values)


@dataclass(frozen=True, eq=False)
class HighConfidence(OfProbabilities):
    """Shows probabilities of at least ``cutoff``; the rest is 0, so that rows need not sum to 1."""

    sentence = "Shows probabilities of at least {cutoff}, and 0 for the others."

    cutoff: float = 0.25

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(0 < self.cutoff <= 1, "a cutoff in (0, 1]", self.cutoff)

    def _offered(self, offer: Offer) -> Offer:
        return without_sum(offer)

    def _shown_values(self, values: Array) -> Array:
        return np.where(values < self.cutoff, 0.0, values)


@dataclass(frozen=True, eq=False)
class ReverseSigmoid(OfProbabilities):
    """Moves probabilities p towards the middle by beta (s(gamma · log(p / (1 − p))) − 1/2), s the logistic function.

    After Lee et al., "Defending against machine learning model stealing attacks using deceptive perturbations"
    (arXiv 1806.00054): one shown probability may belong to several true ones. Then they are made to sum to 1 again.
    """

    sentence = "Distorts probabilities by a reverse sigmoid (beta {beta}, gamma {gamma})."

    beta: float = 1.0
    gamma: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(self.beta > 0 and self.gamma > 0, "positive beta and gamma", (self.beta, self.gamma))

    def _shown_values(self, values: Array) -> Array:
        if values.shape[1] > 1:
            return as_distribution(values - self._distortion(values))
        both = np.hstack([values, 1 - values])
        return as_distribution(both - self._distortion(both))[:, :1]

    def _distortion(self, p: Array) -> Array:
        inside = np.clip(p, _CLIP, 1 - _CLIP)
        odds = inside / (1 - inside)
        return np.asarray(self.beta * (1 / (1 + odds**-self.gamma) - 0.5))
