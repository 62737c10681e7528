"""TokenAttributions: a text classifier behind an endpoint that says how much each token counts."""

from dataclasses import dataclass, replace

from relumine.oracle.base import Answer, Array, Offer, ValueKind, checked_answer, checked_inputs
from relumine.oracle.tokens import Attribution, TokenOracle


@dataclass(frozen=True, eq=False)
class TokenAttributions:
    """Answers the model's own values, and in place of gradients what each token adds to each logit."""

    oracle: TokenOracle
    how: Attribution

    @property
    def offer(self) -> Offer:
        """With a contribution per output and token; they are of logits, whatever values are."""
        inside = self.oracle.offer
        explained: ValueKind | None = "logits" if inside.values == "probabilities" else None
        return replace(inside, gradients="all", contributions=True, explained=explained)

    def __call__(self, inputs: Array, *, gradients: bool) -> Answer:
        rows = checked_inputs(self.offer, inputs, gradients=gradients)
        values = self.oracle(rows, gradients=False).values
        maps = self.oracle.attributions(rows, self.how) if gradients else None
        return checked_answer(self.offer, len(rows), Answer(values, maps), gradients=gradients)
