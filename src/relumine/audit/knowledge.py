"""Knowledge: what an attacker makes of a defence's description. Every attack of an audit knows the defence's settings.

A defence that only holds while nobody knows it is there holds nothing, so the audit grants the attacker its words.
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from relumine.audit.levels import SMOOTHGRAD_SAMPLES
from relumine.defend.base import Defended
from relumine.defend.maps import HeatMap, MagnitudeOnly, MaxNormalised, SignOnly, TopFeatures
from relumine.defend.noise import GaussianNoise, SmoothGradDefence
from relumine.defend.precision import Rounded
from relumine.defend.refuse import FarInputs
from relumine.defend.registry import Chain
from relumine.defend.values import HighConfidence, LabelOnly, ReverseSigmoid
from relumine.defend.watch import DistanceWatch, LineWatch

if TYPE_CHECKING:
    from relumine.explain import Explanation
    from relumine.reconstruct.matching.shown import Shown

Settings = Mapping[str, Any]

# A student's own smoothed maps and path integrals are taken from so few points: each step of a fit draws new ones.
_SAMPLES = 4
_STEPS = 8

# Root mean square of inputs at which a watch sees nothing unusual, where data is of size 1.
_UNSUSPICIOUS = 5.0

# Maps after these defences are gradients again behind this recipe of the probe. Order does not matter.
_RECIPES: dict[frozenset[type[Defended]], str] = {
    frozenset(): "gradient",
    frozenset({MagnitudeOnly}): "absolute",
    frozenset({MaxNormalised}): "normalised",
    frozenset({MagnitudeOnly, MaxNormalised}): "normalised-absolute",
    frozenset({SmoothGradDefence}): "smoothed",
    frozenset({SmoothGradDefence, MagnitudeOnly}): "smoothed-absolute",
}
_OF_MAPS = (TopFeatures, SignOnly, MagnitudeOnly, HeatMap, MaxNormalised, SmoothGradDefence)


@dataclass(frozen=True)
class Smoothing:
    """Maps are means of gradients around the input."""

    sigma: float
    samples: int


@dataclass(frozen=True)
class Knowledge:
    """What the attacker knows.

    recipe:      by which maps become gradients again (a name of ``probe.recipes``); None if that cannot be done
    noise:       standard deviation of the noise on answers; 0 for none
    consistent:  the same input gets the same noise
    noisy_maps:  the noise is on maps too
    coarse:      answers are rounded or noisy
    true_values: values are the target's own numbers, in full
    rounded:     values are the target's own numbers, rounded
    reach:       inputs of a larger root mean square are refused, or raise suspicion
    window:      a watch looks at so many rows of a client; 0 for none
    smoothing:   of maps
    path:        maps are integrals of gradients along a path
    cutoff:      smaller probabilities are shown as 0
    """

    recipe: str | None = "gradient"
    noise: float = 0.0
    consistent: bool = False
    noisy_maps: bool = False
    coarse: bool = False
    true_values: bool = True
    rounded: bool = False
    reach: float | None = None
    window: int = 0
    smoothing: Smoothing | None = None
    path: bool = False
    cutoff: float | None = None
    magnitudes: bool = False
    signs: bool = False
    scaled: bool = False
    masked: bool = False
    distorted: tuple[float, float] | None = None

    def shown(self) -> "Shown":
        """What a student is compared by."""
        from relumine.reconstruct.matching.shown import Shown

        return Shown(self.magnitudes, self.signs, self.scaled, self.masked, self.distorted)

    def explanation(self) -> "Explanation | None":
        """What a student's maps are made by; None for gradients."""
        from relumine import explain

        if self.path:
            return explain.IntegratedGradients(_STEPS)
        if self.smoothing is not None:
            return explain.SmoothGrad(self.smoothing.sigma, min(self.smoothing.samples, _SAMPLES))
        return None


def knowledge_of(level: str, chain: Chain | None, deviation: float = 1.0) -> Knowledge:
    """What the words of a level and of its defences tell; ``deviation`` is σ of the level "smoothgrad"."""
    steps = chain.steps if chain is not None else ()
    kinds = {step.kind.defended for step in steps if step.kind.defended in _OF_MAPS}
    known = Knowledge()
    if level == "smoothgrad":
        kinds.add(SmoothGradDefence)
        known = replace(known, smoothing=Smoothing(deviation, SMOOTHGRAD_SAMPLES))
    if level == "integrated-gradients":
        known = replace(known, path=True)
    for step in steps:
        known = _after(known, step.kind.defended, {**_defaults(step.kind.defended), **dict(step.settings)})
    recipe = None if known.path else _RECIPES.get(frozenset(kinds))
    if known.noisy_maps and recipe != "gradient":
        recipe = None  # noise does not average out of what is not linear, nor does it leave maps alike in a cell
    return replace(known, recipe=recipe)


def _defaults(kind: type[Defended]) -> Settings:
    return {field.name: field.default for field in fields(kind) if field.init and field.default is not MISSING}


def _after(known: Knowledge, kind: type[Defended], said: Settings) -> Knowledge:
    """What is known once this defence stands in front too."""
    return _TELLS[kind](known, said) if kind in _TELLS else known


def _rounded(known: Knowledge, said: Settings) -> Knowledge:
    if said["of"] == "gradients":
        return replace(known, coarse=True)
    return replace(known, coarse=True, true_values=False, rounded=known.true_values or known.rounded)


def _noise(known: Knowledge, said: Settings) -> Knowledge:
    return replace(
        known,
        coarse=True,
        noise=float(said["sigma"]),
        consistent=said["repeat"] == "consistent",
        noisy_maps=said["of"] != "values",
        true_values=known.true_values and said["of"] == "gradients",
        rounded=known.rounded and said["of"] == "gradients",
    )


def _heat_map(known: Knowledge, said: Settings) -> Knowledge:
    return replace(known, scaled=True, magnitudes=known.magnitudes or said["shows"] == "magnitude")


def _watched(known: Knowledge, said: Settings) -> Knowledge:
    # Seen from far out all other rows lie in one direction, which looks like a line.
    reach = min(known.reach or _UNSUSPICIOUS, _UNSUSPICIOUS)
    return replace(known, window=max(known.window, int(said["window"])), reach=reach)


_TELLS: dict[type[Defended], Callable[[Knowledge, Settings], Knowledge]] = {
    Rounded: _rounded,
    GaussianNoise: _noise,
    TopFeatures: lambda known, said: replace(known, masked=True),
    SignOnly: lambda known, said: replace(known, signs=True),
    MagnitudeOnly: lambda known, said: replace(known, magnitudes=True),
    MaxNormalised: lambda known, said: replace(known, scaled=True),
    HeatMap: _heat_map,
    SmoothGradDefence: lambda known, said: replace(
        known, smoothing=Smoothing(float(said["sigma"]), int(said["samples"]))
    ),
    LabelOnly: lambda known, said: replace(known, true_values=False, distorted=None, cutoff=None),
    HighConfidence: lambda known, said: replace(known, true_values=False, cutoff=float(said["cutoff"])),
    ReverseSigmoid: lambda known, said: replace(
        known, true_values=False, distorted=(float(said["beta"]), float(said["gamma"]))
    ),
    FarInputs: lambda known, said: replace(known, reach=min(float(said["reach"]), known.reach or float("inf"))),
    LineWatch: _watched,
    DistanceWatch: _watched,
}
