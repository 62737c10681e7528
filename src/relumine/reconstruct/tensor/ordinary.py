"""OrdinaryRun: what the explanations of given inputs tell of one hidden layer; no other input is asked.

The tensor of Jacobians needs no chosen inputs: the units that switch among ordinary requests are its terms. What never
switches there is an affine function at all of them, and stays one in the clone.
"""

from dataclasses import dataclass

import numpy as np

from relumine.errors import BudgetError
from relumine.oracle.base import Array
from relumine.oracle.metering.metered import Metered
from relumine.reconstruct.network import Network
from relumine.reconstruct.noise import noise_in
from relumine.reconstruct.result import Evidence, Outcome, Stop
from relumine.reconstruct.tensor.observations import Observations
from relumine.reconstruct.tensor.run import TensorRun
from relumine.reconstruct.tensor.search import TensorSearch
from relumine.reconstruct.two_layer.agreement import Settings

# Units that share a pattern are told apart where one of them switches: values show which inputs those are, so no more
# than this many are left to the comparison. Three trained 64-24-10 took 21 to 43 gradient queries without it, and 15
# to 21 with it.
_FEW = 3
_WHERE = "at given inputs that were not asked before"


@dataclass(frozen=True)
class _Compared:
    """Values at ``points`` inputs that nothing was fitted to: the largest gap, and the share of same classes."""

    points: int
    gap: float
    same: float

    def __str__(self) -> str:
        return f"at {self.points} given inputs not asked before the same class at {self.same:.1%}, gap {self.gap:.1e}"


class OrdinaryRun(TensorRun):
    """The state of one reconstruction from given inputs, n×d, which are asked in their order."""

    compared: _Compared | None = None

    def __init__(self, settings: Settings, meter: Metered, rng: np.random.Generator, inputs: Array) -> None:
        super().__init__(settings, meter, rng)
        rows = self.comparison.representable(inputs)
        self._unused = rows[np.sort(np.unique(rows, axis=0, return_index=True)[1])]

    def reconstruct(self) -> None:
        """Explain the first answers; then compare values at the next inputs, until none contradicts."""
        try:
            self._find()
            self._compare()
            while len(self._wrong()):
                self._mend()
                self._compare()
        except BudgetError:
            if self.search is not None and self._left:
                self._share()
            raise
        self._judge()

    def _next(self, count: int) -> Array:
        taken, self._unused = self._unused[:count], self._unused[count:]
        return taken

    def _unseen(self, count: int) -> Array:
        """So many inputs to compare, whose gradients are not asked."""
        return self._next(count)

    def _find(self) -> None:
        with self.meter.phase("search"):
            seen = self._first()
            self.search = TensorSearch(self._ask, self._next, self._near, seen, self.rng)
            self._gather()

    def _first(self) -> Observations:
        """The first answer that is not saturated: all pieces are compared with its piece."""
        while len(first := self._next(1)):
            answer = self.asker.ask(first)
            if np.isfinite(answer.values).all():
                shown = np.concatenate([answer.values.ravel(), answer.jacobians.ravel()])
                self.asker.noise = noise_in(shown, self.offer.dtype)
                return Observations(first, answer.values, answer.jacobians, self.noise)
        raise Stop(Outcome.SATURATED)

    def _gather(self) -> None:
        """Ask inputs until nearly all is explained, none is left, or more units switch than can be told apart."""
        while not self._enough:
            if not len(points := self._next(self._searched.missing(self._left))):
                return
            self._learn(points)

    @property
    def _enough(self) -> bool:
        left = self._left
        told = len(self._searched.main.members) >= 2 and (not left or left[-1] <= _FEW)
        return told or bool(left and left[-1] > self._searched.dimension)

    def _learn(self, points: Array) -> None:
        """Ask here, and decompose what is left; every further input may part units that shared a pattern."""
        search = self._searched
        search.gather(points)
        search.main.failures = 0
        search.peel(search.main)

    @property
    def _left(self) -> list[int]:
        """The rank of what known units do not explain, after one answer, two, and so on."""
        return self._searched.ranks(self._searched.main.base, self._searched.unexplained(self._searched.main))

    def _compare(self) -> None:
        """Ask the values at the next inputs."""
        self.comparison.clear()
        with self.meter.phase("verify"):
            self.comparison.ask(self._unseen(self.settings.points))
        points, answers, model = self.comparison.points, self.comparison.answers, self._model()
        if len(points):
            same = float((model.values(points).argmax(axis=1) == answers.argmax(axis=1)).mean())
            self.compared = _Compared(len(points), self.comparison.gap(model) or 0.0, same)

    def _mend(self) -> None:
        """Ask the Jacobians at compared inputs that contradict, until none does."""
        asked: set[int] = set()
        with self.meter.phase("mend"):
            while wrong := [i for i in self._wrong() if i not in asked]:
                asked.add(wrong[0])
                self._learn(self.comparison.points[wrong[:1]])
            self._gather()

    @property
    def _tolerance(self) -> float:
        return self._noise_explains

    def _judge(self) -> None:
        """Say what is not known."""
        if left := self._left:
            self._stop_with(left[-1])
        if (equal := len(self.comparison.points)) < self.settings.points:
            more = f"{equal} inputs were left to compare, {self.settings.points} are wanted"
            raise Stop(Outcome.INCOMPLETE, self._remark(more, self._units))
        if (rank := self._never_off) > 0:
            more = f"a linear part of rank {rank} is left: at least as many units never switch, or it is a skip part"
            raise Stop(Outcome.INCOMPLETE, self._remark(more, self._units))

    def _stop_with(self, rank: int) -> None:
        """End with answers that are not explained; where patterns are shared, by units that do the same there."""
        unknown = f"what differs besides has rank {rank}, more than these inputs tell apart"
        shared = f"{rank} more share patterns, and the clone has one choice of many for them"
        units = self._units
        remark = self._remark(shared if self._share() else unknown, units)
        foreign = not units and rank > self._searched.dimension
        raise Stop(Outcome.NOT_THIS_CLASS if foreign else Outcome.INCOMPLETE, remark)

    def _share(self) -> bool:
        """Whether units were added that do at the answered inputs what is left, though others would, too."""
        units = self._searched.shared()
        if units is not None:
            self._searched.accept(units)
        return units is not None

    def _remark(self, more: str, units: int) -> str:
        compared = "no input was left to compare" if self.compared is None else str(self.compared)
        return f"{units} units that switch among {len(self._searched.seen)} inputs were found; {more}; {compared}"

    @property
    def _never_off(self) -> int:
        """The rank of the linear part of the clone."""
        clone = self.clone()
        if not isinstance(clone, Network) or clone.skip is None:
            return 0
        sizes = np.linalg.svd(clone.skip, compute_uv=False)
        return int((sizes > self._searched.error).sum())

    def evidence(self, remark: str) -> Evidence:
        if self.compared is None:
            return Evidence(self.noise.floor, remark=remark)
        return Evidence(self.noise.floor, None, self.compared.gap, self.compared.points, remark, where=_WHERE)
