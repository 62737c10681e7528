"""WithOffer: an oracle whose offer is corrected by what was found out about it."""

from relumine.errors import MisuseError
from relumine.oracle.base import Answer, Array, InFront, Offer, Oracle, checked_inputs, joined


class WithOffer(InFront):
    """An oracle of which more is known than it offers itself. ``one_by_one``: ask for one explanation at a time."""

    def __init__(self, oracle: Oracle, offer: Offer, *, one_by_one: bool = False) -> None:
        if offer.inputs != oracle.offer.inputs or offer.outputs != oracle.offer.outputs:
            raise MisuseError(f"the findings are of another target: {offer} does not describe {oracle.offer}")
        super().__init__(oracle, offer)
        self._one_by_one = one_by_one

    def __call__(self, inputs: Array, *, gradients: bool) -> Answer:
        rows = checked_inputs(self.offer, inputs, gradients=gradients)
        if not (gradients and self._one_by_one and len(rows) > 1):
            return self._oracle(rows, gradients=gradients)
        return joined(self.offer, [self._oracle(row[None], gradients=True) for row in rows], gradients=True)
