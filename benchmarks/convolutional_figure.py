"""The figure of docs/convolutional.md: what changes between two neighbouring points, and kernels beside true ones.

OMP_NUM_THREADS=1 python benchmarks/convolutional_figure.py     about a quarter of a minute; writes docs/kernels.png
"""

from itertools import pairwise
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import nn

import relumine as rl
from relumine.reconstruct.convolutional.segments import noise

PAGE = Path(__file__).parents[1] / "docs" / "kernels.png"
SEED, SIDE, KERNEL, CHANNELS = 0, 16, 5, (6, 4)
# Fewer units switch on a shorter step; this is the first of these steps on which just one does.
STEPS = np.geomspace(1e-4, 1e-1, 60)


def network() -> nn.Module:
    """Two convolutions of 5x5 with max-pools and a dense layer, random."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        layers = nn.Sequential(
            *(nn.Conv2d(1, CHANNELS[0], KERNEL, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(CHANNELS[0], CHANNELS[1], 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(CHANNELS[1] * SIDE**2 // 16, 10)),
        )
    return layers.double().eval()


def single_changes(oracle: rl.Oracle, count: int) -> list[np.ndarray]:
    """Images of changes of rank one in the Jacobian, those with the smallest supports of several images."""
    found = []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        start, way = rng.standard_normal(SIDE**2), noise((1, SIDE, SIDE), 1.5, rng).ravel()
        answers = oracle(start + np.append(0, STEPS)[:, None] * way, gradients=True).jacobians
        for before, after in pairwise(answers):
            _, sizes, rows = np.linalg.svd(after - before, full_matrices=False)
            if sizes[0] > 1e-9 and sizes[1] < 1e-9 * sizes[0]:
                found.append(rows[0].reshape(SIDE, SIDE))
    found.sort(key=lambda image: int((np.abs(image) > 1e-9).sum()))
    picks = np.linspace(0, len(found) - 1, count).astype(int)
    return [found[i] for i in picks]


def main() -> None:
    module = network()
    oracle = rl.TorchOracle(module, (1, SIDE, SIDE), gradients="all", values="logits")
    result = rl.Convolutional(module)(oracle, rng=SEED)
    found = (result.proved or result).to_torch().get_submodule("features.0")
    assert isinstance(found, nn.Conv2d)
    first = module.get_submodule("0")
    assert isinstance(first, nn.Conv2d)
    true, mine = (layer.weight.detach().numpy()[:, 0] for layer in (first, found))
    unit = [kernels / np.linalg.norm(kernels, axis=(1, 2), keepdims=True) for kernels in (true, mine)]
    order = np.einsum("aij,bij->ab", *unit).argmax(axis=1)
    error = np.abs(unit[0] - unit[1][order]).max()
    rows = [single_changes(oracle, CHANNELS[0]), list(unit[0]), list(unit[1][order])]
    titles = ["single changes of the Jacobian", "true kernels", f"recovered kernels (largest difference {error:.0e})"]
    figure = plt.figure(figsize=(9, 5.2), layout="constrained")
    for part, images, title in zip(figure.subfigures(3, 1, height_ratios=(1.25, 1, 1)), rows, titles, strict=True):
        part.suptitle(title, fontsize=10)
        for axes, image in zip(part.subplots(1, CHANNELS[0]), images, strict=True):
            limit = np.abs(image).max()
            axes.imshow(image, cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="nearest")
            axes.set(xticks=[], yticks=[])
    figure.savefig(PAGE, dpi=110)
    print(result.outcome.name, result.spent.gradient_queries, error)


if __name__ == "__main__":
    main()
