"""Growth: a network layer by layer, each layer finished before the next is begun, as far as answers can tell."""

from dataclasses import dataclass, field

import numpy as np

from relumine.oracle.base import Array
from relumine.oracle.metering.metered import Metered
from relumine.reconstruct.deep.last import assembled, last_layer
from relumine.reconstruct.deep.layers import Layers
from relumine.reconstruct.deep.next import Hint, NextLayer
from relumine.reconstruct.deep.orientation import turned_by_following
from relumine.reconstruct.deep.search import Search
from relumine.reconstruct.network import Network

# A layer is given up after so many efforts, or after so many in a row that showed nothing new; after so many something
# else is tried.
_EFFORTS = 72
_FRUITLESS = 14
_PATIENCE = 3
_DEPTH = 10
# With fewer whole lines no unit has been seen twice.
_LINES = 2


@dataclass
class _LayerProgress:
    """How the search for one layer goes."""

    effort: int = 0
    stuck: int = 0  # efforts in a row that showed nothing new
    numbers: int = 0  # numbers known of the layer's rows
    tried: int = 0  # units with which the layer was taken for complete
    count: int = 0  # units that could not be turned the right way around
    unturned: int = 0  # efforts in a row for which that was so
    nearly: bool = False  # as the last layer it explains all answers but a few
    hint: Hint = field(default_factory=Hint)


class Growth:
    """Grows the network from what the book has, asking for what is missing."""

    def __init__(self, search: Search, meter: Metered) -> None:
        self.search = search
        self.meter = meter
        self.leads: set[int] = set()  # steps whose kink is of a unit that is missing somewhere
        self.first: tuple[Array, Array] | None = None  # rows and biases of the first layer, if they are known already
        self.layers = Layers()  # the most that was ever proved
        self.unfinished: NextLayer | None = None  # the deepest that was begun
        self.unturned: NextLayer | None = None  # the last whose units' orientation (sign) is not known

    def proved(self) -> Network | None:
        """The layers that are proved, as a network whose outputs are the signals of the last; None without any."""
        if not len(self.layers):
            return None
        weights = (self.search.book.outward(self.layers.rows[0]), *self.layers.rows[1:])
        return Network(weights, self.layers.biases, self.search.offer.inputs)

    def report(self) -> str:
        """What is proved, what is missing, and what it may cost."""
        known = " and ".join(map(str, self.layers.widths)) or "no"
        stage = self.unfinished
        if stage is None:
            return "no layer was begun"
        rows, _ = stage.proved()
        begun = f"proved: layers of {known} units; of layer {len(stage.layers) + 1}, {len(rows)} units are complete"
        parts = sum(not unit.complete and len(unit.lines) > 1 for unit in stage.units)
        missing = stage.back.missing(rows)
        if stage is self.unturned:
            return f"{begun}, but the orientation (sign) of its units could not be told: more queries will hardly help"
        left = int(np.linalg.matrix_rank(missing.rest, tol=1e-5)) if missing is not None and len(missing.wrong) else 1
        units = sum(self.layers.widths) + len(rows)
        more = int(np.ceil(self.search.book.count / max(units, 1) * max(left, parts)))
        return (
            f"{begun}, {parts} are known in part and at least {left} missing, there or below; at the price so far that "
            f"is about {more} more gradient queries, with another seed or a higher limit"
        )

    def network(self) -> Network | None:
        """The whole network, or None if some layer could not be finished."""
        if self.first is None:
            return self._grow(NextLayer(Layers(), self.search))
        rows, biases = self.first
        return self._grow(self._behind(Layers(), self.search.book.inward(rows), biases))

    def _grow(self, stage: NextLayer) -> Network | None:
        """The network on top of the known layers; None if one of these misses a unit, or the next cannot be found."""
        progress = _LayerProgress()
        while progress.effort < _EFFORTS and max(progress.stuck, progress.unturned) < _FRUITLESS:
            rows, biases = self._effort(stage, progress)
            if self._misses_unit(stage):
                return None
            if not len(rows):
                if progress.stuck >= _PATIENCE:
                    return None
                continue
            network = self._as_last(stage, rows, biases, progress)
            if network is not None:
                return network
            if progress.nearly and progress.stuck < 2 * _PATIENCE:
                continue
            if progress.hint.along is not None or not self._complete(stage, rows, progress):
                continue
            if len(rows) == progress.tried:
                if progress.stuck >= self._patience(stage, progress):
                    return None
                continue
            turned = stage.back.turned(rows, biases) or self._followed(stage, rows, biases)
            self.unturned = stage if turned is None else None
            if turned is None:
                progress.unturned = progress.unturned + 1 if len(rows) == progress.count else 0
                progress.count = len(rows)
                continue
            progress.tried = len(rows)
            behind = self._behind(stage.layers, *turned)
            network = self._grow(behind)
            if network is not None:
                return network
            progress.hint.suspects, progress.stuck = behind.back.unexplained, 0
            if not len(stage.layers):  # its coordinates have changed
                stage = NextLayer(stage.layers, self.search)
        return None

    def _followed(self, stage: NextLayer, rows: Array, biases: Array) -> tuple[Array, Array] | None:
        """Rows turned the right way around by following deeper boundaries across them, where they are dependent."""
        if not self.search.precision.exact or len(rows) <= np.linalg.matrix_rank(rows, tol=1e-5):
            return None
        with self.meter.phase(f"layer {len(stage.layers) + 1}"):
            return turned_by_following(stage.layers, rows, biases, self.search)

    @staticmethod
    def _patience(stage: NextLayer, progress: _LayerProgress) -> int:
        """How long to look for more units of a layer that seemed complete: longer if something shows that it is not."""
        if not len(stage.layers):
            return 1
        return 3 * _PATIENCE if len(progress.hint.suspects) else _PATIENCE

    def _effort(self, stage: NextLayer, progress: _LayerProgress) -> tuple[Array, Array]:
        """Ask once more for the next layer; what is proved of it then."""
        if self.unfinished is None or len(stage.layers) >= len(self.unfinished.layers):
            self.unfinished = stage
        with self.meter.phase(f"layer {len(stage.layers) + 1}"):
            while self.search.book.lines < _LINES:
                stage.explore(progress.hint, stuck=True)
            if progress.effort:
                stage.explore(progress.hint, stuck=progress.stuck >= _PATIENCE)
            stage.prove()
            if stage.wide and self.search.precision.exact:
                stage.follow()
            elif progress.effort:
                stage.aim(self.leads, bold=progress.stuck >= _PATIENCE - 1)
            stage.update()
        progress.effort += 1
        progress.stuck = 0 if stage.numbers > progress.numbers else progress.stuck + 1
        progress.numbers = stage.numbers
        return stage.proved()

    def _misses_unit(self, stage: NextLayer) -> bool:
        """Whether gradients show that the known layers miss a unit; its kinks are where that begins."""
        book = self.search.book
        wrong = np.zeros(book.count, dtype=bool)
        wrong[stage.back.unexplained] = True
        steps = book.steps()
        self.leads |= set(np.flatnonzero((wrong[steps.left] != wrong[steps.right]) & steps.kinked).tolist())
        return bool(wrong.any())

    def _as_last(self, stage: NextLayer, rows: Array, biases: Array, progress: _LayerProgress) -> Network | None:
        """The network with these units as its last hidden layer, if they explain all answers."""
        book, layers = self.search.book, stage.layers
        progress.hint.along, progress.nearly = None, False
        fit = last_layer(layers, rows, biases, book, self.search.rng, self.search.precision)
        if fit is None:
            return None
        if len(fit.wrong):
            progress.nearly, progress.hint.suspects = True, fit.wrong
            stage.witness(fit)
            fit = stage.filled(fit) if progress.stuck >= _PATIENCE else fit
        if len(fit.wrong):
            return None
        last = fit.last
        term = last.turned().jacobian
        plain = last.plain(10 * self.search.precision.fit) is not None or term.size < last.units
        if plain or progress.stuck >= _PATIENCE or progress.effort == _EFFORTS:
            return assembled(layers, last, book, self.search.offer, 10 * self.search.precision.fit)
        # A linear term that cannot be turned away is made by units that were on at every answered point.
        progress.hint.along = np.linalg.svd(term)[2][0]
        return None

    def _complete(self, stage: NextLayer, rows: Array, progress: _LayerProgress) -> bool:
        """Whether these are all units of the layer, as far as can be told."""
        missing = stage.back.missing(rows)
        if missing is None:
            return progress.stuck >= _PATIENCE
        return not len(missing.wrong) and len(stage.layers) + 1 < _DEPTH

    def _behind(self, layers: Layers, rows: Array, biases: Array) -> NextLayer:
        """The search for the layer behind this one."""
        book, offer = self.search.book, self.search.offer
        if not len(layers) and len(rows) < offer.dimension and offer.box is None and book.basis is None:
            # The target depends on the first layer's signals alone: so many coordinates are enough.
            basis = np.linalg.svd(rows, full_matrices=False)[2]
            rows = rows @ basis.T
            book.rebase(basis)
        grown = layers.with_layer(rows, biases)
        if sum(grown.widths) > sum(self.layers.widths):
            self.layers = grown
            self.meter.found(sum(grown.widths))
        return NextLayer(grown, self.search)
