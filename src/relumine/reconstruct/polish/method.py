"""Polishing: all parameters of a network moved together to meet every answer already paid for. Asks nothing.

A unit found at one kink is known as well as two answers show it. All answers together show it better: each value and
each gradient is one more equation. Which units are on at each point is taken as known, so the equations are a product
of the layers' parameters; Gauss–Newton linearises them. With one hidden layer each step is solved at once
(polish_step.py); with more of them, or without gradients, LSMR solves it without ever writing the matrix down.
"""

import numpy as np

from relumine.oracle.base import Array
from relumine.reconstruct.network import Network
from relumine.reconstruct.noise import Noise
from relumine.reconstruct.polish.answers import Answers
from relumine.reconstruct.polish.fit import NetworkFit

# Gauss–Newton steps; the first does nearly all, the others follow the activation patterns that it changed.
_STEPS = 6
# Steps end when one lowers the misfit by less than this part of it.
_GAIN = 1e-3


class Polished:
    """A network that was polished, beside the answers that it was polished with."""

    def __init__(self, fit: NetworkFit) -> None:
        self._fit = fit

    @property
    def network(self) -> Network:
        """The network that meets all answers best."""
        return self._fit.network

    @property
    def misfit(self) -> float:
        """How far the answers are from it, in units of their expected errors: about one for a right network."""
        return self._fit.misfit

    @property
    def whole(self) -> bool:
        """Whether all parameters were fitted; else only the biases were."""
        return self._fit.whole

    def uncertainty(self, points: Array, rng: np.random.Generator) -> Array | None:
        """n×K: by how much the values at these points would change with other noise of the same size.

        One draw of such noise is fitted as the answers were. The largest number at many points is what the noise
        allows; nothing is asked. None if only biases were fitted: that says nothing about the rest.
        """
        if not self.whole:
            return None
        noise = rng.standard_normal(self._fit.residuals.size)
        moved = self._fit.moved(self._fit.solved(noise))
        result: Array = np.abs(moved.logits(points) - self.network.logits(points))
        return result


def polished(network: Network, answers: Answers, noise: Noise) -> Polished:
    """The network that meets all answers best, starting from this one; itself if no step is for the better.

    Where all parameters take too long, only the biases are fitted, to the values: these are what a search finds least
    exactly. So it is for large networks whose answers are not rounded: there nothing else is far off.
    """
    fit = NetworkFit(network, answers, noise)
    if not fit.whole:
        return Polished(NetworkFit(fit.moved(fit.biases()), answers, noise))
    for _ in range(_STEPS):
        better = _improved(fit, answers, noise)
        if better is None:
            break
        gain, fit = fit.misfit - better.misfit, better
        if gain < _GAIN * fit.misfit:
            break
    return Polished(fit)


def _improved(fit: NetworkFit, answers: Answers, noise: Noise) -> NetworkFit | None:
    step = fit.solved(fit.residuals)
    for share in (1.0, 0.3):  # a full step may leave the patterns for which it was computed
        better = NetworkFit(fit.moved(share * step), answers, noise)
        if better.misfit < fit.misfit:
            return better
    return None
