"""The appendix's saliency maps: SmoothGrad of three networks, as its noise grows."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from relumine.study.experiment import Access, Target
from relumine.study.trial import explanation, material, trained_target

# Columns of the grids: σ in units of σ_D. At 0 it is the raw gradient.
SIGMAS = (0.0, 0.1, 1.0, 10.0, 100.0, 1000.0)
_IMAGES = 5


@dataclass(frozen=True)
class MapsWanted:
    """Which target, which σ is the paper's choice, and N."""

    title: str
    target: Target
    chosen: float
    samples: int


@dataclass(frozen=True, eq=False)
class Maps:
    """Images n×C×H×W and the maps of each one's largest output, per σ n×C×H×W.

    likeness:      per σ, the mean cosine between map and raw gradient
    repeatability: per σ, the mean cosine between maps with independent noise
    """

    wanted: MapsWanted
    images: np.ndarray
    maps: tuple[np.ndarray, ...]
    likeness: tuple[float, ...]
    repeatability: tuple[float, ...]

    def records(self) -> list[dict[str, Any]]:
        """One record per σ."""
        wanted = self.wanted
        return [
            {
                "figure": "smoothgrad",
                "network": wanted.target.network,
                "data": wanted.target.data,
                "sigma": sigma,
                "samples": wanted.samples,
                "images": len(self.images),
                "likeness": round(likeness, 4),
                "repeatability": round(repeatability, 4),
            }
            for sigma, likeness, repeatability in zip(SIGMAS, self.likeness, self.repeatability, strict=True)
        ]


def saliency_maps(wanted: MapsWanted) -> Maps:
    """Explain one test image of each of the first classes, twice with different noise."""
    test = material(wanted.target.data, wanted.target.standardise).split.test
    images = np.stack([test.inputs[int(np.argmax(test.labels == label))] for label in range(_IMAGES)])
    first, again = ([_maps(wanted, images, sigma, seed) for sigma in SIGMAS] for seed in (0, 1))
    likeness = tuple(_cosine(maps, first[0]) for maps in first)
    repeatability = tuple(_cosine(*both) for both in zip(first, again, strict=True))
    return Maps(wanted, images, tuple(first), likeness, repeatability)


def _maps(wanted: MapsWanted, images: np.ndarray, sigma: float, seed: int) -> np.ndarray:
    from relumine.explain import ExplainedOracle

    access = Access("smoothgrad", sigma=sigma, samples=wanted.samples) if sigma else Access()
    shown = explanation(access, material(wanted.target.data, wanted.target.standardise).deviation)
    oracle = ExplainedOracle(trained_target(wanted.target).module, shown, images.shape[1:], classes="top", rng=seed)
    answer = oracle(images.reshape(len(images), -1), gradients=True)
    return answer.jacobians.reshape(images.shape).astype(np.float32)


def _cosine(first: np.ndarray, second: np.ndarray) -> float:
    """Mean over images; a map of zeros is like nothing."""
    a, b = first.reshape(len(first), -1), second.reshape(len(second), -1)
    sizes = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    products = (a * b).sum(1)
    return float(np.mean(np.divide(products, sizes, out=np.zeros_like(products), where=sizes > 0)))
