"""Spectrum: maps compared by what matters for inputs like those asked, and not pixel by pixel.

A student's output at x + δ is off by (J − Ĵ)δ. Pictures differ from each other in low frequencies far more than in high
ones, so that the mean of its square over such δ weighs each frequency of J − Ĵ by the pictures' power there. Gradients
of deep networks have most of their own power in high frequencies, which hardly matter and are hardest to learn.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

# Added to the power at each frequency, in units of its mean: what few pictures lack is not nothing.
_FLOOR = 1e-3


@dataclass(frozen=True, eq=False)
class Spectrum:
    """The amplitude at each frequency, H×W, of root mean square one."""

    amplitude: Tensor

    @classmethod
    def of(cls, pictures: Tensor) -> "Spectrum":
        """Of n×…×H×W pictures, by how much they differ from their mean colour."""
        pixels = [0, pictures.dim() - 2, pictures.dim() - 1]
        power = torch.fft.fft2(pictures - pictures.mean(pixels, keepdim=True)).abs().square()
        power = power.flatten(0, -3).mean(0)
        power = power / power.mean().clamp_min(torch.finfo(power.dtype).tiny) + _FLOOR
        return cls((power / power.mean()).sqrt())

    def __call__(self, maps: Tensor) -> Tensor:
        """Maps …×H×W, each frequency times its amplitude."""
        seen: Tensor = torch.fft.ifft2(torch.fft.fft2(maps) * self.amplitude).real
        return seen
