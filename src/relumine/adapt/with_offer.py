"""WithOffer: an oracle whose offer is corrected by what was found out about it."""

import numpy as np

from relumine.errors import MisuseError
from relumine.oracle.base import Answer, Array, Offer, Oracle, checked_inputs


class WithOffer:
    """An oracle of which more is known than it offers itself. ``one_by_one``: ask for one explanation at a time."""

    def __init__(self, oracle: Oracle, offer: Offer, *, one_by_one: bool = False) -> None:
        if offer.inputs != oracle.offer.inputs or offer.outputs != oracle.offer.outputs:
            raise MisuseError(f"the findings are of another target: {offer} does not describe {oracle.offer}")
        self._oracle = oracle
        self._offer = offer
        self._one_by_one = one_by_one

    @property
    def offer(self) -> Offer:
        """What was found."""
        return self._offer

    def __call__(self, inputs: Array, *, gradients: bool) -> Answer:
        rows = checked_inputs(self._offer, inputs, gradients=gradients)
        if not (gradients and self._one_by_one and len(rows) > 1):
            return self._oracle(rows, gradients=gradients)
        answers = [self._oracle(row[None], gradients=True) for row in rows]
        return Answer(np.concatenate([a.values for a in answers]), np.concatenate([a.jacobians for a in answers]))
