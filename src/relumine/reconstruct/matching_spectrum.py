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


# So many inputs' maps at a time: transformed they take several times their memory.
_AT_ONCE = 256


@dataclass(frozen=True, eq=False)
class Spectrum:
    """The amplitude at each frequency, H×(W/2 + 1) as ``rfft2`` has them, of root mean square one over all H×W."""

    amplitude: Tensor

    @classmethod
    def of(cls, pictures: Tensor) -> "Spectrum":
        """Of n×…×H×W pictures, by how much they differ from their mean colour."""
        pixels = [0, pictures.dim() - 2, pictures.dim() - 1]
        power = torch.fft.fft2(pictures - pictures.mean(pixels, keepdim=True)).abs().square()
        power = power.flatten(0, -3).mean(0)
        power = power / power.mean().clamp_min(torch.finfo(power.dtype).tiny) + _FLOOR
        return cls((power / power.mean()).sqrt()[:, : pictures.shape[-1] // 2 + 1])

    def __call__(self, maps: Tensor) -> Tensor:
        """Maps …×H×W, each frequency times its amplitude."""
        seen: Tensor = torch.fft.irfft2(torch.fft.rfft2(maps) * self.amplitude, s=maps.shape[-2:])
        return seen

    def of_answers(self, maps: Tensor) -> tuple[Tensor, float]:
        """The same of n×R×… maps, in place, and the mean ‖map‖² then."""
        squares = 0.0
        for some in torch.split(maps, _AT_ONCE):
            some.copy_(self(some))
            squares += float(some.double().square().sum())
        return maps, squares / (maps.shape[0] * maps.shape[1]) or 1.0
