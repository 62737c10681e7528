"""Precision: how exactly things agree that are equal, for targets that compute in float64 and in float32."""

from dataclasses import dataclass

from relumine.reconstruct.noise import Noise

# Below this noise floor answers have all digits of float64.
_EXACT = 1e-12


@dataclass(frozen=True)
class Precision:
    """Relative unless said otherwise.

    same:     sightings of one unit agree to this
    kink:     a kink this close to a known boundary is that boundary's, relative to the size of the point
    clear:    points closer than this to a known boundary may lie on either side, relative to their size
    fit:      the last layer explains answers to this
    compared: fresh points agree to this
    beside:   a boundary is looked for again this far from a corner, relative to its size; 0 where that is too close
    halvings: so often can the way to a wrong point be halved before what is left of it is lost in rounding
    """

    same: float
    kink: float
    clear: float
    fit: float
    compared: float
    beside: float
    halvings: int

    @property
    def exact(self) -> bool:
        """Whether answers have all digits of float64: boundaries can be followed, and nothing needs polishing."""
        return self.beside > 0


_DOUBLE = Precision(same=1e-6, kink=1e-8, clear=1e-9, fit=1e-7, compared=1e-9, beside=1e-6, halvings=12)
_SINGLE = Precision(same=5e-4, kink=2e-5, clear=1e-4, fit=1e-3, compared=1e-4, beside=0, halvings=5)


def precision_for(noise: Noise) -> Precision:
    """What the noise of the answers allows."""
    return _DOUBLE if noise.floor <= _EXACT else _SINGLE
