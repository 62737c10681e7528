"""Findings: what a preflight found out about an endpoint."""

from dataclasses import asdict, dataclass, field
from typing import Any

from relumine.adapt.recipes import adapted, restored
from relumine.explain.map_kind import MapKind
from relumine.oracle.base import Offer, Oracle
from relumine.oracle.metering.metered import Spent
from relumine.reconstruct.result import Clone


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
