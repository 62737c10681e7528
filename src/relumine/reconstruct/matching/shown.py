"""Shown: what is left of the answers behind a defence, and how a student's own answers are compared with that."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

# How steeply a wrong sign is punished: at a coordinate of typical size the right one costs 0.02.
_STEEPNESS = 4.0
# Shares are kept this far from 0 and 1 before their log-odds are taken.
_CLIP = 1e-9
_TINY = 1e-30


@dataclass(frozen=True)
class Shown:
    """What is shown of each map and of the values. Whoever knows that compares the same of a student, and no more.

    magnitudes: of each coordinate its magnitude only
    signs:      of each coordinate its sign only
    scaled:     each map by a factor of its own, which is not told
    masked:     only the largest coordinates; 0 stands for the others, which are not larger
    distorted:  beta and gamma of a reverse sigmoid on probabilities
    """

    magnitudes: bool = False
    signs: bool = False
    scaled: bool = False
    masked: bool = False
    distorted: tuple[float, float] | None = None

    @property
    def linear(self) -> bool:
        """Whether combinations of maps may be compared in place of maps."""
        return not (self.magnitudes or self.signs or self.scaled or self.masked)

    @property
    def partial(self) -> bool:
        """Whether maps have lost signs, sizes or scale, so that values have to find them."""
        return self.magnitudes or self.signs or self.scaled

    def gap(self, maps: Tensor, wanted: Tensor, scale: float) -> Tensor:
        """How far n×R×shape maps are from those answered, per map; ``scale`` is the mean ‖map‖² of the answers."""
        mine, theirs = maps.flatten(2), wanted.flatten(2)
        if self.signs:
            return _wrong_signs(mine, theirs.sign())
        mine = mine.abs() if self.magnitudes else mine
        known = theirs != 0 if self.masked else torch.ones_like(theirs, dtype=torch.bool)
        if self.scaled:
            mine = mine / (mine * known).norm(dim=2, keepdim=True).clamp_min(_TINY)
            theirs = theirs / theirs.norm(dim=2, keepdim=True).clamp_min(_TINY)
            scale = 1.0
        off = (mine - theirs) * known
        if self.masked:
            smallest = theirs.abs().masked_fill(~known, torch.inf).amin(2, keepdim=True).nan_to_num(posinf=0.0)
            off = off + functional.relu(mine.abs() - smallest) * ~known
        return off.square().sum() / (off.shape[0] * off.shape[1] * scale)

    def values(self, probabilities: Tensor) -> Tensor:
        """What would be shown of a student's probabilities n×K."""
        if self.distorted is None:
            return probabilities
        beta, gamma = self.distorted
        single = probabilities.shape[1] == 1
        both = torch.cat([probabilities, 1 - probabilities], 1) if single else probabilities
        odds = torch.logit(both, eps=_CLIP)
        cut = (both - beta * (torch.sigmoid(gamma * odds) - 0.5)).clamp(_CLIP, 1)
        shown = cut / cut.sum(1, keepdim=True)
        return shown[:, :1] if single else shown


def _wrong_signs(maps: Tensor, signs: Tensor) -> Tensor:
    """A logistic loss on each coordinate that has a sign, in units of its map's typical size."""
    size = maps.detach().square().mean(2, keepdim=True).sqrt().clamp_min(_TINY)
    told = signs != 0
    losses = functional.softplus(-_STEEPNESS * signs * maps / size) * told
    return losses.sum() / told.sum().clamp_min(1)
