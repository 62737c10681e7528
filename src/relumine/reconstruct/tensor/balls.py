"""Balls around answers: where more units switch than there are inputs, a small one shows few enough at once."""

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from relumine.reconstruct.tensor.search import TensorSearch

# Points of a ball at which patterns are enumerated.
MOST = 18
# Where fewer units than this can be told apart at once, it is cheaper to part them one by one.
ENOUGH = 12
# A ball is chosen to show this part of what could be decomposed: it may turn out to show more.
_FILL = 0.65
# Units within reach of 17 Gaussian points around a centre, per unit within reach of one of them: E[range] / E|z|; of 3.
_REACH, _REACH_OF_THREE = 4.5, 2.1


class Cluster:
    """Answers around one of them: places in the search's observations, the base first."""

    def __init__(self, base: int, radius: float) -> None:
        self.base, self.radius = base, radius
        self.members: list[int] = []
        self.tried = 0  # unexplained members when a decomposition last told no unit apart; 0 if it did
        self.failures = 0  # such decompositions in a row
        self.known = 0  # units that were known at the last of them


class Balls:
    """How a search asks in balls."""

    def __init__(self, search: "TensorSearch") -> None:
        self._search = search

    def ask(self, places: list[int]) -> None:
        """Ask in a ball around a fresh centre in which fewer units switch."""
        left = float(np.median([np.linalg.norm(self._search.rest[i] - self._search.rest[0]) ** 2 for i in places]))
        used = {cluster.base for cluster in self._search.clusters}
        centre = next((i for i in self._search.main.members if i not in used), None)
        if centre is None:
            (centre,) = self._search.add(self._search.fresh_point()[None], self._search.main)
        cluster, enough = self._opened(centre, 0.25), len(self._search.units) + self._aim * _REACH / 2
        if len(self._search.units) >= ENOUGH:
            # Between Gaussian points half of all units switch; at radius r around one a share of arctan(r)/π.
            energy = float(np.mean(self._search.units.energies))
            cluster.radius = float(np.tan(min(np.pi / 2 * self._aim * energy / left, 1.2)))
        else:
            self._narrow(cluster)
        for _ in range(MOST):
            ranks = self._search.ranks(cluster.base, self._search.unexplained(cluster)[:MOST])
            if len(ranks) >= MOST or (ranks and ranks[-1] > self._search.dimension):
                cluster, ranks = self._opened(centre, 0.6 * cluster.radius), []
            elif len(cluster.members) > 2 and (ranks or [0])[-1] < self._aim / 2:
                cluster.radius *= 2
            self._around(cluster, min(self._search.missing(ranks), MOST))
            if self._search.peel(cluster) and (
                len(self._search.units) >= enough or self._search.peel(self._search.main)
            ):
                return

    def _opened(self, centre: int, radius: float) -> Cluster:
        self._search.clusters.append(Cluster(centre, radius))
        return self._search.clusters[-1]

    @property
    def _aim(self) -> float:
        """How many units should switch between a ball's centre and one of its points."""
        return _FILL * self._search.room(MOST - 1) / _REACH

    def _narrow(self, cluster: Cluster) -> None:
        """Make the ball small enough to count the units that switch, then as large as it should be."""
        for _ in range(MOST):
            (place,) = self._around(cluster, 1)
            (count,) = self._search.ranks(cluster.base, [place])
            if self._search.reached / 4 <= count < self._search.reached:
                break
            cluster.radius *= 0.25 if count == self._search.reached else 2
        places = [place, *self._around(cluster, 2)]
        cluster.radius *= self._aim * _REACH_OF_THREE / max(self._search.ranks(cluster.base, places)[-1], 1)

    def _around(self, cluster: Cluster, count: int) -> list[int]:
        centre = self._search.seen.points[cluster.base]
        return self._search.add(np.array([self._search.near(centre, cluster.radius) for _ in range(count)]), cluster)
