"""DecoyQueries: each query hidden among decoys, against a watch that looks for queries that belong together."""

import numpy as np

from relumine.errors import MisuseError
from relumine.oracle.base import Answer, Array, InFront, Oracle, checked_inputs, joined


class DecoyQueries(InFront):
    """Asks ``others`` rows without gradients before each row that matters, and forgets their answers.

    A watch that looks at a client's last rows sees mostly these. They are drawn from N(0, I), or uniformly from the box
    of valid inputs; data would not do, because images that resemble each other look like a search from further away.

    values: whether rows asked without gradients matter too. Where gradients are searched, values are asked at random
            points, which look like any others.
    """

    def __init__(
        self,
        oracle: Oracle,
        others: int,
        *,
        values: bool = True,
        rng: int | np.random.Generator | None = None,
    ) -> None:
        if others < 1:
            raise MisuseError(f"DecoyQueries: expected at least 1 other row, got {others}")
        super().__init__(oracle)
        self._others = others
        self._values = values
        self._rng = np.random.default_rng(rng)

    def __call__(self, inputs: Array, *, gradients: bool) -> Answer:
        rows = checked_inputs(self.offer, inputs, gradients=gradients)
        if not (gradients or self._values):
            return self._oracle(rows, gradients=False)
        return joined(self.offer, [self._hidden(row, gradients) for row in rows], gradients=gradients)

    def _hidden(self, row: Array, gradients: bool) -> Answer:
        others = self._drawn()
        if gradients:
            self._oracle(others, gradients=False)
            return self._oracle(row[None], gradients=True)
        return Answer(self._oracle(np.concatenate([others, row[None]]), gradients=False).values[-1:])

    def _drawn(self) -> Array:
        shape = (self._others, self.offer.dimension)
        if self.offer.box is not None:
            return self._rng.uniform(*self.offer.box, size=shape)
        return self._rng.standard_normal(shape)
