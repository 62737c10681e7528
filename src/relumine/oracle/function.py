"""FunctionOracle: any Python function that answers."""

from collections.abc import Callable

from relumine.errors import BadAnswerError
from relumine.oracle.base import Answer, Array, Offer, checked_answer, checked_inputs

# (n×d inputs, whether gradients are wanted) -> (n×K values, n×K×d gradients or None)
Query = Callable[[Array, bool], tuple[Array, Array | None]]


class FunctionOracle:
    """``query(x, gradients)`` takes n×d inputs and returns (values n×K, gradients n×K×d or None)."""

    def __init__(self, query: Query, offer: Offer) -> None:
        self._query, self.offer = query, offer

    def __call__(self, inputs: Array, *, gradients: bool) -> Answer:
        rows = checked_inputs(self.offer, inputs, gradients=gradients)
        result = self._query(rows, gradients)
        if not isinstance(result, tuple) or len(result) != 2:
            raise BadAnswerError(f"query: expected a pair (values, gradients or None), got {type(result).__name__}")
        values, jacobians = result
        return checked_answer(self.offer, len(rows), Answer(values, jacobians), gradients=gradients)
