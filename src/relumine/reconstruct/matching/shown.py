"""How a student's maps and values are compared with what is shown of the target's, and with no more."""

import torch
from torch import Tensor
from torch.nn import functional

from relumine.explain.map_kind import MapKind

# How steeply a wrong sign is punished: at a coordinate of typical size the right one costs 0.02.
_STEEPNESS = 4.0
# Shares are kept this far from 0 and 1 before their log-odds are taken.
_CLIP = 1e-9
_TINY = 1e-30


def gap(shown: MapKind, maps: Tensor, wanted: Tensor, scale: float) -> Tensor:
    """How far n×R×shape maps are from those answered, by what is shown of them, per map.

    scale: the mean ‖map‖² of the answers
    """
    mine, theirs = maps.flatten(2), wanted.flatten(2)
    if shown.signs:
        return _wrong_signs(mine, theirs.sign())
    mine = mine.abs() if shown.magnitudes else mine
    known = theirs != 0 if shown.masked else torch.ones_like(theirs, dtype=torch.bool)
    if shown.scaled:
        mine = mine / (mine * known).norm(dim=2, keepdim=True).clamp_min(_TINY)
        theirs = theirs / theirs.norm(dim=2, keepdim=True).clamp_min(_TINY)
        scale = 1.0
    off = (mine - theirs) * known
    if shown.masked:
        smallest = theirs.abs().masked_fill(~known, torch.inf).amin(2, keepdim=True).nan_to_num(posinf=0.0)
        off = off + functional.relu(mine.abs() - smallest) * ~known
    return off.square().sum() / (off.shape[0] * off.shape[1] * scale)


def distorted_by(reverse_sigmoid: tuple[float, float] | None, probabilities: Tensor) -> Tensor:
    """What a reverse sigmoid of these beta and gamma shows of probabilities n×K; None: there is none."""
    if reverse_sigmoid is None:
        return probabilities
    beta, gamma = reverse_sigmoid
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
