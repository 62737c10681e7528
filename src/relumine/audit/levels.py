"""Levels of access: what an owner may choose to expose of a target, from the label to integrated gradients.

A level is a view of the target: it hides a part of the answers, or shows another map made of the target's gradients.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from relumine.defend import LabelOnly, SmoothGradDefence, TopClass
from relumine.errors import MisuseError
from relumine.explain.map_kind import MapKind, Smoothing
from relumine.oracle.base import Answer, Array, InFront, Offer, Oracle, checked_answer, checked_inputs, joined
from relumine.oracle.logits import probabilities_of
from relumine.oracle.predictor import PredictorOracle

if TYPE_CHECKING:
    from relumine.oracle.tokens import Attribution

# The paper's appendix: the mean of N noisy gradients, the noise as large as the data's standard deviation.
SMOOTHGRAD_SAMPLES = 10
# Captum's and most servers' default for integrated gradients.
INTEGRATION_STEPS = 50

# The level whose maps are contributions of features, not gradients.
SHAP = "shap"

# The level of an attacker who has the backbone of the target, because it is public.
PUBLIC_BACKBONE = "backbone-gradients"

# Gradients along paths held at once: 32 MB.
_NUMBERS_AT_ONCE = 2**22


@dataclass(frozen=True)
class Setting:
    """What a view may need to know besides the target: the data's standard deviation, and a source of noise."""

    deviation: float = 1.0
    rng: int | np.random.Generator | None = None


@dataclass(frozen=True)
class Level:
    """What is exposed.

    label:    what a reader calls it
    baseline: the level that shows the same values and no explanation; "" if this shows none itself
    fits:     whether an offer can give it
    view:     the target seen at this level
    derived:  whether the view asks the target more than it is asked, so that it is for targets on this machine
    shows:    what its maps are, of a target whose own maps are of a kind
    """

    name: str
    label: str
    baseline: str
    fits: Callable[[Offer], bool]
    view: Callable[[Oracle, Setting], Oracle]
    derived: bool = False
    shows: Callable[[MapKind], MapKind] = lambda maps: maps

    def of(self, oracle: Oracle, setting: Setting | None = None) -> Oracle | None:
        """The target seen at this level, or None where that cannot be."""
        try:
            return self.view(oracle, setting or Setting()) if self.fits(oracle.offer) else None
        except MisuseError:  # a defence that makes the view says that this target has nothing for it to hide
            return None


class ValuesOnly(InFront):
    """Answers values, no gradients; ``probabilities`` puts a softmax (one output: a sigmoid) behind logits."""

    def __init__(self, oracle: Oracle, *, probabilities: bool = False) -> None:
        values = "probabilities" if probabilities else oracle.offer.values
        super().__init__(oracle, replace(oracle.offer, gradients="none", values=values))

    def __call__(self, inputs: Array, *, gradients: bool) -> Answer:
        rows = checked_inputs(self.offer, inputs, gradients=gradients)
        values = self._oracle(rows, gradients=False).values
        if self.offer.values != self._oracle.offer.values:
            values = probabilities_of(values)
        return checked_answer(self.offer, len(rows), Answer(values), gradients=False)


class Integrated(InFront):
    """Answers integrated gradients from the origin: x ⊙ ∫₀¹ ∇f(αx) dα, by Gauss–Legendre quadrature."""

    def __call__(self, inputs: Array, *, gradients: bool) -> Answer:
        rows = checked_inputs(self.offer, inputs, gradients=gradients)
        if not gradients:
            return self._oracle(rows, gradients=False)
        numbers = INTEGRATION_STEPS * self.offer.gradient_rows * self.offer.dimension
        at_once = max(1, _NUMBERS_AT_ONCE // numbers)
        parts = [self._integrated(rows[i : i + at_once]) for i in range(0, len(rows), at_once)]
        return joined(self.offer, parts, gradients=True)

    def _integrated(self, rows: Array) -> Answer:
        nodes, weights = np.polynomial.legendre.leggauss(INTEGRATION_STEPS)
        points = rows[:, None] * ((1 + nodes) / 2)[:, None]
        maps = self._oracle(points.reshape(-1, rows.shape[1]), gradients=True).jacobians
        average = np.einsum("p,nprd->nrd", weights / 2, maps.reshape(len(rows), INTEGRATION_STEPS, *maps.shape[1:]))
        return Answer(self._oracle(rows, gradients=False).values, rows[:, None] * average)


def _label(oracle: Oracle, _: Setting) -> Oracle:
    return oracle if oracle.offer.values == "label" and oracle.offer.gradients == "none" else LabelOnly(oracle)


def _smoothgrad(oracle: Oracle, setting: Setting) -> Oracle:
    return SmoothGradDefence(oracle, SMOOTHGRAD_SAMPLES, setting.deviation, rng=setting.rng)


def _shap(oracle: Oracle, _: Setting) -> Oracle:
    if oracle.offer.contributions:  # a server that answers them
        return oracle
    if not isinstance(oracle, PredictorOracle):
        raise MisuseError("SHAP values: expected a model of trees, got an oracle that holds none")
    from relumine.explain.tree_shap import TreeShap

    return TreeShap(oracle)


def _tokens(how: "Attribution") -> Callable[[Oracle, Setting], Oracle]:
    def view(oracle: Oracle, _: Setting) -> Oracle:
        from relumine.oracle.tokens import TokenAttributions, TokenOracle

        if not isinstance(oracle, TokenOracle):
            raise MisuseError("token attributions: expected a text classifier, got another oracle")
        return TokenAttributions(oracle, how)

    return view


def _of_tokens(offer: Offer) -> bool:
    return offer.tokens is not None


def _gradients(offer: Offer) -> bool:
    return offer.outputs > 1 and not offer.contributions


def _all_outputs(offer: Offer) -> bool:
    return offer.gradient_rows == offer.outputs and not offer.contributions


# The values that come with explanations are the target's own: baselines are resolved among what it offers.
_OWN_VALUES = "logits"

# What levels show of a target whose own maps are of some kind.
_SMOOTHED = partial(replace, smoothing=Smoothing(samples=SMOOTHGRAD_SAMPLES))
_INTEGRATED = partial(replace, path=True, times_input=True)

LEVELS: dict[str, Level] = {
    level.name: level
    for level in (
        Level("label", "label only", "", lambda offer: offer.values != "real", _label),
        Level(
            "probabilities",
            "probabilities",
            "",
            lambda offer: offer.values in ("logits", "probabilities"),
            lambda oracle, _: ValuesOnly(oracle, probabilities=True),
        ),
        Level("logits", "logits", "", lambda offer: offer.values == "logits", lambda oracle, _: ValuesOnly(oracle)),
        Level("values", "values", "", lambda offer: offer.values == "real", lambda oracle, _: ValuesOnly(oracle)),
        Level("top-gradient", "gradient of the top class", _OWN_VALUES, _gradients, lambda oracle, _: TopClass(oracle)),
        Level("gradients", "gradients of all classes", _OWN_VALUES, _all_outputs, lambda oracle, _: oracle),
        Level("smoothgrad", "SmoothGrad of all classes", _OWN_VALUES, _all_outputs, _smoothgrad, True, _SMOOTHED),
        Level(
            "integrated-gradients",
            "integrated gradients",
            _OWN_VALUES,
            _all_outputs,
            lambda oracle, _: Integrated(oracle),
            derived=True,
            shows=_INTEGRATED,
        ),
        Level(SHAP, "SHAP values", _OWN_VALUES, lambda _: True, _shap),
        Level(
            "token-gradients", "input × gradient of tokens", _OWN_VALUES, _of_tokens, _tokens("input-times-gradient")
        ),
        Level(
            "token-integrated-gradients",
            "integrated gradients of tokens",
            _OWN_VALUES,
            _of_tokens,
            _tokens("integrated-gradients"),
        ),
        Level(
            PUBLIC_BACKBONE,
            "gradients (if your backbone is public)",
            _OWN_VALUES,
            lambda offer: offer.gradients != "none" and not offer.contributions and offer.values != "label",
            lambda oracle, _: oracle,
        ),
    )
}

_BASELINES = {"logits": "logits", "probabilities": "probabilities", "real": "values", "label": "label", "none": ""}


# Levels whose answers are part of another's: who sees more can ignore it.
_PART_OF = {
    "label": (),
    "probabilities": ("label",),
    "logits": ("label", "probabilities"),
    "values": ("label",),
    "gradients": ("top-gradient",),
    PUBLIC_BACKBONE: ("top-gradient", "gradients"),
}


def values_beside(level: Level) -> tuple[str, ...]:
    """Names of the levels of values that come with this one's explanations."""
    return (*_PART_OF[level.baseline], level.baseline) if level.baseline else ()


def contained_in(level: Level) -> tuple[str, ...]:
    """Names of the levels whose answers this one's contain, itself not among them."""
    return (*values_beside(level), *_PART_OF.get(level.name, ()))


def levels_of(oracle: Oracle, *, local: bool, backbone: bool = False) -> tuple[Level, ...]:
    """The levels that this target's offer can give, each with the baseline that this target has.

    backbone: whether the owner named a public backbone
    """
    baseline = _BASELINES[oracle.offer.values]
    return tuple(
        replace(level, baseline=baseline if level.baseline else "", label=_label_for(level, oracle.offer))
        for level in LEVELS.values()
        if (local or not level.derived) and level.of(oracle) is not None and (backbone or level.name != PUBLIC_BACKBONE)
    )


def _label_for(level: Level, offer: Offer) -> str:
    """Without classes where there is one output."""
    if offer.outputs > 1:
        return level.label
    return {"gradients": "gradient", "smoothgrad": "SmoothGrad"}.get(level.name, level.label)
