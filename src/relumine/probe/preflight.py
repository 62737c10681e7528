"""Probe: about twenty questions that tell what an endpoint's explanations are.

Everything is judged by the values. Along a few random directions v their slopes ⟨∇f(x), v⟩ are measured (slopes.py),
and each guess at what the explanations are (gradient, input times gradient, …) predicts these slopes or does not
(guesses.py). Explanations that follow no gradient are told by what they add up to (slopes.py).
"""

from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from relumine.adapt.recipes import FAR, WithOffer, adapted, restored
from relumine.explain.map_kind import MapKind, Smoothing
from relumine.oracle.base import Array, Offer, Oracle
from relumine.oracle.metering.metered import Metered, Spent, metered
from relumine.probe.guesses import guessed_kind, is_confirmed
from relumine.probe.known import Known, look_at_numbers, look_at_values
from relumine.probe.slopes import is_ablation, is_complete, measured_slopes
from relumine.reconstruct.result import Clone

_POINTS = 4

_VALUES_ONLY = "reconstruct from values alone (gradients='none', --method values)"


@dataclass(frozen=True)
class Findings:
    """What a preflight found out.

    offer:         the offer, corrected by what was seen: values, dtype, of which outputs explanations are
    decimals:      the answers are rounded to this many decimals; None if they are not
    kind:          what the explanations are, in words
    maps:          what they are, if gradients can be made of them (``adapted``); None if that cannot be done
    lost:          what cannot be known from these explanations, and what to do instead; empty if nothing
    signed:        whether explanations have both signs
    complete:      whether they sum up to f(x) − f(0); None if that could not be tested
    deterministic: whether the same question got the same explanation twice
    one_by_one:    whether an explanation depends on the other inputs of a batch, so that each must be asked alone
    noise:         how far two explanations of the same input differ, as a share of the largest number
    remarks:       what a reader should know besides
    """

    offer: Offer
    decimals: int | None
    kind: str
    maps: MapKind | None
    lost: str
    signed: bool | None = None
    complete: bool | None = None
    deterministic: bool = True
    one_by_one: bool = False
    noise: float = 0.0
    spent: Spent = field(default_factory=Spent)
    remarks: tuple[str, ...] = ()

    @property
    def recipe(self) -> str | None:
        """The word for the maps, as files write it; None if no gradients can be made of them."""
        return None if self.maps is None else self.maps.word

    @property
    def proportional(self) -> bool | None:
        """Whether they are the input times something (÷x); None if that is not known."""
        return None if self.maps is None else self.maps.times_input

    @property
    def normalised(self) -> bool | None:
        """Whether their scale is gone; None if that is not known."""
        return None if self.maps is None else self.maps.scaled

    def adapt(self, oracle: Oracle) -> Oracle:
        """The oracle with gradients where they can be had, and with values alone where they cannot."""
        return adapted(oracle, self.maps, self.offer, one_by_one=self.one_by_one)

    def restored(self, clone: Clone) -> Clone:
        """The target's own clone, of a clone that ``adapt``'s oracle led to."""
        return restored(clone, self.maps, self.offer.dtype)

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers and words, for JSON."""
        offer = {name: value for name, value in asdict(self.offer).items() if value is not None}
        found = {name: value for name, value in vars(self).items() if name not in ("offer", "maps", "spent")}
        found |= {"recipe": self.recipe, "proportional": self.proportional, "normalised": self.normalised}
        spent = {"value_queries": self.spent.value_queries, "gradient_queries": self.spent.gradient_queries}
        return {"offer": offer, **found, "spent": spent}


@dataclass(frozen=True)
class Probe:
    """Classifies an endpoint whose explanations are not known: ``Probe()(oracle, rng=0)`` gives Findings.

    The oracle's offer says how inputs and answers are shaped; what it says about values, precision and explanations
    is checked. Costs 25 to 50 queries, and for maps that need values what one gradient costs.
    """

    def __call__(self, oracle: Oracle, rng: int | np.random.Generator | None = None) -> Findings:
        meter = metered(oracle)
        before = meter.spent
        with meter.phase("probe"):
            found = _findings(meter, np.random.default_rng(rng))
        return replace(found, spent=meter.spent.since(before))


def _findings(meter: Metered, rng: np.random.Generator) -> Findings:
    known = Known(meter, rng)
    values = look_at_values(known)
    if known.offer.gradients == "none" or known.offer.values == "label":
        return _nothing(known)
    if known.offer.contributions:
        why = "contributions of features are no gradients; relumine audit learns from them"
        return Findings(known.offer, known.decimals, "SHAP values", None, why, remarks=tuple(known.remarks))
    points = known.scale * known.gaussian(_POINTS)
    answer = WithOffer(meter, known.offer, one_by_one=True)(points, gradients=True)
    again = meter(points[:1], gradients=True)
    look_at_numbers(known, values, answer.values)
    run = _Explanations(known, points, answer.values, answer.jacobians, again.jacobians)
    if np.abs(again.values - answer.values[:1]).max() > 100 * known.epsilon * np.abs(answer.values).max():
        known.remarks.append("the values are random too")
        known.correct(random=True)
        return run.found("random answers", lost="values are random; average many answers")
    return run.findings()


def _nothing(known: Known) -> Findings:
    label = known.offer.values == "label"
    what = "labels show no slopes" if label else "no explanations are offered"
    return Findings(
        offer=replace(known.offer, gradients="none"),
        decimals=known.decimals,
        kind="none",
        maps=None,
        lost=f"{what}, and explanations cannot be judged" if label else f"{what}; {_VALUES_ONLY}",
        remarks=tuple(known.remarks),
    )


class _Explanations:
    """Explanations of a few points, those of the first asked twice, and what is found out about them."""

    def __init__(self, known: Known, points: Array, values: Array, maps: Array, again: Array) -> None:
        self.known, self.points, self.values, self.maps = known, points, values, maps
        self.largest = float(np.abs(maps).max())
        self.noise = float(np.abs(again - maps[:1]).max()) / max(self.largest, 1e-300)

    @property
    def deterministic(self) -> bool:
        return self.noise <= 100 * self.known.epsilon

    def findings(self) -> Findings:
        self.known.correct(random=not self.deterministic)
        if not self.largest:
            return self.found("all zero", lost=f"explanations say nothing; {_VALUES_ONLY}")
        if not self.deterministic:
            return self._far_out() or self._random()
        self._look_at_batches()
        return self._of_gradients() or self._of_something_else()

    def _look_at_batches(self) -> None:
        """Some explainers mix the inputs of a batch."""
        together, maps = self.known.meter(self.points[:2], gradients=True).jacobians, self.maps[:2]
        if np.abs(together - maps).max() > 1000 * self.known.epsilon * np.abs(maps).max():
            self.known.one_by_one = True
            self.known.remarks.append("explanations depend on the other inputs of a batch: they are asked one by one")

    def _of_gradients(self) -> Findings | None:
        """What they are if gradients can be made of them, or if nothing can be told."""
        measured = measured_slopes(self.known, self.points, self.values)
        if measured is None:
            return self.found("unknown", lost=f"the values are too coarse to tell; {_VALUES_ONLY}")
        n = len(measured.points)
        kind = guessed_kind(self.known, measured, self.values[:n], self.maps[:n])
        if kind is None or not is_confirmed(self.known, measured, self.values[:n], kind):
            return None
        return self.found(str(kind), maps=kind, look=True)

    def _of_something_else(self) -> Findings:
        """Explanations that are no function of the gradient: say what they are instead."""
        known = self.known
        if known.decimals is not None:
            why = f"answers rounded to {known.decimals} decimals are too coarse to tell, or these follow no gradient"
            return self.found("unknown", lost=f"{why}; {_VALUES_ONLY}", look=True)
        kind, why = (
            "other map",
            "they follow neither gradients nor values: gradients changed on the way, or coarse maps",
        )
        if is_ablation(known, self.points, self.values, self.maps):
            kind, why = "ablation", "each number is a difference of two values, f(x) − f(x without that coordinate)"
        elif is_complete(known, self.values, self.maps):
            kind, why = "path attribution", "a mixture of gradients on the way from a baseline to the input"
        return self.found(kind, lost=f"{why}; {_VALUES_ONLY}", look=True)

    def _far_out(self) -> Findings | None:
        """Explanations that differ from time to time: if that is noise in the input, it is nothing far out."""
        known, maps = self.known, self.maps
        if known.offer.box is not None:
            return None
        far = FAR[known.offer.dtype] * self.points[:3]
        answer = known.meter(np.concatenate([far, far[:1]]), gradients=True)
        values, out, again = answer.values[:3], answer.jacobians[:3], answer.jacobians[3:]
        flat = np.abs(out).max() <= 1e-4 * self.largest and known.offer.values != "probabilities"
        if flat and maps.min() >= -1e-4 * maps.max():
            lost = f"far from kinks they vanish, so they only show where kinks are; {_VALUES_ONLY}"
            return self.found("variance of gradients", lost=lost, look=True)
        if np.abs(out[:1] - again).max() > 1e-3 * np.abs(out).max():
            return None
        measured = measured_slopes(known, far, values)
        kind = None if measured is None else guessed_kind(known, measured, values, out)
        if measured is None or kind is None:
            return None
        smoothed = replace(kind, smoothing=Smoothing())
        if not smoothed.invertible or not is_confirmed(known, measured, values, smoothed):
            return None
        return self.found(str(smoothed), maps=smoothed, look=True)

    def _random(self) -> Findings:
        """Explanations whose randomness cannot be removed."""
        if is_complete(self.known, self.values, self.maps, slack=0.3):
            kind, why = "sampled attribution", "a random mixture of gradients or of values at other inputs"
        else:
            kind, why = "random map", "no relation to the values was found that removes the randomness"
        return self.found(kind, lost=f"{why}; {_VALUES_ONLY}", look=True)

    def found(self, kind: str, *, maps: MapKind | None = None, lost: str = "", look: bool = False) -> Findings:
        """The findings; ``look``: also at whether the maps are complete."""
        known, offer = self.known, self.known.offer
        complete = is_complete(known, self.values, self.maps) if look else None
        return Findings(
            offer=offer,
            decimals=known.decimals,
            kind=kind,
            maps=maps,
            lost=lost,
            signed=bool(self.maps.min() < 0 < self.maps.max()),
            complete=complete,
            deterministic=self.deterministic,
            one_by_one=known.one_by_one,
            noise=self.noise,
            remarks=tuple(dict.fromkeys(known.remarks)),
        )
